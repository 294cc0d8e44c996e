"""Evaluation during training: the trained model's episodes on held-out tasks, and their metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gymcp.agents.runner.rollout import Job
from gymcp.envs.tool_costs import ToolCosts
from gymcp.evaluators.metrics import calls_beyond_gold
from gymcp.evaluators.statistics import mean_ci95
from gymcp.protocols import Policy
from gymcp.seeds import derive_seed
from gymcp.trainers.recipe.model import TrainableModel
from gymcp.trainers.rollouts.curriculum import heldout_tasks
from gymcp.trainers.rollouts.playing import PlaySettings
from gymcp.trainers.rollouts.rollouts import TrainingEpisodes, cost_metrics
from gymcp.types import Json, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutEvaluation:
    """Results of one evaluation of the policy."""

    metrics: Mapping[str, Json]
    success: Mapping[str, Mapping[str, bool]]
    """Split -> task id -> success; a task whose episode has no score is left out."""


async def evaluate_heldout(
    episodes: TrainingEpisodes, trainable: TrainableModel, policy: Policy, *, final: bool
) -> HeldoutEvaluation:
    """Results on held-out tasks. `final`: with the splits and tasks of the first and the last evaluation."""
    recipe, costs = episodes.recipe, episodes.env.spec.costs
    rule = recipe.evaluation
    most = rule.final_tasks if final and rule.final_tasks else rule.tasks
    metrics: dict[str, Json] = {}
    success: dict[str, dict[str, bool]] = {}
    for split in rule.final_splits if final and rule.final_splits else rule.splits:
        tasks = heldout_tasks(episodes.env, recipe, split, most)
        jobs = [Job(task=task, trial=0, seed=derive_seed(recipe.seed, task.id, 0)) for task in tasks]
        settings = PlaySettings(temperature=rule.temperature, turns=recipe.rollout.max_turns, is_heldout=True)
        records = await episodes.play_trained(trainable, policy, settings, jobs)
        metrics |= {f"test/{split}/{name}": value for name, value in _evaluation_metrics(records, jobs, costs).items()}
        success[split] = {record.task: bool(record.success) for record in records if record.outcome.has_score}
    return HeldoutEvaluation(metrics=metrics, success=success)


def _evaluation_metrics(records: Sequence[Trajectory], jobs: Sequence[Job], costs: ToolCosts) -> dict[str, Json]:
    """Metrics of one split: calls and their costs, success with its 95 % interval, and success by tag."""
    metrics = _call_metrics(records, jobs, costs)
    scores = {record.task: [float(record.success or 0)] for record in records if record.outcome.has_score}
    interval = mean_ci95(scores)
    if interval is not None:
        mean = float(np.mean([value for of_task in scores.values() for value in of_task]))
        metrics |= {"success": mean, "low": interval.low, "high": interval.high}
    metrics |= {"scored": len(scores), "tasks": len(jobs)}
    for tag in sorted({tag for job in jobs for tag in job.task.tags}):
        with_tag = [scores[job.task.id][0] for job in jobs if tag in job.task.tags and job.task.id in scores]
        metrics[tag] = float(np.mean(with_tag)) if with_tag else None
    return metrics


def _call_metrics(records: Sequence[Trajectory], jobs: Sequence[Job], costs: ToolCosts) -> dict[str, Json]:
    """Mean tool calls, calls beyond the gold calls and components: over scored episodes, and over successes.

    Costs are those of scored episodes.
    """
    tasks = {job.task.id: job.task for job in jobs}
    scored = [record for record in records if record.outcome.has_score]
    metrics = cost_metrics(scored, costs) if scored else {}
    solved = [record for record in scored if record.success]
    for name, chosen in (("calls", scored), ("calls_of_solved", solved)):
        if chosen:
            beyond = [calls_beyond_gold(tasks[record.task], record) for record in chosen]
            metrics[name] = float(np.mean([record.usage.tool_calls for record in chosen]))
            metrics[f"{name}_beyond_gold"] = float(np.mean(beyond))
    for prefix, chosen in (("component", scored), ("component_of_solved", solved)):
        for name in sorted({name for record in chosen for name in record.components}):
            metrics[f"{prefix}/{name}"] = float(np.mean([record.components.get(name, 0.0) for record in chosen]))
    return metrics
