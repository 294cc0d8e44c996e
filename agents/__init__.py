"""Agents, the models behind them, and runs of an agent on the tasks of an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gymcp.exports import make_getattr

if TYPE_CHECKING:
    from gymcp.agents.policies.engine.engine import open_engine
    from gymcp.agents.policies.models import ChatModel, Model, TokenModel
    from gymcp.agents.policies.specs import ModelOptions, open_model, parse_policy
    from gymcp.agents.runner.run import Plan, RunEnd, run_plan, select_tasks
    from gymcp.agents.runner.scheduler import Schedule
    from gymcp.agents.runner.search.searches import Search
    from gymcp.agents.runner.trees.allocation import AllocateEpisodes
    from gymcp.agents.runner.trees.branch_steps import BranchSteps
    from gymcp.agents.runner.trees.controller import (
        Branch,
        Controller,
        GoOn,
        Independent,
        Played,
        Replace,
        Retry,
        Start,
        Stop,
        TreeBudget,
    )
    from gymcp.agents.strategies.budgets import Budget
    from gymcp.agents.strategies.react import ReactSettings, react
    from gymcp.agents.strategies.scripted import mutated, null, oracle, random_agent

__all__ = [
    "AllocateEpisodes",
    "Branch",
    "BranchSteps",
    "Budget",
    "ChatModel",
    "Controller",
    "GoOn",
    "Independent",
    "Model",
    "ModelOptions",
    "Plan",
    "Played",
    "ReactSettings",
    "Replace",
    "Retry",
    "RunEnd",
    "Schedule",
    "Search",
    "Start",
    "Stop",
    "TokenModel",
    "TreeBudget",
    "mutated",
    "null",
    "open_engine",
    "open_model",
    "oracle",
    "parse_policy",
    "random_agent",
    "react",
    "run_plan",
    "select_tasks",
]

if not TYPE_CHECKING:
    __getattr__ = make_getattr(
        __name__,
        {
            "policies.engine.engine": "open_engine",
            "policies.models": "ChatModel Model TokenModel",
            "policies.specs": "ModelOptions open_model parse_policy",
            "runner.run": "Plan RunEnd run_plan select_tasks",
            "runner.scheduler": "Schedule",
            "runner.search.searches": "Search",
            "runner.trees.allocation": "AllocateEpisodes",
            "runner.trees.branch_steps": "BranchSteps",
            "runner.trees.controller": "Branch Controller GoOn Independent Played Replace Retry Start Stop TreeBudget",
            "strategies.budgets": "Budget",
            "strategies.react": "ReactSettings react",
            "strategies.scripted": "mutated null oracle random_agent",
        },
    )
