"""``gymcp grade``: grade a recorded run again, offline."""

from __future__ import annotations

from pathlib import Path

import typer

from gymcp.agents.runner.run import regrade
from gymcp.cli.output import console, in_one_line, print_json, print_summary
from gymcp.envs.audit.fingerprint import suite_digest
from gymcp.envs.recorded import load_recorded
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.wrappers.selection import WrapperSelection
from gymcp.errors import ConfigError, StoreError
from gymcp.evaluators.graders.registry import make_grader
from gymcp.evaluators.report import write_report
from gymcp.store import Run, TrajectoryStore, open_run

REQUIRED_KEYS = ("source", "suite_version", "suite_digest")
"""Keys that the config of a run must have for grading it again."""


def execute(run: Path, *, env: str | None, grader: list[str] | None, refresh: bool, as_json: bool) -> None:
    """Grade a recorded run again, offline. Exit code 1 if a score differs from the previous one."""
    other = make_grader(grader) if grader else None
    recorded = open_run(run)
    if missing := [key for key in REQUIRED_KEYS if not isinstance(recorded.config.get(key), str)]:
        raise StoreError(f"run folder {run}: run.json: its config does not say: {', '.join(missing)}")
    changed: list[str] = []
    spec = load_recorded(recorded.config["source"], given=env, where=f"run folder {run}: run.json")
    loaded = WrapperSelection.from_config(recorded.config).apply(spec)
    _refuse_other_tasks(recorded, loaded)
    with TrajectoryStore.open(run, write=True, create=False) as store:
        rows = [row for row in store.summaries() if not row.outcome.runs_again]
        name = ", ".join(grader or ())
        for row, graded in regrade(loaded, store, rows, grader=other, name=name, refresh=refresh):
            if graded.score != row.score:
                changed.append(f"{row.task} trial {row.trial}: {row.score} -> {graded.score}: {graded.reason}")
    summary = write_report(run, lambda recorded: {task.id: task for task in loaded.suite.tasks})
    print_json({**summary, "changed": len(changed)}) if as_json else print_summary(summary)
    for line in changed[:20] if not as_json else ():
        console.print(in_one_line(line), highlight=False, markup=False)
    if not as_json:
        console.print(f"{len(changed)} scores changed" if changed else "every score is what it was")
    if changed:
        raise typer.Exit(1)


def _refuse_other_tasks(run: Run, env: LoadedEnv) -> None:
    for key, here in (("suite_version", env.suite.version), ("suite_digest", suite_digest(env.suite))):
        if run.config[key] != here:
            raise ConfigError(
                f"run folder {run.folder}: recorded with {key} {run.config[key]}, here is {here}: the tasks are others;"
                " grade it with the environment file and the gymcp that recorded it"
            )
