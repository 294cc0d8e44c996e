"""The choice of tasks and of earlier episodes in words, with the numbers of the recipe."""

from __future__ import annotations

from collections.abc import Iterator

from gymcp.envs.spec import LoadedEnv
from gymcp.trainers.recipe.branching import ALLOCATING, MONITORED, PHASED, find_bounds, find_first_episodes
from gymcp.trainers.recipe.recipe import REPEATING, Recipe
from gymcp.trainers.rollouts.curricula.monitoring import count_leaves
from gymcp.trainers.rollouts.curricula.phases import CONFIDENCE, PHASES
from gymcp.trainers.rollouts.curricula.task_kinds import find_kinds
from gymcp.trainers.rollouts.curricula.vade import UNPLAYED_MEMORY
from gymcp.trainers.rollouts.curriculum import repeated_tasks


def explain_experience(recipe: Recipe, env: LoadedEnv) -> list[str]:
    """Lines on curriculum and replay; empty for a recipe that plays its tasks in sequence and replays nothing.

    Raises ConfigError if the curriculum has no kinds of tasks to choose among.
    """
    return [
        *_explain_order(recipe, env),
        *_explain_allocation(recipe),
        *_explain_batch(recipe),
        *_explain_replay(recipe),
    ]


def _explain_order(recipe: Recipe, env: LoadedEnv) -> Iterator[str]:
    rule = recipe.curriculum
    if recipe.tasks.pool:
        yield f"tasks: {recipe.tasks.pool} different ones, which are repeated"
    if rule.order == "vade":
        yield (
            f"tasks: the {recipe.rollout.groups} of {len(repeated_tasks(env, recipe))} with the largest p (1 - p)^2, p"
            " drawn from Beta(solved + 1, failed + 1) of the task"
        )
        yield (
            f"  earlier episodes count {rule.memory:g} times with each group of the task, {UNPLAYED_MEMORY:g} times in"
            " an iteration without one"
        )
    if rule.order in REPEATING:
        return
    kinds = len(find_kinds(env, recipe).names)
    rate = "p = (solved + 1) / (solved + failed + 2) of the kind"
    if rule.order == "frontier":
        weight = f"p^{2 * rule.target:g} (1 - p)^{2 - 2 * rule.target:g}"
        yield f"tasks: each group's kind is one of {kinds}, drawn with weight {weight}; {rule.explore:g} of them evenly"
    else:
        yield (
            f"tasks: a new one of the kind of each group that was not solved by all, if p is from {rule.low:g} to"
            f" {rule.high:g}; the others, at least {rule.explore:g}, of {kinds} kinds in turn"
        )
    yield f"  {rate}; with each group earlier ones count {rule.memory:g} times"


def _explain_allocation(recipe: Recipe) -> Iterator[str]:
    rollout = recipe.rollout
    total = rollout.groups * rollout.episodes
    if rollout.controller == PHASED:
        yield (
            f"episodes: {find_first_episodes(recipe)} of each task, then one at a time, in {PHASES - 1} further phases,"
            f" up to {total} an iteration: to the task with the largest h(n) - h(n + 1) +"
            f" {rollout.branching.weight:g} sqrt(log(1 + T) / n)"
        )
        yield (
            f"  h: half of the {CONFIDENCE:.0%} confidence interval of the task's mean score after n episodes;"
            " T: episodes of all tasks"
        )
    if rollout.controller == MONITORED:
        leaves, sensitivity = count_leaves(recipe), rollout.branching.sensitivity
        yield (
            f"episodes: {leaves} of each task; after one that is measured, {leaves} sigmoid({sensitivity:g} (H - mean"
            " H_t)) rounded down, plus 1, are first ones, that one included, and the others branch off them"
        )
        yield "  H, H_t: entropies of its first answer, and of its answers to results"
    if rollout.controller == ALLOCATING:
        bounds, whose = find_bounds(recipe), "task" if recipe.curriculum.order in REPEATING else "kind"
        yield (
            f"episodes: {bounds.fewest} to {bounds.most} of each task, {total} an iteration:"
            " the N with the largest sum of (1 - p^N - (1 - p)^N) p (1 - p)^2"
        )
        yield (
            f"  p = (solved + 1) / (solved + failed + 2) of the {whose}; with each group earlier ones count"
            f" {recipe.curriculum.memory:g} times"
        )


def _explain_batch(recipe: Recipe) -> Iterator[str]:
    rule = recipe.curriculum
    if rule.start_turns:
        step = rule.start_turns if rule.horizon == "multiply" else 1
        yield (
            f"turns: at most {rule.start_turns} in the first iteration, {step} more every {rule.horizon_every}, up to"
            f" {recipe.rollout.max_turns}"
        )
    if recipe.rollout.batch_tokens:
        yield (
            f"batch: {recipe.rollout.groups} groups, then further ones, to the number of groups that comes nearest to"
            f" {recipe.rollout.batch_tokens:,} sampled tokens"
        )
    if rule.refill:
        yield f"refill: groups that all scored alike are replaced, in at most {rule.refill} further waves an iteration"


def _explain_replay(recipe: Recipe) -> Iterator[str]:
    rule = recipe.replay
    if not rule.keep:
        return
    when = (
        "a group without a success recalls solved ones"
        if rule.recall == "failed"
        else "a group that all scored alike recalls ones that scored otherwise"
    )
    age = f", at most {rule.max_age} iterations old" if rule.max_age else ""
    start = f"; at the start those of {rule.run}" if rule.run else ""
    most = f"at most {rule.per_group} in place of new ones{age}"
    yield f"replay: {rule.keep} episodes kept of each task; {when}, {most}{start}"
    if rule.reflect:
        yield (
            f"reflection: while only failures of a task are kept, its prompt begins with the last {rule.reflect} calls"
            " of the newest one"
        )
