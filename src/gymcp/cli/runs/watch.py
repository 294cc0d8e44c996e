"""``gymcp watch``: follow a run in the terminal."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.live import Live
from rich.text import Text

from gymcp.agents.runner.run import PLANNED_KEY, Plan, select_tasks
from gymcp.cli.evaluation.run_report import find_tasks
from gymcp.cli.exit_codes import INTERRUPTED
from gymcp.cli.output import console, in_one_line
from gymcp.cli.progress import LINE_EVERY_S, format_time
from gymcp.errors import ConfigError, StoreError
from gymcp.evaluators.names import mark_upper_bound, run_name
from gymcp.evaluators.percent import format_bounds, format_percent
from gymcp.evaluators.report.run_data import RECIPE
from gymcp.evaluators.viewer.runs import open_store
from gymcp.evaluators.viewer.summary import RunSummary, Stamp, stamp_of, summarise_run
from gymcp.outcome import Outcome
from gymcp.store import EpisodeRow, Run, is_in_use, open_run
from gymcp.store.run_folder import TRAINING_FILE
from gymcp.store.untrusted_files import read_foreign
from gymcp.types import Json, Suite

RATE_WINDOW_S = 120.0
"""Seconds over which the rate of episodes is measured."""
QUIET_S = 300.0
"""Seconds without a change of the run after which the line says so."""
STOPPED_BEFORE_ITS_END = 1
"""Exit code."""
MAX_LOST_PRINTED = 20
"""Lost episodes that are printed one by one; the rest are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The size of a whole run."""

    episodes: int | None = None
    """None: not known."""
    iterations: int | None = None
    """Iterations of a training run; None: not known, or no training run."""
    has_ended: bool | None = None
    """True if the record of a training run says how it ended: else it goes on, or was killed or interrupted. None: an
    evaluation, whose record does not say it."""
    resume: str = ""
    """Command that goes on with the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A run as it was found."""

    line: str
    lost: Sequence[str]
    """A line for each episode that was lost since the last look."""
    is_stopped: bool
    """True if the run has stopped before its end."""


def execute(run: Path, *, every: float) -> None:
    """Follow a run.

    Exit code: 0 when it has ended, 1 if it stopped before its end, 130 if interrupted, 2 if there is no run.
    """
    try:
        last = _watch(run, every)
    except KeyboardInterrupt:
        print(f"gymcp: stopped watching; run folder {run} is left as it is", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if last.is_stopped:
        raise typer.Exit(STOPPED_BEFORE_ITS_END)


def _watch(run: Path, every: float) -> Look:
    """Print each look at the run, and return the last one."""
    line, printed, printed_at = Text(), "", -LINE_EVERY_S
    with ExitStack() as stack:
        if console.is_terminal:
            stack.enter_context(Live(console=console, transient=True, get_renderable=lambda: line))
        for look in follow_run(run, every):
            for each in look.lost:
                console.print(in_one_line(each), highlight=False, markup=False, soft_wrap=True, style="yellow")
            line = Text(look.line)
            if not console.is_terminal and look.line != printed and time.monotonic() - printed_at >= LINE_EVERY_S:
                printed, printed_at = look.line, time.monotonic()
                print(look.line, flush=True)
    if line.plain != printed:
        print(line.plain, flush=True)
    return look


def follow_run(folder: Path, every_s: float, *, pause: Callable[[float], None] = time.sleep) -> Iterator[Look]:
    """One look at the run after the other; the last one is after the run's end.

    Raises StoreError if the folder holds no run that can be read.
    """
    stamp: Stamp | None = None
    known = 0
    changed_at = time.time()
    summary, rows, goal = RunSummary(), list[EpisodeRow](), Goal()
    while True:
        running = is_in_use(folder)  # before the look, so that the last look sees everything
        if (now := stamp_of(folder)) != stamp:
            summary, rows, goal = _look(folder, running)
            changed_at = time.time() if stamp is not None else changed_at
            stamp = now
        lost = [row for row in rows if row.score is None and row.seq > known]
        known = max((row.seq for row in rows), default=known)
        lines = [f"lost: {row.task} trial {row.trial}: {row.outcome}: {row.reason}" for row in lost[:MAX_LOST_PRINTED]]
        if len(lost) > MAX_LOST_PRINTED:
            lines.append(f"lost: {len(lost) - MAX_LOST_PRINTED} more")
        quiet_s = time.time() - changed_at
        yield Look(
            line=describe_state(summary, rows, goal, running=running, now=time.time(), quiet_s=quiet_s),
            lost=lines,
            is_stopped=not running and bool(describe_stop(summary, rows, goal)),
        )
        if not running:
            return
        pause(every_s)


def _look(folder: Path, running: bool) -> tuple[RunSummary, list[EpisodeRow], Goal]:
    summary = summarise_run(folder)
    if not summary.readable:
        if running:  # it has not recorded anything yet
            return summary, [], Goal()
        raise StoreError(summary.problem)
    with ExitStack() as stack:
        _, rows, _ = open_store(folder, stack)
    return summary, rows, read_goal(folder)


def read_goal(folder: Path) -> Goal:
    """The size that the run's record says, as far as it can be known."""
    resume = f"--out {shlex.quote(str(folder))} --resume"
    training = _read_training(folder)
    if training is not None:
        recipe = training.get("recipe")
        learn = recipe.get("learn") if isinstance(recipe, dict) else None
        iterations = learn.get("iterations") if isinstance(learn, dict) else None
        return Goal(
            iterations=iterations if isinstance(iterations, int) else None,
            has_ended="ended" in training,
            resume=f"gymcp train ... {resume}",
        )
    try:
        run = open_run(folder)
    except StoreError:
        return Goal()
    return Goal(episodes=_count_planned(run), resume=f"gymcp eval ... {resume}")


