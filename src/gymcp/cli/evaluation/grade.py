"""``gymcp grade``: grade a recorded run again, offline unless a judge is named."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from gymcp.agents.runner.environment import keep_answers
from gymcp.agents.runner.regrading import Truths, ask_again, fails_on, regrade, try_grader
from gymcp.cli.evaluation.grader_judge import add_judge, plan_judge
from gymcp.cli.output import console, in_one_line, print_json
from gymcp.cli.summary_table import print_summary
from gymcp.envs.audit.fingerprint import suite_digest
from gymcp.envs.environment_sources import load_recorded
from gymcp.envs.spec import LoadedEnv, price_steps
from gymcp.envs.wrappers.registry import WrapperSelection
from gymcp.errors import ConfigError, StoreError
from gymcp.evaluators.graders.registry import make_grader
from gymcp.evaluators.report import write_report
from gymcp.outcome import Outcome
from gymcp.store import BranchRow, EpisodeRow, Run, TrajectoryStore, open_run
from gymcp.types import Trajectory

REQUIRED_KEYS = ("source", "suite_version", "suite_digest")
"""Keys that the config of a run must have for grading it again."""

GRADER_FAILED = 3
MAX_CHANGES = 20
"""Changed scores that are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regraded:
    """Episodes of a run that was graded again, each in one line."""

    changed: list[str]
    """Episodes with another score than before."""
    failed: list[str]
    """Episodes on which the grader failed."""
    kept: int
    """Number of failures that left the episode's earlier verdict in place."""


def execute(
    run: Path, *, env: str | None, grader: list[str] | None, refresh: bool, judge: str | None, as_json: bool
) -> None:
    """Grade a recorded run again, branches on their whole path. Exit code 1 if a score differs from the previous one.

    `judge`: the model to ask about episodes that lack the verdict of a judge; None: grade offline.
    """
    other = make_grader(grader) if grader else None
    if judge is not None and (other is not None or refresh):
        raise ConfigError("--judge: is for the environment's own grader, without --grader and --refresh")
    recorded = open_run(run)
    if missing := [key for key in REQUIRED_KEYS if not isinstance(recorded.config.get(key), str)]:
        raise StoreError(f"run folder {run}: run.json: its config does not say: {', '.join(missing)}")
    spec = load_recorded(recorded.config["source"], given=env, where=f"run folder {run}: run.json")
    loaded = WrapperSelection.from_config(recorded.config).apply(spec)
    _refuse_other_tasks(recorded, loaded)
    with TrajectoryStore.open(run, write=True, create=False) as store:
        branches = {row.episode.id: row for row in store.branches()}
        rows = [*store.summaries(), *(row.episode for row in branches.values())]
        rows = [row for row in rows if not row.outcome.runs_again]
        answered = _ask_judge(judge, loaded, store, rows, run) if judge is not None else {}
        try_grader(loaded, store, rows, grader=other, refresh=refresh)
        graded = regrade(
            loaded, store, rows, grader=other, name=", ".join(grader or ()), refresh=refresh, answered=answered
        )
        verdicts = _sort(graded, branches)
    tasks = {task.id: task for task in loaded.suite.tasks}
    summary = write_report(run, lambda recorded: tasks, find_prices=lambda recorded: price_steps(loaded.spec))
    if as_json:
        print_json({**summary, "changed": len(verdicts.changed), "failed": len(verdicts.failed)})
    else:
        print_summary(summary)
        _print_changes(verdicts.changed)
    if verdicts.failed:
        count = f"{len(verdicts.failed)} of {len(rows)} episodes"
        sentence = f"failed on {count}; {verdicts.kept} of these keep the verdict they had"
        print(f"gymcp: grade: the grader {sentence}; first: {in_one_line(verdicts.failed[0])}", file=sys.stderr)
        raise typer.Exit(GRADER_FAILED)
    if verdicts.changed:
        raise typer.Exit(1)


def _ask_judge(policy: str, env: LoadedEnv, store: TrajectoryStore, rows: Sequence[EpisodeRow], folder: Path) -> Truths:
    """Answers of the judge on the episodes that lack them, by id."""
    with contextlib.ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        judged = stack.enter_context(add_judge(runner, plan_judge(policy), env))
        judged = stack.enter_context(keep_answers(judged, folder))
        asked = runner.run(ask_again(judged, store, [row for row in rows if row.outcome is Outcome.GRADER_ERROR]))
    return {id: each.truths for id, each in asked.items()}


def _sort(graded_rows: Iterable[tuple[EpisodeRow, Trajectory]], branches: Mapping[str, BranchRow]) -> Regraded:
    changed: list[str] = []
    failed: list[str] = []
    kept = 0
    for row, graded in graded_rows:
        place = f" branch {branches[row.id].branch}" if row.id in branches else ""
        episode = f"{row.task} trial {row.trial}{place}"
        if graded.outcome is Outcome.GRADER_ERROR:
            failed.append(f"{episode}: {graded.reason}")
            kept += fails_on(row, graded)
        elif graded.score != row.score:
            changed.append(f"{episode}: {row.score} -> {graded.score}: {graded.reason}")
    return Regraded(changed=changed, failed=failed, kept=kept)


def _print_changes(changed: list[str]) -> None:
    for line in changed[:MAX_CHANGES]:
        console.print(in_one_line(line), highlight=False, markup=False)
    console.print(f"{len(changed)} scores changed" if changed else "every score is what it was")


def _refuse_other_tasks(run: Run, env: LoadedEnv) -> None:
    for key, here in (("suite_version", env.suite.version), ("suite_digest", suite_digest(env.suite))):
        if run.config[key] != here:
            raise ConfigError(
                f"run folder {run.folder}: recorded with {key} {run.config[key]}, here is {here}: the tasks are others;"
                " grade it with the environment file and the gymcp that recorded it"
            )
