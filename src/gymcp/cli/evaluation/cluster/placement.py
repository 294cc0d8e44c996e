"""The plan of a run on a cluster, as the command line uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from gymcp.cli.configs import EvalConfig
from gymcp.envs.catalog import source_of
from gymcp.errors import ConfigError
from gymcp.scale.plan import ClusterNode, NodeGroup, RunPlan, check_plan, choose_judge, read_plan


def apply_plan(config: EvalConfig) -> EvalConfig:
    """The config with the judge that its plan names. Raises ConfigError."""
    if config.ray is None:
        raise ConfigError("--plan: places a run on the nodes of a Ray cluster; name it: --ray auto or --ray HOST:PORT")
    plan, who = load_plan(config.plan), describe_plan(config.plan)
    if plan.learner is not None:
        raise ConfigError(f"{who}: learner: is the driver of a training, and an evaluation has none: take it out")
    return replace(config, judge=choose_judge(plan, who, config.judge))


def load_plan(path: Path | None) -> RunPlan:
    """The plan in the file; without one, all nodes play alike. Raises ConfigError."""
    return RunPlan() if path is None else read_plan(path)


def describe_plan(path: Path | None) -> str:
    """The plan for messages."""
    return f"plan '{path}'"


def place_groups(
    plan: RunPlan, path: Path | None, env: str, nodes: Sequence[ClusterNode]
) -> Callable[[ClusterNode], NodeGroup | None]:
    """The function that gives a node its group, after a check of the plan against the nodes. Raises ConfigError."""
    source = source_of(env)
    if path is not None:
        check_plan(plan, describe_plan(path), nodes, source)
    return partial(plan.find_group, env=source)