def _count_planned(run: Run) -> int | None:
    """Number of episodes of the run's plan; None if it is not known.

    Runs of an older gymcp did not record it: it is computed if their tasks are at hand.
    """
    planned = run.starts[-1].get(PLANNED_KEY) if run.starts else None
    if isinstance(planned, int) and planned >= 0:
        return planned
    limit, trials, tasks = (run.config.get(key) for key in ("limit", "trials", "tasks"))
    globs = (tasks,) if isinstance(tasks, str) else tuple(tasks) if isinstance(tasks, list) else ()
    if not isinstance(limit, int) or not isinstance(trials, int) or not all(isinstance(glob, str) for glob in globs):
        return None
    suite = Suite(name="", version="", tasks=tuple(find_tasks(run).values()))
    plan = Plan(agent=str(run.config.get("agent")), tasks=globs, limit=limit, trials=trials)
    with suppress(ConfigError):  # tasks that are not at hand
        return len(select_tasks(suite, plan)) * trials
    return None


def describe_state(
    summary: RunSummary, rows: Sequence[EpisodeRow], goal: Goal, *, running: bool, now: float, quiet_s: float = 0.0
) -> str:
    """The state of a run in one line."""
    done = _count_done(rows)
    config = {"policy": summary.model, "env": summary.env, "agent": summary.agent}
    of_all = f"/{goal.episodes:,}" if goal.episodes else ""
    parts = [run_name(config) or "run", f"{done:,}{of_all} episodes"]
    if summary.iterations is not None:
        parts.insert(1, f"iteration {summary.iterations}{f'/{goal.iterations}' if goal.iterations else ''}")
    if (held := summary.held_out) is not None:
        figure = f"{format_percent(held.success)}{_format_interval(held.low, held.high)}"
        if held.bounds is not None:
            figure = f"{format_bounds(*held.bounds)} ({held.coverage})"
        parts.append(f"held-out {figure} after iteration {held.iteration}")
    if summary.scored:
        interval = _format_interval(summary.low, summary.high)
        name = "success" if summary.iterations is None else "practice"
        success = mark_upper_bound(format_percent(summary.solved / summary.scored), summary.upper_bound)
        parts.append(f"{name} {success}{interval}")
        parts.append(f"{summary.scored - summary.solved:,} failed")
    if lost := summary.episodes - summary.scored:
        parts.append(f"{lost:,} without a score")
    if summary.cost:
        parts.append(f"cost {summary.cost:.4f}")
    if not running:
        return " · ".join([*parts, describe_stop(summary, rows, goal) or "ended"])
    if rate := rate_per_s(rows, now):
        parts.append(f"{rate:.1f}/s" if rate >= 1 else f"{60 * rate:.1f}/min")
        if goal.episodes and goal.episodes > done:
            parts.append(f"{format_time((goal.episodes - done) / rate)} left")
    if quiet_s >= QUIET_S:
        parts.append(f"nothing new for {format_time(quiet_s)}")
    return " · ".join(parts)


def describe_stop(summary: RunSummary, rows: Sequence[EpisodeRow], goal: Goal) -> str:
    """Progress of a run that stopped before its end, with the command that goes on; empty for one that has ended.

    A lost episode counts as played: only an interrupted one, or one that was never begun, is left to be played.
    """
    played = sum(row.latest and row.outcome is not Outcome.CANCELLED for row in rows)
    if goal.has_ended or (goal.has_ended is None and (goal.episodes is None or played >= goal.episodes)):
        return ""
    done, of_all, unit = _count_done(rows), goal.episodes, "episodes"
    if goal.has_ended is not None:
        done, of_all, unit = summary.iterations or 0, goal.iterations, "iterations"
    where = "before its end" if of_all is None else f"at {done:,} of {of_all:,} {unit}"
    return f"stopped {where}; go on with: {goal.resume}"


def _count_done(rows: Sequence[EpisodeRow]) -> int:
    """Number of episodes that will not be played again."""
    return sum(row.latest and not row.outcome.runs_again for row in rows)


def rate_per_s(rows: Sequence[EpisodeRow], now: float) -> float:
    """Episodes that ended per second, over the last `RATE_WINDOW_S` seconds, or since the first one began; else 0."""
    begun = [row.usage.started_at for row in rows if row.usage.started_at > 0]
    if not begun:
        return 0.0
    window_s = min(RATE_WINDOW_S, max(1.0, now - min(begun)))
    ends = (row.usage.started_at + row.usage.wall_s for row in rows if row.usage.started_at > 0)
    return sum(now - window_s <= end <= now for end in ends) / window_s


def _read_training(folder: Path) -> Mapping[str, Json] | None:
    """The content of a training run's state file; None for any other run. One that cannot be read counts as ended.

    A training that was killed before its first checkpoint has only the recipe in its record.
    """
    if not (folder / TRAINING_FILE).exists():
        with suppress(StoreError):
            config = open_run(folder).config
            return config if RECIPE in config else None
        return None
    try:
        state = json.loads(read_foreign(folder, TRAINING_FILE))
    except (StoreError, OSError, ValueError, RecursionError):
        return {"ended": "its state cannot be read"}
    return state if isinstance(state, dict) else {"ended": "its state cannot be read"}


def _format_interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" ({100 * low:.1f} – {100 * high:.1f})"
