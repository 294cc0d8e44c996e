"""``gymcp grade``: grade a recorded run again, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gymcp.cli.output import console, print_json, print_summary
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import load_env
from gymcp.errors import ConfigError
from gymcp.evaluators.grading import apply_grader
from gymcp.evaluators.report import write_report
from gymcp.store import TrajectoryStore, open_run
from gymcp.types import Outcome


def command(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Grade a recorded run again from what was recorded; the first grades stay, the newest count.

    Exit code 1 where a score differs from the one before.
    """
    config = open_run(run).config
    env = load_env(load_spec(str(config["source"])))
    if env.suite.version != config["suite_version"]:
        raise ConfigError(
            f"run folder {run}: recorded with suite {config['suite_version']}, here is {env.suite.version}; "
            "grade it with the gymcp that recorded it"
        )
    tasks = {task.id: task for task in env.suite.tasks}
    grader = f"{env.spec.name}/{env.spec.version}"
    changed: list[str] = []
    with TrajectoryStore.open(run, write=True) as store:
        for row in store.summaries():
            if not (row.outcome.has_score or row.outcome is Outcome.GRADER_ERROR):
                continue
            recorded = store.load(row.id)
            graded = apply_grader(env.spec.grade, tasks[row.task], recorded, store.state)
            store.add_grade(graded, grader=grader)
            if graded.score != row.score:
                changed.append(f"{row.task} trial {row.trial}: {row.score} -> {graded.score}: {graded.reason}")
    summary = write_report(run)
    print_json({**summary, "changed": len(changed)}) if as_json else print_summary(summary)
    for line in changed[:20] if not as_json else ():
        console.print(line, highlight=False, markup=False)
    if not as_json:
        console.print(f"{len(changed)} scores changed" if changed else "every score is what it was")
    if changed:
        raise typer.Exit(1)
