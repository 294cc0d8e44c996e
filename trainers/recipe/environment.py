"""The environment of a recipe: stressors, privileges, an attack and retrieval between the agent and its tools."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path

from gymcp.envs.spec import EnvSpec, LoadedEnv
from gymcp.envs.wrappers.privileges import read_privileges
from gymcp.envs.wrappers.registry import WrapperSelection, check_selection
from gymcp.envs.wrappers.retrieval import plan_retrieval
from gymcp.errors import ConfigError
from gymcp.evaluators.graders.combine import with_component
from gymcp.evaluators.graders.registry import find_grader_file, make_grader
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.trainers.recipe.recipe import Recipe

GRADER = "grader"
"""Name of the component with the verdict of the grader that a recipe adds."""


def select_wrappers(recipe: Recipe) -> WrapperSelection:
    """The wrappers that the recipe names. Raises ConfigError."""
    chosen = recipe.wrappers
    return WrapperSelection(
        attack=chosen.attack or None,
        privileges=read_privileges(Path(chosen.privileges)) if chosen.privileges else None,
        stress=chosen.stress,
        retrieval=plan_retrieval(chosen.retrieve or None, chosen.tool_budget or None),
    )


def wrap_environment(recipe: Recipe, spec: EnvSpec) -> LoadedEnv:
    """The environment inside the recipe's wrappers, with its further grader, loaded. Raises ConfigError."""
    if recipe.reward.grader:
        if GRADER in spec.components:
            raise ConfigError(
                f"recipe '{recipe.name}': reward.grader would add the component '{GRADER}', and environment"
                f" '{spec.name}' has one of that name: rename that one, or take reward.grader out"
            )
        grade = with_component(GRADER, spec.grade, make_grader([recipe.reward.grader]))
        spec = replace(spec, grade=grade, components=(*spec.components, GRADER))
    return select_wrappers(recipe).apply(spec)


def digest_grader(recipe: Recipe) -> str:
    """SHA-256 of the file of ``reward.grader``; empty if it names none."""
    file = find_grader_file(recipe.reward.grader)
    return "" if file is None else hashlib.sha256(file.read_bytes()).hexdigest()


def check_wrappers(recipe: Recipe, env: LoadedEnv) -> None:
    """Raise ConfigError if the recipe's wrappers do not fit the tools of the environment."""
    selection = select_wrappers(recipe)
    if selection.needs_tools:
        sandbox = get_sandbox(recipe.rollout.sandbox)
        sandbox.check()
        asyncio.run(check_selection(selection, env, sandbox))
