"""Agents, the models behind them, and runs of an agent on the tasks of an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gymcp.exports import make_getattr

if TYPE_CHECKING:
    from gymcp.agents.policies.models import ChatModel, Model, TokenModel
    from gymcp.agents.policies.specs import ModelOptions, open_model, parse_policy
    from gymcp.agents.runner.run import Plan, RunEnd, run_plan, select_tasks
    from gymcp.agents.runner.scheduler import Schedule
    from gymcp.agents.strategies.budgets import Budget
    from gymcp.agents.strategies.react import ReactSettings, react
    from gymcp.agents.strategies.scripted import mutated, null, oracle, random_agent

__all__ = [
    "Budget",
    "ChatModel",
    "Model",
    "ModelOptions",
    "Plan",
    "ReactSettings",
    "RunEnd",
    "Schedule",
    "TokenModel",
    "mutated",
    "null",
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
            "policies.models": "ChatModel Model TokenModel",
            "policies.specs": "ModelOptions open_model parse_policy",
            "runner.run": "Plan RunEnd run_plan select_tasks",
            "runner.scheduler": "Schedule",
            "strategies.budgets": "Budget",
            "strategies.react": "ReactSettings react",
            "strategies.scripted": "mutated null oracle random_agent",
        },
    )
