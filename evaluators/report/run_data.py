"""All data of one run for a report, read from its folder. Files that cannot be read become problems; the rest is
used."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gymcp.errors import StoreError
from gymcp.evaluators.judge.record import load_judge
from gymcp.evaluators.metrics import CallFigures, Metrics, examine_run, measure
from gymcp.evaluators.names import run_name
from gymcp.evaluators.report.gates import Gate, gates_of
from gymcp.store import EpisodeRow, Run, TrajectoryStore, open_run, with_grade
from gymcp.store.heldout import HeldoutResult, read_heldout
from gymcp.store.metric_rows import read_metric_rows
from gymcp.store.run_folder import RUN_FILE, TRAINING_FILE
from gymcp.store.untrusted_files import read_foreign
from gymcp.store.validation import require_integer
from gymcp.types import Json, Task, Trajectory

RECIPE = "recipe"
"""Key of a training run's config that holds its recipe."""
_FINISHED = "finished"
MAX_DRAWN = 10**12
"""Bound on whole numbers in a row of metrics, such as iterations, tokens and calls; rows beyond it are not drawn."""
WORST = 8
"""Tasks whose transcripts are in the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFigures:
    """Scored trials of one task."""

    task: str
    mean: float
    """Mean score."""
    passed: int
    trials: int
    worst: EpisodeRow
    """Trial with the lowest score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    name: str
    """Short name, unique in the report."""
    run: Run
    """The run's record; the recipe of a training run is that of its ``training.json``."""
    attempts: Sequence[EpisodeRow]
    metrics: Metrics
    gates: tuple[Gate, ...]
    worst: tuple[TaskFigures, ...]
    """Tasks with a score below 1, lowest mean first."""
    transcripts: Mapping[str, Trajectory]
    """Transcripts of the first `WORST` of them, by trajectory id."""
    curves: Sequence[Mapping[str, Json]] = ()
    """Rows of metrics of a training run."""
    heldout: Sequence[HeldoutResult] = ()
    """Success by task of a training run's evaluations."""
    judge: Mapping[str, Json] | None = None
    """Figures that ``gymcp judge`` wrote, and the number of newest grades that are a judge's; None: no judge was
    used."""
    problems: tuple[str, ...] = field(default=())
    export: str = ""
    """Address of the run's export of the viewer, from the folder of the report; empty if there is none."""

    @property
    def rows(self) -> list[EpisodeRow]:
        """The attempts that count."""
        return [row for row in self.attempts if row.latest]

    @property
    def recipe(self) -> Mapping[str, Json] | None:
        """Recipe of a training run; None for any other run."""
        recipe = self.run.config.get(RECIPE)
        return recipe if isinstance(recipe, Mapping) else None


FindTasks = Callable[[Run], Mapping[str, Task]]
"""Function that finds the tasks of a run by id, for comparisons with gold; it gives {} if they are not available."""


def read_evidence(folder: Path, find_tasks: FindTasks = lambda run: {}, *, name: str = "") -> Evidence:
    """Data of a run under `name`, or under a name from its config. Raises StoreError if the folder holds no run."""
    run, curves, problems = _read_description(folder)
    calls: Mapping[str, CallFigures] | None = None
    transcripts: dict[str, Trajectory] = {}
    try:
        with TrajectoryStore.open(folder) as store:
            attempts = store.summaries(latest=False)
            worst = worst_tasks(attempts)
            calls = examine_run(store, find_tasks(run)) if attempts else None
            for each in worst[:WORST]:
                record = store.load(each.worst.id, tokens=False)
                grades = store.grades(each.worst.id)
                transcripts[record.id] = with_grade(record, grades[-1]) if grades else record
    except StoreError as error:
        if "is damaged" not in str(error):
            raise
        with TrajectoryStore.open(folder, damaged=True) as store:
            attempts = store.salvage()
        worst = worst_tasks(attempts)
        broken = str(error).partition(";")[0]
        problems.append(f"{broken}: the figures are those of the first {len(attempts)} episodes, as first graded")
    return Evidence(
        name=name or run_name(run.config) or run.folder.name,
        run=run,
        attempts=attempts,
        metrics=measure(attempts, calls),
        gates=gates_of(run, attempts),
        worst=worst,
        transcripts=transcripts,
        curves=curves,
        heldout=read_heldout(folder),
        judge=_judge(folder, attempts, problems),
        problems=tuple(problems),
    )


