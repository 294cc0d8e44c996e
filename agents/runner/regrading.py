"""Grading recorded episodes again, offline: good verdicts are never replaced by failures of a grader."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from gymcp.agents.strategies.budgets import RunBudget
from gymcp.envs.generated_tasks import generate_task, read_generated
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError, PolicyInfraError
from gymcp.evaluators.graders.dynamic import GROUND_TRUTHS
from gymcp.evaluators.grading import apply_grader, remove_grade
from gymcp.evaluators.judge.asking import EpisodeAnswers, ask_judge
from gymcp.outcome import Outcome
from gymcp.protocols import Grader, Judge
from gymcp.store import EpisodeRow, TrajectoryStore
from gymcp.types import Json, Message, ModelUsage, Sampling, Task, Trajectory

ASKED_AT_A_TIME = 16
"""Episodes that are in memory at a time while a judge is asked about them."""
MAX_LOADED = 8
"""Episodes that are loaded to find one to try a grader on."""

Truths = Mapping[str, Mapping[str, Json]]
"""Id of an episode -> ground truths for its grader."""


@dataclass(slots=True)
class PaidJudge:
    """A judge that is paid by the run, and not asked any more once the money is spent.

    A question waits as long as those under way may spend what is left, each as much as the dearest answer so far. So
    they exceed the limit by less than one answer, as if they were asked one after another, unless prices jump.
    """

    judge: Judge
    budget: RunBudget
    has_refused: bool = False
    """True once a question was not asked for want of money."""
    _under_way: int = 0
    """Questions that have no answer yet."""
    _dearest: float = math.inf
    """Cost of the dearest answer; infinite before the first one."""
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def ask(self, messages: Sequence[Message], sampling: Sampling) -> tuple[str, ModelUsage | None]:
        """The judge's answer. Raises PolicyInfraError if the money is spent, and what the judge raises."""
        async with self._changed:
            await self._changed.wait_for(self._need_not_wait)
            if self.budget.is_spent:
                self.has_refused = True
                raise PolicyInfraError("it was not asked, because the money of the run (--max-cost) is spent")
            self._under_way += 1
        try:
            text, spent = await self.judge.ask(messages, sampling)
            cost = spent.cost if spent else 0.0
            self.budget.spend(cost)
            self._dearest = cost if math.isinf(self._dearest) else max(cost, self._dearest)
            return text, spent
        finally:
            self._under_way -= 1
            async with self._changed:
                self._changed.notify_all()

    def _need_not_wait(self) -> bool:
        is_alone = not self._under_way
        return is_alone or self.budget.is_spent or self.budget.has_room_for(self._under_way * self._dearest)


async def ask_again(env: LoadedEnv, store: TrajectoryStore, rows: Sequence[EpisodeRow]) -> dict[str, EpisodeAnswers]:
    """Ask the environment's judge what graders lack on these episodes; by id, those that needed an answer.

    Empty without a judge. Answers that are on record are not asked for again. Raises ConfigError if the environment
    does not make the task of an episode any more.
    """
    if (seat := env.judge) is None:
        return {}
    tasks = _tasks_by_id(env)
    found: dict[str, EpisodeAnswers] = {}

    async def ask(task: Task, record: Trajectory) -> None:
        asked = await ask_judge(env.spec.grade, task, record, store.state, seat)
        if asked.truths:
            found[record.id] = asked

    for start in range(0, len(rows), ASKED_AT_A_TIME):
        # before the group, which would raise an ExceptionGroup for a task that is not made any more
        records = [remove_grade(_load(store, row, {})) for row in rows[start : start + ASKED_AT_A_TIME]]
        known = [(task, record) for record in records if (task := _find_task(env, tasks, record)) is not None]
        async with asyncio.TaskGroup() as group:
            for task, record in known:
                group.create_task(ask(task, record))
    return found


def try_grader(
    env: LoadedEnv,
    store: TrajectoryStore,
    rows: Sequence[EpisodeRow],
    *,
    grader: Grader | None = None,
    refresh: bool = False,
) -> None:
    """Grade one episode that has a score, and record nothing. Raises ConfigError if the grader fails on it.

    A failure on an episode without a score, such as one that a judge gave no verdict on, loses nothing and says nothing
    of the others. So without an episode that has a score, nothing is tried; nor if the environment's grader is to be
    tried and is not known to have scored any, among many that other graders have.
    """
    scored = [row for row in rows if row.outcome.has_score and row.outcome is not Outcome.AGENT_ERROR]
    row = _choose_trial(env, store, scored) if grader is None else next(iter(scored), None)
    if row is None:
        return
    graded = _grade_row(env, _tasks_by_id(env), store, row, grader, refresh=refresh)
    if graded.outcome is Outcome.GRADER_ERROR:
        raise ConfigError(
            f"grade: tried on {row.task} trial {row.trial}: {graded.reason}; nothing was recorded, mend it and grade"
            " again"
        )


