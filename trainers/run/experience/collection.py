"""The rollouts of one iteration: the groups that the curriculum plans, and more of them in place of useless ones."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from gymcp.trainers.recipe.branching import MONITORED, PHASED, plays_trees
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curricula.choose import curriculum_metrics, turns_of
from gymcp.trainers.rollouts.curricula.monitoring import begin_monitoring, plan_after_monitoring
from gymcp.trainers.rollouts.curricula.phases import begin_phases, extend_groups, later_phases, share_episodes
from gymcp.trainers.rollouts.curricula.protocol import CurriculumState, GroupResult, PlannedGroup
from gymcp.trainers.rollouts.rollouts import describe_text
from gymcp.trainers.run.checkpoints import TrainingState
from gymcp.trainers.run.experience.recall import load_kept
from gymcp.trainers.run.experience.reflection import add_reflections
from gymcp.trainers.run.training_run import TrainingRun
from gymcp.types import Json, Task, Trajectory

SAMPLED_TOKENS = "tokens/sampled"
"""Metric of an iteration: tokens that the policy sampled in its episodes, branches included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """The rollouts of one iteration."""

    records: list[Trajectory]
    """First episodes; figures of the run count these alone."""
    tasks: Mapping[str, Task]
    """Task id -> task."""
    seconds: float
    curriculum: CurriculumState = field(default_factory=CurriculumState)
    """The state of the curriculum after these rollouts."""
    metrics: Mapping[str, Json] = field(default_factory=dict)
    """Metrics of the curriculum, and of trees."""
    branches: Sequence[Trajectory] = ()
    """Episodes that branched off the records, or off each other, with all steps of their paths."""
    forks: Mapping[str, tuple[str, int]] | None = None
    """Id of a branch -> id of the episode that it branched off, and the number of steps that they share; None: the
    recipe names no controller."""

    @property
    def with_branches(self) -> list[Trajectory]:
        """Each record, with its branches behind it."""
        by_tree: dict[tuple[str, int], list[Trajectory]] = {}
        for branch in self.branches:
            by_tree.setdefault((branch.task, branch.trial), []).append(branch)
        return [each for first in self.records for each in (first, *by_tree.get((first.task, first.trial), ()))]

    @property
    def scored(self) -> list[Trajectory]:
        """Records with a score: all but the episodes lost to infrastructure."""
        return [record for record in self.records if record.outcome.has_score]


async def collect(run: TrainingRun, state: TrainingState) -> Rollouts:
    """Sample the rollouts of the next iteration.

    With ``curriculum.refill``, groups that all scored alike are replaced by as many new ones, wave after wave, until
    ``rollout.groups`` are left that differ or the waves are used up (dynamic sampling, arXiv:2503.14476). DAPO draws
    three times the tasks at once instead, and goes on until the batch is full. With ``rollout.batch_tokens``, further
    waves are played until as many tokens were sampled.
    """
    recipe, started = run.inputs.recipe, time.perf_counter()
    curriculum, count, waves = state.curriculum, recipe.rollout.groups, 0
    wanted = find_wanted_tokens(recipe, run.log.rows)
    planned: list[PlannedGroup] = []
    results: list[GroupResult] = []
    records: list[Trajectory] = []
    branches: list[Trajectory] = []
    forks: dict[str, tuple[str, int]] | None = {} if plays_trees(recipe) else None
    tokens = reflected = 0
    while count > 0:
        groups, curriculum = run.curriculum.plan(curriculum, count)
        if recipe.replay.reflect:
            shown = add_reflections(groups, state.replay, recipe.replay.reflect, partial(load_kept, run))
            reflected += sum(one is not other for one, other in zip(groups, shown, strict=True))
            groups = shown
        if recipe.rollout.controller == PHASED:
            groups, played = await _play_phases(run, groups, state.iteration)
        elif recipe.rollout.controller == MONITORED:
            groups, played = await _play_monitored(run, groups, state.iteration)
        else:
            played = await _play_groups(run, groups, state.iteration)
        found = group_results(groups, played, recipe.rollout.episodes)
        curriculum = run.curriculum.observe(curriculum, found)
        planned, records, results = planned + groups, records + played, results + found
        if forks is not None:
            own, of_own = run.episodes.load_branches(played)
            branches, forks = branches + own, forks | of_own
        tokens = count_sampled_tokens([*records, *branches])
        waves += 1
        if wanted is not None:
            count = count_groups_to_fill(wanted, tokens, len(planned))
        elif waves <= recipe.curriculum.refill:
            count = recipe.rollout.groups - count_informative(planned, results)
        else:
            count = 0
    return Rollouts(
        records=records,
        branches=branches,
        forks=forks,
        tasks={group.task.id: group.task for group in planned},
        seconds=time.perf_counter() - started,
        curriculum=curriculum,
        metrics={
            SAMPLED_TOKENS: tokens,
            **curriculum_metrics(recipe, state.iteration, planned, curriculum, waves),
            **(branch_metrics(records, branches) if forks is not None else {}),
            **({"replay/reflected": reflected} if recipe.replay.reflect else {}),
        },
    )


