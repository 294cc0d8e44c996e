"""Retrieval of tools by a request: the ranking, the budget, and the tools that a search adds."""

from __future__ import annotations

import asyncio
import math

import pytest
from shop import ENV, TASK

from gymcp.agents.runner.rollout import Job, rollout
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.envs.layers import CallContext
from gymcp.envs.spec import load_env
from gymcp.envs.wrappers.bm25 import K1, B, Bm25, rank_tools, tokenize
from gymcp.envs.wrappers.registry import WrapperSelection
from gymcp.envs.wrappers.retrieval import (
    SEARCH,
    SEARCH_TOOL,
    Retrieval,
    check_retrieval,
    definition_chars,
    plan_retrieval,
)
from gymcp.envs.wrappers.retrieval_recall import measure_recall
from gymcp.errors import ConfigError
from gymcp.evaluators.metrics.calls import examine
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.types import Action, GoldTurn, Json, Observation, Step, Task, Tool, ToolCall, ToolResult

SCHEMA: dict[str, Json] = {"type": "object", "properties": {}}
TOOLS = tuple(
    Tool(name=name, description=text, input_schema=SCHEMA)
    for name, text in (
        ("water_plant", "Give a dry plant water."),
        ("bookRoom", "Reserve a meeting room."),
        ("close_ticket", "End a ticket of a customer."),
        ("reopen_ticket", "Begin work on a ticket of a customer again."),
        ("list_parcels", "Parcels on their way."),
    )
)


def context(said: str = "", *steps: Step) -> CallContext:
    async def refuse(question: str) -> bool:
        return False

    async def silent(question: str) -> str:
        return ""

    task = Task(id="t", prompts=(said,))
    return CallContext(task=task, seed=0, turn=0, steps=steps, user_texts=(said,), confirm=refuse, ask=silent)


def step_with_call(name: str, answer: str, **arguments: Json) -> Step:
    call = ToolCall(id=name, name=name, arguments=arguments)
    result = ToolResult(call_id=name, content=answer)
    seen = Observation(messages=(), tools=TOOLS)
    return Step(turn=0, observation=seen, action=Action(tool_calls=(call,)), state_key="", results=(result,))


def names_on_offer(retrieval: Retrieval, *steps: Step, said: str = "") -> list[str]:
    return [tool.name for tool in retrieval.filter_tools(context(said, *steps), TOOLS)]


async def ask(query: Json, *, retrieval: Retrieval, said: str = "") -> ToolResult:
    async def nowhere(call: ToolCall, arguments: object) -> ToolResult:
        raise AssertionError("a search reaches no server")

    call = ToolCall(id="s", name=SEARCH, arguments={"query": query})
    return await retrieval.handle_call(context(said), call, {"query": query}, TOOLS, nowhere)


def test_bm25_is_the_formula() -> None:
    index = Bm25([["a", "b", "b"], ["a"], ["c", "c"]])
    idf = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))  # b stands in one of three
    norm = K1 * (1 - B + B * 3 / 2)  # three words, where two are the mean
    assert index.scores(["b", "b", "z"]) == pytest.approx([idf * 2 * (K1 + 1) / (2 + norm), 0.0, 0.0])
    assert index.rank(["a"]) == [1, 0]
    assert index.rank(["z"]) == []


def test_case_and_ending_of_a_word_do_not_matter() -> None:
    assert tokenize("getUserTickets") == tokenize("get_user_ticket") == tokenize("Get user: ticketing")


def test_a_request_for_several_things_finds_a_tool_for_each() -> None:
    found = rank_tools(TOOLS, "Please water my plant. Reserve the big meeting room for the plant meeting, please.")
    assert {tool.name for tool in found[:2]} == {"bookRoom", "water_plant"}
    assert rank_tools(TOOLS, "hm?") == []


def test_a_tool_is_found_by_the_words_of_its_server() -> None:
    """The request shares words with one tool, and none with the other tool of its server."""
    tools = (*TOOLS, Tool(name="repot", description="Another place.", input_schema=SCHEMA))
    servers = {"water_plant": "garden", "repot": "garden"}
    assert [tool.name for tool in rank_tools(tools, "My plant!", servers)] == ["water_plant", "repot"]
    assert [tool.name for tool in rank_tools(tools, "My plant!")] == ["water_plant"]


def test_the_search_tool_and_the_best_tools_are_offered() -> None:
    assert names_on_offer(Retrieval(top_k=1), said="My plant is dry.") == [SEARCH, "water_plant"]
    assert names_on_offer(Retrieval(top_k=0), said="My plant is dry.") == [SEARCH]


