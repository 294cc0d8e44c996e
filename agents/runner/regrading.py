"""Grading recorded episodes again, offline: good verdicts are never replaced by failures of a grader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.evaluators.graders.dynamic import GROUND_TRUTHS
from gymcp.evaluators.grading import apply_grader
from gymcp.outcome import Outcome
from gymcp.protocols import Grader
from gymcp.store import EpisodeRow, TrajectoryStore
from gymcp.types import Task, Trajectory


def try_grader(
    env: LoadedEnv,
    store: TrajectoryStore,
    rows: Sequence[EpisodeRow],
    *,
    grader: Grader | None = None,
    refresh: bool = False,
) -> None:
    """Grade one episode and record nothing. Raises ConfigError if the grader fails on it.

    It is the first episode that `regrade` would ask the grader about.
    """
    row = next((row for row in rows if row.outcome is not Outcome.AGENT_ERROR), None)
    if row is None:
        return
    graded = _grade_row(env, _tasks_by_id(env), store, row, grader, refresh=refresh)
    if graded.outcome is Outcome.GRADER_ERROR:
        raise ConfigError(
            f"grade: tried on {row.task} trial {row.trial}: {graded.reason}; nothing was recorded, mend it and grade"
            " again"
        )


def regrade(
    env: LoadedEnv,
    store: TrajectoryStore,
    rows: Iterable[EpisodeRow],
    *,
    grader: Grader | None = None,
    name: str = "",
    refresh: bool = False,
) -> Iterator[tuple[EpisodeRow, Trajectory]]:
    """Grade each row again, add the verdict to the store and yield both. Raises ConfigError for an unknown task.

    The grader is the environment's, or another one, recorded in the store under `name`. The ground truths that a
    dynamic grader has looked up before are used again, unless `refresh`. Infrastructure failures and cancelled episodes
    have nothing to grade: the store refuses them. If the grader fails on an episode that has a score, its verdict is
    yielded as ``grader_error`` and not recorded: the episode keeps the verdict that it has.
    """
    by = f"{env.spec.name}/{env.spec.version}" if grader is None else name
    tasks = _tasks_by_id(env)
    for row in rows:
        graded = _grade_row(env, tasks, store, row, grader, refresh=refresh)
        if not fails_on(row, graded):
            store.add_grade(graded, grader=by, ground_truths=graded.provenance.get(GROUND_TRUTHS, {}))
        yield row, graded


def fails_on(row: EpisodeRow, graded: Trajectory) -> bool:
    """True if the grader failed on an episode that has a score already."""
    return graded.outcome is Outcome.GRADER_ERROR and row.outcome.has_score


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
) -> Trajectory:
    """The episode with the grader's verdict, unrecorded. `tasks`: those of the environment, by id."""
    if row.task not in tasks:
        raise ConfigError(f"suite '{env.suite.name}': no task '{row.task}', which the run has an episode of")
    recorded = store.load(row.id)
    truths = {} if refresh else {**recorded.provenance.get(GROUND_TRUTHS, {}), **store.ground_truths(row.id)}
    if truths or refresh:
        recorded = replace(recorded, provenance={**recorded.provenance, GROUND_TRUTHS: truths})
    return apply_grader(grader or env.spec.grade, tasks[row.task], recorded, store.state)
