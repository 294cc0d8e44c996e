"""The driver's files that the episodes of ``gymcp train --ray`` need on its nodes."""

from __future__ import annotations

from pathlib import Path

from gymcp.cli.evaluation.cluster.needed_files import add_agent, add_environment, finish
from gymcp.envs.spec import LoadedEnv
from gymcp.scale.copies.collect import FileCollector
from gymcp.scale.copies.sending import RunFiles
from gymcp.trainers.recipe.recipe import Recipe


def find_needed_files(recipe: Recipe, env: LoadedEnv, collector: FileCollector) -> RunFiles:
    """All files of the recipe that its episodes need; neither the model nor the run's folder. Raises ConfigError."""
    add_environment(collector, recipe.env, env)
    rollout = recipe.rollout
    add_agent(collector, rollout.agent or None, map(Path, rollout.agent_mounts))
    add_agent(collector, recipe.preset_name, ())
    if recipe.reward.grader.endswith(".py"):
        collector.add_code(Path(recipe.reward.grader))
    for name in (recipe.wrappers.privileges, rollout.demonstrations):
        if name:
            collector.add(Path(name))
    return finish(collector, env)