def _choose_trial(env: LoadedEnv, store: TrajectoryStore, scored: Sequence[EpisodeRow]) -> EpisodeRow | None:
    """An episode, among these with a score, that the environment's grader has scored; else the first, else None.

    If all newest scores are of other graders, up to `MAX_LOADED` episodes are looked at as they were recorded; None if
    there are more of them, and none of these had a score: the others are unknown.
    """
    own = _name_own_grader(env)
    few = scored[:: -(-len(scored) // MAX_LOADED) or 1]
    newest = (row for row in scored if row.grader in (None, own))
    later = (row for row in scored if _was_scored_later(store, row, own))
    recorded = (row for row in few if store.load(row.id, tokens=False).outcome.has_score)
    return next(chain(newest, later, recorded), scored[0] if scored and len(few) == len(scored) else None)


def _was_scored_later(store: TrajectoryStore, row: EpisodeRow, grader: str) -> bool:
    """True if this grader gave the episode a score after it was recorded."""
    return any(grade.grader == grader and grade.outcome.has_score for grade in store.grades(row.id))


def regrade(
    env: LoadedEnv,
    store: TrajectoryStore,
    rows: Iterable[EpisodeRow],
    *,
    grader: Grader | None = None,
    name: str = "",
    refresh: bool = False,
    answered: Truths | None = None,
    only_changes: bool = False,
) -> Iterator[tuple[EpisodeRow, Trajectory]]:
    """Grade each row again, add the verdict to the store and yield both. Raises ConfigError for an unknown task.

    The grader is the environment's, or another one, recorded in the store under `name`. The ground truths that a
    dynamic grader has looked up before are used again, unless `refresh`; `answered` are further ones. Infrastructure
    failures and cancelled episodes have nothing to grade: the store refuses them. With `only_changes`, a verdict that
    says what the newest one says is not recorded. If the grader fails on an episode
    that has a score, its verdict is yielded as ``grader_error`` and not recorded: the episode keeps the verdict that it
    has.
    """
    by = _name_own_grader(env) if grader is None else name
    tasks = _tasks_by_id(env)
    for row in rows:
        graded = _grade_row(env, tasks, store, row, grader, refresh=refresh, more=(answered or {}).get(row.id, {}))
        if not fails_on(row, graded) and not (only_changes and _says_the_same(row, graded)):
            store.add_grade(graded, grader=by, ground_truths=graded.provenance.get(GROUND_TRUTHS, {}))
        yield row, graded


def _name_own_grader(env: LoadedEnv) -> str:
    """Name and version under which the grades of the environment's own grader are recorded."""
    return f"{env.spec.name}/{env.spec.version}"


def fails_on(row: EpisodeRow, graded: Trajectory) -> bool:
    """True if the grader failed on an episode that has a score already."""
    return graded.outcome is Outcome.GRADER_ERROR and row.outcome.has_score


def _says_the_same(row: EpisodeRow, graded: Trajectory) -> bool:
    """True if the verdict is the one that the episode has."""
    one, other = ((each.outcome, each.score, each.components, each.reason) for each in (row, graded))
    return one == other


def _tasks_by_id(env: LoadedEnv) -> Mapping[str, Task]:
    return {task.id: task for task in env.suite.tasks}


def _grade_row(
    env: LoadedEnv,
    tasks: Mapping[str, Task],
    store: TrajectoryStore,
    row: EpisodeRow,
    grader: Grader | None,
    *,
    refresh: bool,
    more: Mapping[str, Json] | None = None,
) -> Trajectory:
    """The episode with the grader's verdict, unrecorded. `tasks`: those of the environment, by id."""
    recorded = _load(store, row, more or {}, refresh=refresh)
    if (task := _find_task(env, tasks, recorded)) is None:
        raise ConfigError(f"suite '{env.suite.name}': no task '{row.task}', which the run has an episode of")
    return apply_grader(grader or env.spec.grade, task, recorded, store.state)


def _find_task(env: LoadedEnv, tasks: Mapping[str, Task], recorded: Trajectory) -> Task | None:
    """The task of the episode: one of `tasks`, by id, or made again as its record says; None if there is none."""
    if (task := tasks.get(recorded.task)) is not None:
        return task
    if (wanted := read_generated(recorded.provenance)) is None:
        return None
    generated = generate_task(env.spec, wanted)
    return generated if generated.id == recorded.task else None


def _load(store: TrajectoryStore, row: EpisodeRow, more: Mapping[str, Json], *, refresh: bool = False) -> Trajectory:
    """The recorded episode with the ground truths that were looked up for it, unless `refresh`, and `more`."""
    recorded = store.load(row.id)
    known = {} if refresh else {**recorded.provenance.get(GROUND_TRUTHS, {}), **store.ground_truths(row.id)}
    truths = {**known, **more}
    if truths or refresh:
        recorded = replace(recorded, provenance={**recorded.provenance, GROUND_TRUTHS: truths})
    return recorded
