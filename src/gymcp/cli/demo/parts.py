"""The three parts of the demo. Each says what to look at, runs, and shows a table and some episodes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.table import Table

from gymcp.agents.runner.run import RunEnd
from gymcp.cli.configs import EvalConfig, ModelConfig
from gymcp.cli.demo.episode_lines import describe_episode, summarise_episode
from gymcp.cli.demo.shown_progress import ShownProgress
from gymcp.cli.evaluation.eval_run import run_eval
from gymcp.cli.output import OutputConsole
from gymcp.evaluators.percent import format_percent
from gymcp.evaluators.report import REPORT_FILE, write_report, write_text
from gymcp.evaluators.report.registered.curves_file import RegisteredCurves, read_registered_curves
from gymcp.evaluators.report.registered.curves_page import render_curves
from gymcp.evaluators.training_curves import read_held_out
from gymcp.store import EpisodeRow, TrajectoryStore
from gymcp.store.heldout import read_heldout
from gymcp.store.metric_rows import read_metric_rows
from gymcp.store.run_folder import TRAINING_FILE
from gymcp.trainers import recipe as recipes
from gymcp.types import Json, Sampling, Trajectory

AGENTS = {
    "oracle": (1.0, "replays the known solution (gold)"),
    "mutated": (0.0, "replays the gold less one necessary call"),
    "null": (0.0, "does nothing"),
    "random": (None, "makes valid calls, drawn at random"),
}
"""By name, the success that the agent must have, or None, and a description of what it does."""
RECIPE = Path(str(recipes.__file__)).with_name("demo.toml")
CURVE_FILE = "curve.html"
TINY = ModelConfig(sampling=Sampling(max_tokens=32, temperature=0.0))
MAX_EPISODE_LINES = 14
"""Lines of an episode that is shown step by step."""
MAX_EPISODES_TRIED = 5
"""Episodes that are read to find one that soon changed the world."""
STOP_S = 10.0
"""Seconds that a training gets to end by itself after an interrupt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Place of a part: where its text goes, and its run folders."""

    page: OutputConsole
    folder: Path
    limit: int
    """Tasks of BFCL for each agent; 0: all."""

    def say(self, text: str, style: str | None = None) -> None:
        self.page.print(text, style=style, highlight=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """Runs of a part."""

    wrong: Sequence[str] = ()
    """Runs whose success is not what it must be, or that lost an episode."""
    summaries: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    """Folder's name -> summary of the run."""
    pages: Mapping[Path, str] = field(default_factory=dict)
    """Report -> what to look at there."""
    interrupted: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run of a part, and its row of the table."""

    folder: str
    name: str
    config: EvalConfig
    expected: float | None
    """Success that the run must have; None: any."""


def play_bfcl(stage: Stage, number: str) -> PartResult:
    """Run the agents on BFCL multi-turn."""
    stage.say(f"Part {number}: BFCL multi-turn, a suite of 800 tasks over 128 tools", "bold")
    stage.say("Every episode has MCP servers of its own, in bubblewrap. Four agents play the same tasks:")
    for name, (_, does) in AGENTS.items():
        stage.say(f"  {name:<8} {does}")
    stage.say("Look at: the first three prove the suite. Gold must score 100 %, the others 0 %.\n")
    rows = [
        Row(folder=name, name=name, expected=expected, config=EvalConfig(env="bfcl", agent=name, limit=stage.limit))
        for name, (expected, _) in AGENTS.items()
    ]
    result = _play_rows(stage, rows, "BFCL multi-turn", example=("oracle", True))
    stage.say("All 800 tasks: gymcp eval bfcl --agent oracle")
    pages = {"oracle": "the suite can be trusted: its gates", "random": "where random calls fail, and why"}
    return _with_pages(result, stage, pages)


def play_tiny(stage: Stage, number: str) -> PartResult:
    """Run `tiny`, and the oracle, on new companies."""
    stage.say(f"Part {number}: a trained model in a back office", "bold")
    stage.say("tiny, 0.9 million weights on the CPU, serves customers of companies that it has never seen.")
    stage.say("Look at: success falls from level 1 to level 2, and each figure has an interval.\n")
    rows = []
    for level in (1, 2):
        tasks = (f"seeds-*-{level}-*",)
        for name, expected in (("oracle", 1.0), ("tiny", None)):
            config = EvalConfig(env="backoffice", agent="oracle", tasks=tasks)
            if name == "tiny":
                config = EvalConfig(env="backoffice", agent="react", policy="tiny", model=TINY, tasks=tasks)
            folder = f"{name}-level-{level}"
            rows.append(Row(folder=folder, name=f"{name}, level {level}", config=config, expected=expected))
    result = _play_rows(stage, rows, "backoffice, new companies", example=("tiny-level-2", False))
    return _with_pages(result, stage, {"tiny-level-2": "where tiny fails, and why, with transcripts"})


def train(stage: Stage, number: str) -> PartResult:
    """Train from random weights, on episodes of an imperfect teacher first; end with the held-out success."""
    stage.say(f"Part {number}: training of a small model, from random weights", "bold")
    stage.say(
        "Twelve parcels, eight tools, and a hidden table of what each parcel needs. The model copies a teacher who is"
        " often wrong (warm start), then it practises in sandboxes."
    )
    stage.say('Look at: "practice", the success in training, and "seeds", the success on held-out rounds.\n')
    folder, comparisons = stage.folder / "train", read_registered_curves()
    code = _run_training(folder, stage)
    if code is None:
        return PartResult(interrupted=True)
    if code:
        return PartResult(wrong=[f"training ends with exit code {code}"])
    summary = write_report(folder)
    first, last = _find_first_and_last(folder)
    for title, episode in (("One of its first episodes:", first), ("One of its last:", last)):
        if episode is not None:
            stage.say(f"{title}\n{summarise_episode(episode, stage.page.width)}")
    stage.say(describe_heldout(folder))
    result = PartResult(summaries={"train": summary})
    result = _with_pages(result, stage, {"train": "the learning curve, and everything that was measured"})
    curve = write_curve_page(folder, comparisons, stage.folder / CURVE_FILE)
    return replace(result, pages={**result.pages, **curve})


def write_curve_page(folder: Path, comparisons: Sequence[RegisteredCurves], path: Path) -> Mapping[Path, str]:
    """Draw the curve of the training in `folder` beside the comparisons: the page, and what to look at there.

    Without a comparison there is no page.
    """
    if not comparisons:
        return {}
    rows, recipe = read_metric_rows(folder), json.loads((folder / TRAINING_FILE).read_bytes())["recipe"]
    held_out = read_held_out(rows, read_heldout(folder))
    write_text(path, render_curves("The demo's training", recipe, rows, held_out, comparisons))
    measured = " and ".join(f"{each.registration} ({len(each.seeds)} seeds)" for each in comparisons)
    return {path: f"this curve beside those of the registered comparison {measured}"}


def _run_training(folder: Path, stage: Stage) -> int | None:
    """Exit code of ``gymcp train``; None if it was interrupted. A process of its own, so that it has all of torch."""
    command = [sys.executable, "-m", "gymcp.cli", "train", str(RECIPE), "--out", str(folder)]
    out = stage.page.file if stage.page.stderr else None
    with subprocess.Popen(command, stdout=out) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:  # a terminal interrupts the training, too
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
            process.terminate()
            return None


def _find_first_and_last(folder: Path) -> tuple[Trajectory | None, Trajectory | None]:
    """The first episode of a training that failed, and the last that succeeded."""
    with TrajectoryStore.open(folder) as store:
        rows = store.summaries()
        failed = next((row.id for row in rows if row.success is False), None)
        solved = next((row.id for row in reversed(rows) if row.success), None)
        first, last = (None if id is None else store.load(id, tokens=False) for id in (failed, solved))
    return first, last


def describe_heldout(folder: Path) -> str:
    """Held-out success before and after a training, in words; empty if it was not evaluated twice."""
    splits = read_held_out(read_metric_rows(folder), read_heldout(folder))
    if not splits or splits[0].first is splits[0].last:
        return ""
    held = splits[0]
    text = (
        f"Success on held-out rounds: {format_percent(held.first.success)} before practice, "
        f"{format_percent(held.last.success)} after it"
    )
    change = held.change
    if change is None or change.difference is None or change.ci95 is None:
        return f"{text}."
    low, high = (f"{100 * bound:+.1f}" for bound in (change.ci95.low, change.ci95.high))
    return f"{text}: {100 * change.difference:+.1f} points (95 % interval {low} to {high}, paired by task)."


def _play_rows(stage: Stage, rows: Sequence[Row], title: str, *, example: tuple[str, bool]) -> PartResult:
    """Play the runs one after the other, and print their table.

    `example`: the run of which one episode is shown step by step, and its success.
    """
    table = make_table(title)
    wrong: list[str] = []
    summaries: dict[str, Mapping[str, Json]] = {}
    for row in rows:
        folder = stage.folder / row.folder
        stage.say(row.name, "bold")
        with ShownProgress(row.name, stage.page) as progress:
            result = run_eval(replace(row.config, out=folder), progress=progress)
        summaries[row.folder] = summary = dict(result.summary)
        if result.ended is not RunEnd.FINISHED:
            return PartResult(wrong=wrong, summaries=summaries, interrupted=True)
        if summary["scored"] < summary["episodes"] or row.expected not in (None, summary["success"]):
            wrong.append(row.name)
        table.add_row(row.name, format_percent(row.expected, missing=""), *format_cells(summary))
        if row.folder == example[0]:
            _show_example(stage, folder, success=example[1])
    stage.page.print(table)
    return PartResult(wrong=wrong, summaries=summaries)


def _show_example(stage: Stage, folder: Path, *, success: bool) -> None:
    """One episode of a run, step by step: one of that success if there is one, and one that soon changed the world."""
    with TrajectoryStore.open(folder) as store:
        rows = store.summaries()
        fitting = sorted((row for row in rows if row.success is success), key=_length) or rows
        tried = (
            store.load(row.id, tokens=False) for row in fitting[len(fitting) // 2 :][:MAX_EPISODES_TRIED] + fitting[:1]
        )
        for episode in sorted(tried, key=_first_change)[:1]:
            stage.say(f"Step by step, {episode.task}:")
            for line in describe_episode(episode, store.state, width=stage.page.width, most=MAX_EPISODE_LINES):
                stage.say(line)
    stage.say("")


def _length(row: EpisodeRow) -> tuple[int, str]:
    return row.steps, row.task


def _first_change(episode: Trajectory) -> int:
    """Number of the first step that changed the world; the number of steps if none did."""
    changed = (n for n, step in enumerate(episode.steps) if step.state_ref not in (None, episode.initial_key))
    return next(changed, len(episode.steps))


def _with_pages(result: PartResult, stage: Stage, contents: Mapping[str, str]) -> PartResult:
    """The result with the reports of its runs that were played."""
    pages = {stage.folder / name / REPORT_FILE: text for name, text in contents.items() if name in result.summaries}
    return replace(result, pages=pages)


def make_table(title: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for heading in ("run", "must be", "success", "95 % interval", "scored", "calls", "s"):
        table.add_column(heading, justify="left" if heading == "run" else "right", no_wrap=True)
    return table


def format_cells(summary: Mapping[str, Json]) -> tuple[str, ...]:
    return (
        format_percent(summary["success"], missing=""),
        " – ".join(f"{100 * bound:.1f}" for bound in summary["ci95"] or ()),
        f"{summary['scored']}/{summary['episodes']}",
        str(summary["tool_calls"]),
        f"{summary['wall_s']:.0f}",
    )
