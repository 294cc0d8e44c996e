"""The curriculum of a recipe, the turns of its episodes, and the tasks that it has planned so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.trainers.recipe.branching import ALLOCATING, MONITORED, PHASED, find_bounds
from gymcp.trainers.recipe.recipe import REPEATING, Recipe
from gymcp.trainers.rollouts.curricula.episode_allocation import AllocatedCurriculum
from gymcp.trainers.rollouts.curricula.failures import FailureCurriculum
from gymcp.trainers.rollouts.curricula.frontier import FrontierCurriculum
from gymcp.trainers.rollouts.curricula.protocol import Curriculum, CurriculumState, PlannedGroup
from gymcp.trainers.rollouts.curricula.sequence import SequentialCurriculum
from gymcp.trainers.rollouts.curricula.task_kinds import find_kinds
from gymcp.trainers.rollouts.curricula.vade import VadeCurriculum
from gymcp.trainers.rollouts.curriculum import repeated_tasks, tasks_in_sequence
from gymcp.types import Json, Task


def make_curriculum(env: LoadedEnv, recipe: Recipe) -> Curriculum:
    """The recipe's curriculum, with the numbers of episodes that its controller allocates.

    Raises ConfigError if it chooses among kinds of tasks and there are fewer than two, or if it repeats a number of
    generated tasks and the suite is fixed, or if tasks are chosen, or episodes allocated, among tasks that never come
    again.
    """
    rule, rollout = recipe.curriculum, recipe.rollout
    ordered = _make_order(env, recipe)
    if rollout.controller != ALLOCATING:
        return ordered
    by_task = rule.order == "sequence"
    if by_task and env.spec.more_tasks is not None and not recipe.tasks.pool:
        raise ConfigError(
            f"recipe '{recipe.name}': rollout.controller = '{ALLOCATING}' goes by each task's success so far, and every"
            " task is a new one; set tasks.pool to the number of tasks that are repeated, or curriculum.order to"
            " 'frontier', which knows the success of their kinds"
        )
    bounds = find_bounds(recipe)
    return AllocatedCurriculum(
        curriculum=ordered,
        by_task=by_task,
        episodes=rollout.episodes,
        fewest=bounds.fewest,
        most=bounds.most,
        memory=rule.memory,
    )


def _make_order(env: LoadedEnv, recipe: Recipe) -> Curriculum:
    rule = recipe.curriculum
    if rule.order in REPEATING:
        if recipe.tasks.pool and env.spec.more_tasks is None:
            raise ConfigError(
                f"recipe '{recipe.name}': tasks.pool is {recipe.tasks.pool}, and '{recipe.env}' has a fixed suite,"
                " which is repeated in any case; take it out"
            )
        return _make_vade(env, recipe) if rule.order == "vade" else SequentialCurriculum(env=env, recipe=recipe)
    kinds = find_kinds(env, recipe)
    if rule.order == "frontier":
        return FrontierCurriculum(
            kinds=kinds, seed=recipe.seed, target=rule.target, explore=rule.explore, memory=rule.memory
        )
    return FailureCurriculum(
        kinds=kinds, seed=recipe.seed, low=rule.low, high=rule.high, explore=rule.explore, memory=rule.memory
    )


def _make_vade(env: LoadedEnv, recipe: Recipe) -> VadeCurriculum:
    who, rollout = f"recipe '{recipe.name}': curriculum.order = 'vade'", recipe.rollout
    tasks = repeated_tasks(env, recipe)
    if not tasks:
        raise ConfigError(
            f"{who} goes by each task's success so far, and every task is a new one; set tasks.pool to the number of"
            " tasks that are repeated"
        )
    if len(tasks) <= rollout.groups:
        raise ConfigError(
            f"{who} chooses {rollout.groups} tasks for an iteration (rollout.groups) of {len(tasks)}: there must be"
            " more tasks than that, or fewer groups"
        )
    most = rollout.groups if rollout.controller == ALLOCATING else 1  # one task may get the episodes of all groups
    return VadeCurriculum(
        tasks=tasks, seed=recipe.seed, trials=most * rollout.episodes, memory=recipe.curriculum.memory
    )


def turns_of(recipe: Recipe, iteration: int) -> int:
    """Most turns of an episode of that iteration, counted from 0: they grow to ``rollout.max_turns``, then stay.

    Source: arXiv:2506.07976 (TTI), whose horizon is h i or h + i in iteration i = 1, 2, ...; here the sum is h + i - 1,
    so that both begin with h, and i counts every ``horizon_every`` iterations.
    """
    rule, most = recipe.curriculum, recipe.rollout.max_turns
    if not rule.start_turns:
        return most
    stage = iteration // rule.horizon_every
    turns = rule.start_turns * (1 + stage) if rule.horizon == "multiply" else rule.start_turns + stage
    return min(turns, most)


def tasks_so_far(env: LoadedEnv, recipe: Recipe, state: CurriculumState) -> Iterator[Task]:
    """All tasks that were planned before that state, and those of an iteration that was cut off after it.

    Tasks of one number come together, because the environment makes one of each kind at a time.
    """
    rollout = recipe.rollout
    under_way = rollout.groups * (1 + recipe.curriculum.refill)
    under_way += rollout.batch_tokens // rollout.episodes  # at most: an episode samples at least one token
    if recipe.curriculum.order == "sequence":
        yield from (task for task, _ in tasks_in_sequence(env, recipe, 0, state.groups + under_way))
        return
    if recipe.curriculum.order == "vade":
        yield from repeated_tasks(env, recipe)
        return
    kinds = find_kinds(env, recipe)
    counts = {kind: state.tally(kind).made + under_way for kind in kinds.names}
    for number in range(max(counts.values())):
        yield from (kinds.make_task(kind, number) for kind, count in counts.items() if number < count)


def curriculum_metrics(
    recipe: Recipe, iteration: int, planned: Sequence[PlannedGroup], state: CurriculumState, waves: int
) -> dict[str, Json]:
    """Metrics of an iteration's choice of tasks; empty for a plain sequence.

    ``allocation/fewest`` and ``allocation/most`` are the episodes of a group, with a controller that allocates them.
    ``share`` is the share of the iteration's groups that are of a kind, ``rate`` its expected success rate after them.
    """
    rule = recipe.curriculum
    metrics: dict[str, Json] = {"curriculum/turns": turns_of(recipe, iteration)} if rule.start_turns else {}
    if rule.refill or recipe.rollout.batch_tokens:
        metrics |= {"curriculum/waves": waves, "curriculum/groups": len(planned)}
    if recipe.rollout.controller in (ALLOCATING, PHASED, MONITORED):
        episodes = [group.episodes for group in planned]
        metrics |= {"allocation/fewest": min(episodes), "allocation/most": max(episodes)}
    if rule.order not in REPEATING:
        count = Counter(group.kind for group in planned)
        for kind, tally in sorted(state.kinds.items()):
            metrics[f"curriculum/{kind}/share"] = count[kind] / len(planned)
            metrics[f"curriculum/{kind}/rate"] = tally.rate
    return metrics
