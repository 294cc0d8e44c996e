"""Costs of tool calls: a vector that every environment declares, computed from what was recorded."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from equipment import usable

from gymcp.cli.evaluation.run_report import find_prices
from gymcp.envs import EnvSpec, load_env
from gymcp.envs.catalog import load_spec, names
from gymcp.envs.suites.textworld.games import is_installed as is_textworld_installed
from gymcp.envs.suites.workbench.office import SERVER_OF
from gymcp.envs.tool_costs import CallCost, ToolCosts, episode_costs, rate_risks, step_costs
from gymcp.envs.worlds.tool_listing import list_tools
from gymcp.envs.wrappers.ask_user import QUESTION_COST
from gymcp.errors import ConfigError
from gymcp.evaluators.graders.questions import ASK_USER
from gymcp.mcp_servers.programs.shelf.server import services
from gymcp.store import Run
from gymcp.types import Action, Observation, Step, ToolCall, ToolResult

COSTS = ToolCosts(
    default=CallCost(risk=0.1),
    tools={"refund": CallCost(money=2.0, seconds=0.5, bytes=7.0, risk=1.0), "ask": CallCost(money=0.05, calls=0.0)},
    asking=frozenset({"ask"}),
)


def step_of(*calls: tuple[str, ToolResult]) -> Step:
    """A step with these calls, by the names that the agent used, and their results."""
    numbered = [
        (ToolCall(id=str(n), name=name), replace(result, call_id=str(n))) for n, (name, result) in enumerate(calls)
    ]
    return Step(
        turn=0,
        observation=Observation(messages=(), tools=()),
        action=Action(text="done", tool_calls=tuple(call for call, _ in numbered)),
        results=tuple(result for _, result in numbered),
    )


def result(**fields: Any) -> ToolResult:
    return ToolResult(call_id="", content="", **fields)


STEPS = (
    step_of(
        ("look", result(seconds=0.25, content_bytes=100)), ("refund", result(seconds=9.0, content_bytes=3, cost=2.0))
    ),
    step_of(("ask", result(seconds=0.5, content_bytes=20, cost=0.05)), ("ask", result(is_error=True))),
    step_of(),
)
"""Two calls, of which one costs what is declared and not what was measured; a question and a refused one; a message."""


def test_a_step_costs_what_its_calls_cost_as_declared_or_as_recorded() -> None:
    assert step_costs(STEPS, COSTS) == {
        "money": [2.0, 0.0, 0.0],
        "seconds": [0.75, 0.5, 0.0],
        "calls": [2.0, 0.0, 0.0],
        "bytes": [107.0, 20.0, 0.0],
        "risk": [1.1, 0.0, 0.0],
        "asking": [0.0, 0.05, 0.0],
    }


def test_an_episode_has_the_components_that_its_environment_declares() -> None:
    assert COSTS.list_components() == ("money", "seconds", "calls", "bytes", "risk", "asking")
    assert ToolCosts().list_components() == ("seconds", "calls", "bytes")
    assert episode_costs(STEPS, ToolCosts()) == {"seconds": 9.75, "calls": 4.0, "bytes": 123.0}
    instant = ToolCosts(default=CallCost(seconds=0.0, bytes=0.0, calls=0.0))
    assert (instant.list_components(), instant.measures("seconds"), COSTS.measures("seconds")) == ((), False, True)


def test_a_renamed_tool_costs_what_the_servers_tool_costs() -> None:
    renamed = step_of(("pay_back", result(executed_call=ToolCall(id="0", name="refund"))))
    assert step_costs([renamed], COSTS)["risk"] == [1.0]


def test_risks_are_rated_by_groups_of_tools() -> None:
    costs = rate_risks({0.5: ("cancel",)}, default=CallCost(seconds=1.0))
    assert (costs.of_tool("cancel"), costs.of_tool("get")) == (CallCost(seconds=1.0, risk=0.5), CallCost(seconds=1.0))


@pytest.mark.parametrize(
    ("costs", "says"),
    [
        ({"look": 1.0}, r"its costs must be gymcp\.envs\.ToolCosts, not {'look': 1\.0}"),
        (ToolCosts(tools={"look": 1.0}), r"costs of 'look': must be a gymcp\.envs\.CallCost, not 1\.0"),  # type: ignore[dict-item]
        (ToolCosts(default=CallCost(money=-1.0)), "costs of 'default': money is -1.0; it must be a number from 0 on"),
        (ToolCosts(tools={"rm": CallCost(risk=2.0)}), "costs of 'rm': risk is 2.0; it must be a number from 0 to 1"),
        (ToolCosts(default=CallCost(bytes=float("nan"))), "bytes is nan; it must be a number from 0 on"),
    ],
)
def test_impossible_costs_are_refused(costs: Any, says: str) -> None:
    spec = EnvSpec(
        name="shop", servers=(), suite=load_spec("rounds").suite, grade=load_spec("rounds").grade, costs=costs
    )
    with pytest.raises(ConfigError, match=says):
        load_env(spec)


def test_the_old_name_of_costs_is_refused_with_the_new_one() -> None:
    with pytest.raises(ConfigError, match=r"environment 'rounds': 'cost' is now 'costs', .* costs=ToolCosts\(tools="):
        replace(load_spec("rounds"), cost={"look": 1.0})


def test_components_without_a_name_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="environment 'rounds': its components must be a tuple of names, not 'parcels'"
    ):
        load_env(replace(load_spec("rounds"), components="parcels"))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", names())
def test_every_environment_of_the_catalog_declares_costs(name: str) -> None:
    spec = load_spec(name)
    assert spec.costs != ToolCosts()
    assert {"calls", "bytes"} <= set(spec.costs.list_components())


@pytest.mark.parametrize(
    "name", ["agentdojo", "backoffice", "bfcl", "filesystem", "git", "looks", "memory", "tau2", "textworld"]
)
def test_the_tools_that_have_a_cost_exist(name: str) -> None:
    spec = load_spec(name)
    is_there = is_textworld_installed() if name == "textworld" else spec.installed()
    if not is_there:
        pytest.skip(f"{name} is not installed here")
    assert spec.costs.tools.keys() <= set(asyncio.run(list_tools(load_env(spec), usable("bwrap"))))


def test_the_tools_that_have_a_cost_on_many_servers_exist() -> None:
    assert load_spec("workbench").costs.tools.keys() <= SERVER_OF.keys()
    known = {name for service in services().values() for name in service.operations}
    assert set() < load_spec("toolshelf").costs.tools.keys() < known


def test_a_question_has_its_price_in_the_costs_of_the_environment() -> None:
    costs = load_spec("backoffice_asking").costs
    assert (costs.of_tool(ASK_USER).money, costs.asking) == (QUESTION_COST, frozenset({ASK_USER}))
    assert costs.tools.keys() - {ASK_USER} == load_spec("backoffice").costs.tools.keys()


BACKOFFICE = load_env(load_spec("backoffice"))
TRAINED = {
    "env": "backoffice", "env_version": BACKOFFICE.spec.version,
    "suite": BACKOFFICE.suite.name, "suite_version": BACKOFFICE.suite.version,
}  # fmt: skip
"""Entries of the record of a training run, which has no source."""


@pytest.mark.parametrize("config", [{"source": "backoffice"}, TRAINED, {**TRAINED, "stress": ["faults"]}])
def test_a_run_that_was_recorded_before_has_costs_in_its_report(config: dict[str, Any], tmp_path: Path) -> None:
    before = Run(folder=tmp_path, created="", config=config, seeds=(), versions={}, git=None)
    steps = (step_of(("refund_order", result(content_bytes=9, seconds=3.0)), ("get_order", result(content_bytes=1))),)
    assert find_prices(before)(steps) == {"seconds": 1.0, "calls": 2.0, "bytes": 10.0, "risk": 1.0}
    other = replace(before, config={"source": "/home/me/shop.py"})
    assert find_prices(other)(steps) == {}, "a report runs no code of a file"


@pytest.mark.parametrize(
    "config",
    [
        {**TRAINED, "source": "/home/me/backoffice.py"},
        {**TRAINED, "env_version": "of a file"},
        {**TRAINED, "suite": "of a file"},
        {**TRAINED, "suite_version": "of a file"},
        {**TRAINED, "stress": ["no such stressor"]},
        {"env": "backoffice"},
    ],
)
def test_an_environment_that_only_has_a_name_of_the_catalog_has_not_its_costs(
    config: dict[str, Any], tmp_path: Path
) -> None:
    run = Run(folder=tmp_path, created="", config=config, seeds=(), versions={}, git=None)
    assert find_prices(run)((step_of(("refund_order", result())),)) == {}
