"""All data of one run for a report, read from its folder. Files that cannot be read become problems; the rest is
used."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gymcp.errors import StoreError
from gymcp.evaluators.equal_budget import lacks_judged_s
from gymcp.evaluators.faulty_tasks import FaultyTask, find_faulty, find_list
from gymcp.evaluators.judge.answers import read_answers, usage_of_grader
from gymcp.evaluators.judge.coverage import judge_coverage
from gymcp.evaluators.judge.record import load_judge
from gymcp.evaluators.metrics import (
    MIN_COVERAGE,
    CallFigures,
    Metrics,
    PriceSteps,
    Rate,
    TreeFigures,
    coverage_floor,
    examine_run,
    explain_low_coverage,
    measure,
    measure_trees,
    rate,
    refuse_held_out,
)
from gymcp.evaluators.metrics.user_audit import UserAudit, audit_users
from gymcp.evaluators.names import UPPER_BOUND_KEY, mark_upper_bound, run_name
from gymcp.evaluators.report.gates import Gate, gates_of
from gymcp.evaluators.training_curves import HeldOut, read_held_out
from gymcp.store import EpisodeRow, Run, TrajectoryStore, open_run
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
WORST_TASKS = 8
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
class CreditAdvice:
    """Sources of the credit of the run's steps, and advice for training on such episodes."""

    advice: tuple[str, ...]
    """Sentences, the most important first."""
    figures: tuple[tuple[str, str], ...]
    """(name, value) of each figure that the advice rests on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    name: str
    """Short name, unique in the report; marked if the run's success is an upper bound."""
    run: Run
    """The run's record; the recipe of a training run is that of its ``training.json``."""
    attempts: Sequence[EpisodeRow]
    metrics: Metrics
    gates: tuple[Gate, ...]
    worst: tuple[TaskFigures, ...]
    """Tasks with a score below 1, lowest mean first."""
    transcripts: Mapping[str, Trajectory]
    """Transcripts of the first `WORST_TASKS` of them, by trajectory id."""
    curves: Sequence[Mapping[str, Json]] = ()
    """Rows of metrics of a training run."""
    heldout: Sequence[HeldoutResult] = ()
    """Success by task of a training run's evaluations."""
    judge: Mapping[str, Json] | None = None
    """Figures that ``gymcp judge`` wrote, and the number of newest grades that are a judge's; None: no judge was
    used."""
    problems: tuple[str, ...] = field(default=())
    faulty: FaultyTasks | None = None
    """Tasks that are known to be faulty upstream; None if the suite has no list."""
    user_audit: UserAudit | None = None
    """Audit of a user that a model played; None for another user, or if the tasks are not at hand."""
    user_transcripts: Mapping[str, Trajectory] = field(default_factory=dict)
    """Transcripts of the first `WORST_TASKS` episodes in which the audit found something, by trajectory id."""
    min_coverage: float = MIN_COVERAGE
    """Share of the episodes that must have a score for a headline figure."""
    credit: CreditAdvice | None = None
    """None if it was not asked for, or if the run has no groups of episodes to compare."""
    trees: TreeFigures | None = None
    """Figures of episodes that branched; None if none did."""
    lacks_judged_s: bool = False
    """True for a search whose episodes lack the seconds of its judge or trained head."""
    export: str = ""
    """Address of the run's export of the viewer, from the folder of the report; empty if there is none."""

    @property
    def refusal(self) -> str:
        """Reason why the success of the run is no headline figure; empty if it is one.

        Practice episodes of a training run are no headline.
        """
        if self.recipe is not None:
            return ""
        lost = [row for row in self.rows if row.score is None]
        return explain_low_coverage(self.metrics.overall, self.min_coverage, lost=lost, folder=str(self.run.folder))

    def refuse_held_out(self, held: HeldOut) -> str:
        """Reason why success on a held-out split is no headline figure; empty if it is one, or if that is unknown."""
        return refuse_held_out(held.newest, self.min_coverage, str(self.run.folder))

    @property
    def refusals(self) -> list[str]:
        """The reasons why figures of the run are no headline; of a training run, after the names of splits."""
        if self.recipe is None:
            return [self.refusal] if self.refusal else []
        splits = read_held_out(self.curves, self.heldout)
        return [f"held out, {held.split}: {why}" for held in splits if (why := self.refuse_held_out(held))]

    @property
    def rows(self) -> list[EpisodeRow]:
        """The attempts that count."""
        return [row for row in self.attempts if row.latest]

    @property
    def recipe(self) -> Mapping[str, Json] | None:
        """Recipe of a training run; None for any other run."""
        recipe = self.run.config.get(RECIPE)
        return recipe if isinstance(recipe, Mapping) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyTasks:
    """Tasks of a run that are known to be faulty upstream."""

    package: str
    """Package and version that the list is about."""
    checked: str
    """Day on which the list was last checked."""
    listed: int
    """Number of tasks in the list, whether the run has them or not."""
    tasks: Mapping[str, FaultyTask]
    """Task id of the run -> its fault."""
    everything: Rate
    """Success with the faulty tasks."""
    without: Rate
    """Success without the faulty tasks."""
    left_out: bool
    """True if the other figures of the report are without these tasks."""