def test_found_and_called_tools_stay_on_offer() -> None:
    found = step_with_call(SEARCH, asyncio.run(ask("parcel", retrieval=Retrieval())).content, query="parcel")
    room = step_with_call("bookRoom", "done")
    assert names_on_offer(Retrieval(top_k=1), found, said="My plant is dry.") == [SEARCH, "water_plant", "list_parcels"]
    assert names_on_offer(Retrieval(top_k=0), found, room) == [SEARCH, "list_parcels", "bookRoom"]


def test_the_budget_holds_and_called_tools_are_dropped_last() -> None:
    found = step_with_call(SEARCH, "- list_parcels: Parcels.\n- close_ticket: End.", query="x")
    room = step_with_call("bookRoom", "done")
    least = definition_chars(SEARCH_TOOL)
    for budget in range(least, least + sum(map(definition_chars, TOOLS)) + 1, 7):
        shown = Retrieval(top_k=1, budget=budget).filter_tools(context("My plant is dry.", found, room), TOOLS)
        assert sum(map(definition_chars, shown)) <= budget
    by_name = {tool.name: tool for tool in TOOLS}
    one_more = Retrieval(top_k=1, budget=definition_chars(SEARCH_TOOL) + definition_chars(by_name["bookRoom"]))
    assert names_on_offer(one_more, found, room, said="My plant is dry.") == [SEARCH, "bookRoom"]


def test_a_search_finds_tools_not_on_offer_and_takes_only_text() -> None:
    told = asyncio.run(ask("customer ticket", retrieval=Retrieval(top_k=1), said="End the ticket."))
    assert told.content.splitlines() == [
        "These can be called now:",
        "- reopen_ticket: Begin work on a ticket of a customer again.",
    ]
    assert "try other words" in asyncio.run(ask("zebra", retrieval=Retrieval())).content
    assert asyncio.run(ask(7, retrieval=Retrieval())).is_error


def test_a_budget_too_small_for_some_tool_is_refused() -> None:
    largest = max(TOOLS, key=definition_chars)
    least = definition_chars(SEARCH_TOOL) + definition_chars(largest)
    check_retrieval(Retrieval(budget=least), TOOLS)
    with pytest.raises(ConfigError, match=f"too small: 'search_tools' and the largest tool, '{largest.name}', need"):
        check_retrieval(Retrieval(budget=least - 1), TOOLS)
    with pytest.raises(ConfigError, match="a server has a tool named 'search_tools' itself"):
        check_retrieval(Retrieval(), (*TOOLS, SEARCH_TOOL))
    with pytest.raises(ConfigError, match="--tool-budget: of the tools that are retrieved"):
        plan_retrieval(None, 500)


def test_an_agent_that_searches_passes_and_one_that_does_not_fails() -> None:
    worn = WrapperSelection(retrieval=Retrieval(top_k=0))
    assert WrapperSelection.from_config(worn.to_config()) == worn
    spec = worn.apply(ENV)
    played = {}
    for agent in ("oracle", "adaptive"):
        job = Job(task=TASK, trial=0, seed=0)
        played[agent] = asyncio.run(rollout(spec, get_sandbox("bwrap"), SCRIPTED[agent], job, timeout_s=60)).trajectory
    assert (played["oracle"].score, played["adaptive"].score) == (0.0, 1.0)
    shares = {agent: figures.offered for agent, t in played.items() if (figures := examine(t, TASK).gold) is not None}
    assert shares == {"oracle": 0.0, "adaptive": 1.0}


def test_recall_is_the_share_of_needed_tools_among_the_first() -> None:
    def task(number: int, said: str, *needed: str) -> Task:
        calls = tuple(ToolCall(id=f"c{n}", name=name) for n, name in enumerate(needed))
        return Task(id=f"t{number}", prompts=(said,), gold=(GoldTurn(calls=calls, final_text=""),))

    tasks = (task(1, "water the plant", "water_plant"), task(2, "a ticket", "reopen_ticket", "water_plant"))
    rows = measure_recall(tasks, TOOLS, {}, ks=(1, 2))
    assert [(row.k, row.recall, row.best, row.complete, row.tasks) for row in rows] == [
        (1, 0.5, 0.75, 0.5, 2),
        (2, 0.75, 1.0, 0.5, 2),
    ]
    assert all(row.ci95 is not None and row.ci95.low <= row.recall <= row.ci95.high for row in rows)
    assert measure_recall((Task(id="talk", prompts=("Hi.",)),), TOOLS, {}) == []


def test_every_tool_is_on_offer_without_retrieval() -> None:
    env = load_env(ENV)
    job = Job(task=TASK, trial=0, seed=0)
    played = asyncio.run(rollout(env, get_sandbox("bwrap"), SCRIPTED["oracle"], job, timeout_s=60)).trajectory
    figures = examine(played, TASK).gold
    assert figures is not None
    assert figures.offered == 1.0