async def _play_groups(
    run: TrainingRun, groups: Sequence[PlannedGroup], iteration: int, tree_episodes: int | None = None
) -> list[Trajectory]:
    jobs = run.episodes.rollout_jobs(groups, iteration)
    turns, policy = turns_of(run.inputs.recipe, iteration), run.sampler.policy
    return await run.episodes.rollouts(jobs, run.trainable, policy, turns=turns, tree_episodes=tree_episodes)


async def _play_phases(
    run: TrainingRun, groups: Sequence[PlannedGroup], iteration: int
) -> tuple[list[PlannedGroup], list[Trajectory]]:
    """The groups, each with the number of episodes that it has in the end, and the records."""
    recipe = run.inputs.recipe
    extended = begin_phases(recipe, groups)
    records = await _play_groups(run, extended, iteration)
    for count in later_phases(recipe, len(groups)):
        scores = [result.scores for result in group_results(extended, records, recipe.rollout.episodes)]
        counts = share_episodes(scores, count, recipe.rollout.branching.weight)
        further, extended = extend_groups(extended, counts)
        records += await _play_groups(run, further, iteration)
    return extended, records


async def _play_monitored(
    run: TrainingRun, groups: Sequence[PlannedGroup], iteration: int
) -> tuple[list[PlannedGroup], list[Trajectory]]:
    """The groups, each with the number of first episodes that it has in the end, and their records."""
    recipe, vocabulary = run.inputs.recipe, describe_text(run.trainable).vocabulary
    begun = begin_monitoring(recipe, groups)
    records = await _play_groups(run, begun, iteration, tree_episodes=1)
    further, extended = plan_after_monitoring(recipe, begun, records, vocabulary)
    for limit, parts in sorted(further.items()):
        records += await _play_groups(run, parts, iteration, tree_episodes=limit)
    return extended, records


def branch_metrics(records: Sequence[Trajectory], branches: Sequence[Trajectory]) -> dict[str, Json]:
    """Metrics of an iteration's trees: branches, those without a score, and the mean score of all leaves.

    The leaves were chosen by what happened, so their mean is no estimate of the policy's success.
    """
    scores = [each.score for each in (*records, *branches) if each.outcome.has_score and each.score is not None]
    lost = sum(not each.outcome.has_score for each in branches)
    leaves: dict[str, Json] = {"branches/leaf_reward": float(np.mean(scores))} if scores else {}
    return {"branches": len(branches), "branches/lost": lost, **leaves}


def group_results(planned: Sequence[PlannedGroup], records: Sequence[Trajectory], episodes: int) -> list[GroupResult]:
    """The result of each planned group, of so many episodes if it does not say how many, in the order of the plan.

    Lost episodes have no score.
    """
    scores = {(record.task, record.trial): record.score for record in records if record.outcome.has_score}
    found = []
    for group in planned:
        trials = range(group.first_trial, group.first_trial + (group.episodes or episodes))
        own = [scores.get((group.task.id, trial)) for trial in trials]
        found.append(GroupResult(kind=group.kind, scores=tuple(score for score in own if score is not None)))
    return found


def count_sampled_tokens(records: Sequence[Trajectory]) -> int:
    """Tokens that the policy sampled in these episodes; of a branch, those of its own steps."""
    return sum(record.usage.completion_tokens for record in records)


def find_wanted_tokens(recipe: Recipe, rows: Sequence[Mapping[str, Json]]) -> int | None:
    """Tokens that the next iteration should sample, so that the mean of all is ``rollout.batch_tokens``; None without.

    `rows`: the metrics of the run so far.
    """
    if not recipe.rollout.batch_tokens:
        return None
    played = [int(row.get(SAMPLED_TOKENS, 0)) for row in rows if row["iteration"] > 0]
    return recipe.rollout.batch_tokens * (len(played) + 1) - sum(played)


def count_groups_to_fill(wanted: int, tokens: int, groups: int) -> int:
    """Further groups that bring an iteration of so many tokens and groups nearest to the wanted number of tokens, if
    they are like its groups so far; 0 if those sampled none."""
    return max(0, round((wanted - tokens) * groups / tokens)) if tokens else 0


def count_informative(planned: Sequence[PlannedGroup], results: Sequence[GroupResult]) -> int:
    """Number of the planned groups that credit will not drop; those of one task are one group to it."""
    scores: dict[str, list[float]] = {}
    for group, result in zip(planned, results, strict=True):
        scores.setdefault(group.task.id, []).extend(result.scores)
    return sum(is_informative(scores[group.task.id]) for group in planned)


def is_informative(scores: Sequence[float]) -> bool:
    """False for the scores of a group that `DropUninformative` drops, and for a group that was lost."""
    return len(scores) == 1 or len(set(scores)) > 1