FindTasks = Callable[[Run], Mapping[str, Task]]
"""Function that finds the tasks of a run by id, for comparisons with gold; it gives {} if they are not available."""
FindPrices = Callable[[Run], PriceSteps]
"""Function that finds how the environment of a run prices calls."""
FindCredit = Callable[[Path, Mapping[str, Task]], CreditAdvice | None]
"""Function from a run folder and its tasks by id to advice on credit."""


def read_evidence(
    folder: Path,
    find_tasks: FindTasks = lambda run: {},
    *,
    name: str = "",
    min_coverage: float | None = None,
    without_faulty: bool = False,
    find_credit: FindCredit = lambda folder, tasks: None,
    find_prices: FindPrices = lambda run: lambda steps: {},
) -> Evidence:
    """Data of a run under `name`, or under a name from its config. Raises StoreError if the folder holds no run.

    `min_coverage`: coverage floor of the headline; None: that of the run's config, else the default one.
    `without_faulty`: leave out the tasks that are known to be faulty upstream.
    """
    run, curves, problems = _read_description(folder)
    calls: Mapping[str, CallFigures] | None = None
    transcripts, flagged = dict[str, Trajectory](), dict[str, Trajectory]()
    audit: UserAudit | None = None
    credit: CreditAdvice | None = None
    trees: TreeFigures | None = None
    try:
        with TrajectoryStore.open(folder) as store:
            faulty, attempts = _split_faulty(run, store.summaries(latest=False), leave_out=without_faulty)
            trees = _measure_trees(store, attempts, problems)
            tasks = find_tasks(run)
            calls = examine_run(store, tasks, find_prices(run)) if attempts else None
            transcripts = _load_graded(store, [each.worst.id for each in worst_tasks(attempts)[:WORST_TASKS]])
            if run.config.get("user_policy"):
                audit = _audit_users(store, tasks, attempts)
                flagged = _load_flagged(store, audit)
        credit = find_credit(folder, tasks)
    except StoreError as error:
        if "is damaged" not in str(error):
            raise
        with TrajectoryStore.open(folder, damaged=True) as store:
            faulty, attempts = _split_faulty(run, store.salvage(), leave_out=without_faulty)
        broken = str(error).partition(";")[0]
        problems.append(f"{broken}: the figures are those of the first {len(attempts)} episodes, as first graded")
    return Evidence(
        name=mark_upper_bound(name or run_name(run.config) or run.folder.name, run.config.get(UPPER_BOUND_KEY)),
        run=run,
        attempts=attempts,
        metrics=measure(attempts, calls),
        gates=gates_of(run, attempts),
        worst=worst_tasks(attempts),
        transcripts=transcripts,
        curves=curves,
        heldout=read_heldout(folder),
        judge=_judge(folder, run, attempts, problems),
        problems=tuple(problems),
        faulty=faulty,
        user_audit=audit,
        user_transcripts=flagged,
        min_coverage=coverage_floor(run.config, min_coverage),
        credit=credit,
        trees=trees,
        lacks_judged_s=lacks_judged_s(run),
    )