def worst_tasks(attempts: Sequence[EpisodeRow]) -> tuple[TaskFigures, ...]:
    """Tasks that were not solved in every scored trial, lowest mean score first."""
    trials: dict[str, list[EpisodeRow]] = {}
    for row in attempts:
        if row.latest and row.score is not None:
            trials.setdefault(row.task, []).append(row)
    figures = [
        TaskFigures(
            task=task,
            mean=math.fsum(row.score or 0.0 for row in rows) / len(rows),
            passed=sum(bool(row.success) for row in rows),
            trials=len(rows),
            worst=min(rows, key=lambda row: (row.score or 0.0, row.trial)),
        )
        for task, rows in trials.items()
    ]
    return tuple(
        sorted((each for each in figures if each.passed < each.trials), key=lambda each: (each.mean, each.task))
    )


def _read_description(folder: Path) -> tuple[Run, list[dict[str, Json]], list[str]]:
    """The run's record, the metrics of a training run, and problems: an unreadable record, or training that stopped
    early."""
    if (folder / TRAINING_FILE).exists():
        try:
            state = json.loads(read_foreign(folder, TRAINING_FILE))
            recipe, ended = state["recipe"], state.get("ended", _FINISHED)
            iteration = require_integer(state.get("iteration", 0), "iteration")
            config = {"env": recipe["env"], "agent": f"training '{recipe['name']}'", RECIPE: dict(recipe)}
        except (StoreError, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            return (
                _bare(folder),
                _drawn_rows(folder),
                [f"run folder {folder}: {TRAINING_FILE} cannot be read: {error!r}"],
            )
        bare = Run(folder=folder, created="", config=config, seeds=(recipe.get("seed", 0),), versions={}, git=None)
        stopped = [] if ended == _FINISHED else [f"training stopped after {iteration} iterations: {ended}"]
        run, unread = _with_start(bare)
        return run, _drawn_rows(folder), stopped + unread
    try:
        return open_run(folder), [], []
    except StoreError as error:
        if not (folder / "trajectories.sqlite").exists():
            raise
        return _bare(folder), [], [str(error)]


def _with_start(run: Run) -> tuple[Run, list[str]]:
    """The training run with what its ``run.json`` says of its start, and problems; older runs have no such file."""
    if not (run.folder / RUN_FILE).exists():
        return run, []
    try:
        start = open_run(run.folder)
    except StoreError as error:
        return run, [str(error)]
    config = {**start.config, **run.config}  # a run that was continued may have got a longer recipe
    return replace(run, created=start.created, config=config, versions=start.versions, git=start.git), []


def _judge(folder: Path, attempts: Sequence[EpisodeRow], problems: list[str]) -> dict[str, Json] | None:
    try:
        figures = load_judge(folder)
    except StoreError as error:
        problems.append(str(error))
        return None
    if figures is None:
        return None
    return figures | {"newest_grades": sum(row.latest and (row.grader or "").startswith("judge ") for row in attempts)}


def _bare(folder: Path) -> Run:
    return Run(folder=folder, created="", config={}, seeds=(), versions={}, git=None)


def _drawn_rows(folder: Path) -> list[dict[str, Json]]:
    """Rows of a training run's metrics, without those that hold a number that no axis can show."""
    return [row for row in read_metric_rows(folder) if all(map(_is_drawn, row.values()))]


def _is_drawn(value: Json) -> bool:
    """False for a number that no axis can show."""
    return not isinstance(value, int) or abs(value) < MAX_DRAWN