def _split_faulty(
    run: Run, attempts: Sequence[EpisodeRow], *, leave_out: bool
) -> tuple[FaultyTasks | None, list[EpisodeRow]]:
    """The faulty tasks of a run, and the attempts that count: all, or with `leave_out` those at the other tasks."""
    listed = find_list(run.config)
    if listed is None:
        return None, list(attempts)
    tasks = find_faulty(listed, dict.fromkeys(row.task for row in attempts))
    sound = [row for row in attempts if row.task not in tasks]
    faulty = FaultyTasks(
        package=listed.package,
        checked=listed.checked,
        listed=len(listed.tasks),
        tasks=tasks,
        everything=rate([row for row in attempts if row.latest]),
        without=rate([row for row in sound if row.latest]),
        left_out=leave_out,
    )
    return faulty, sound if leave_out else list(attempts)


def _audit_users(store: TrajectoryStore, tasks: Mapping[str, Task], attempts: Sequence[EpisodeRow]) -> UserAudit | None:
    rows = {row.id: row for row in attempts if row.latest}
    return audit_users(store.iter_trajectories(latest=True, tokens=False), tasks, rows)


def _measure_trees(store: TrajectoryStore, attempts: Sequence[EpisodeRow], problems: list[str]) -> TreeFigures | None:
    """Figures of trees; None, and a problem, if the branches cannot be read."""
    try:
        return measure_trees(attempts, store.branches(), store.stopped_leaves())
    except StoreError as error:
        if "is damaged" in str(error):
            raise
        problems.append(f"{error}: the figures of trees are missing")
        return None


def _load_flagged(store: TrajectoryStore, audit: UserAudit | None) -> dict[str, Trajectory]:
    """The first episodes in which the audit found something, by id."""
    found = dict.fromkeys(finding.trajectory for finding in (audit.findings if audit else ()))
    return _load_graded(store, list(found)[:WORST_TASKS])


def _load_graded(store: TrajectoryStore, ids: Sequence[str]) -> dict[str, Trajectory]:
    return {id: store.load(id, tokens=False, graded=True) for id in ids}


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


def _judge(folder: Path, run: Run, attempts: Sequence[EpisodeRow], problems: list[str]) -> dict[str, Json] | None:
    """Figures of ``gymcp judge``, under ``grader`` those of the judge that the environment's grader asks, and under
    ``search`` those of the same judge, if a search asks it."""
    figures: dict[str, Json] = {}
    try:
        if (recorded := load_judge(folder)) is not None:
            grades = sum(row.latest and (row.grader or "").startswith("judge ") for row in attempts)
            figures = recorded | {"newest_grades": grades}
    except StoreError as error:
        problems.append(str(error))
    policy = run.config.get("judge")
    if "search_rubric" in run.config:
        figures["search"] = {"policy": policy, "rubric": run.config["search_rubric"], **_count_answers(folder)}
    if (coverage := judge_coverage(attempts)) is not None:
        figures["grader"] = {
            "policy": policy if isinstance(policy, str) else None,
            **coverage.object(),
            **_count_answers(folder),
        }
    return figures or None


def _count_answers(folder: Path) -> dict[str, Json]:
    """Number, tokens and cost of the answers to the environment's grader and to a search."""
    return usage_of_grader(read_answers(folder))


def _bare(folder: Path) -> Run:
    return Run(folder=folder, created="", config={}, seeds=(), versions={}, git=None)


def _drawn_rows(folder: Path) -> list[dict[str, Json]]:
    """Rows of a training run's metrics, without those that hold a number that no axis can show."""
    return [row for row in read_metric_rows(folder) if all(map(_is_drawn, row.values()))]


def _is_drawn(value: Json) -> bool:
    """False for a number that no axis can show."""
    return not isinstance(value, int) or abs(value) < MAX_DRAWN
