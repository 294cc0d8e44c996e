"""Trajectories over BFCL's tasks: gold, altered gold and random calls, played by the server's replay mode."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Mapping, Sequence

from gymcp.agents.strategies.random_arguments import sample_instance
from gymcp.envs.suites.bfcl.suite import bfcl_server, replay
from gymcp.envs.suites.bfcl.targets import replay_turns
from gymcp.envs.suites.upstream.file_layout import SuiteFiles
from gymcp.envs.suites.upstream.run_once import run_once
from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.types import Action, Json, Observation, Step, Task, Tool, ToolCall, ToolResult, Trajectory

CLASSES = (
    *("GorillaFileSystem", "MathAPI", "MessageAPI", "TicketAPI"),
    *("TradingBot", "TravelAPI", "TwitterAPI", "VehicleControlAPI"),
)
Calls = list[list[ToolCall]]
"""Per user turn."""
ToolsByClass = dict[str, list[Tool]]


def list_tools_by_class(files: SuiteFiles) -> ToolsByClass:
    return {name: _list_tools(files, name) for name in CLASSES}


def tools_of(task: Task, tools: ToolsByClass) -> list[Tool]:
    return [tool for name in task.initial_state["classes"] for tool in tools[name]]


def _list_tools(files: SuiteFiles, name: str) -> list[Tool]:
    """The tools of a server that has this class alone."""
    setup = {"initialState": {"classes": [name], "config": {}, "long_context": False}, "seed": 0}
    requests = [
        {"jsonrpc": "2.0", "id": 1, "method": "gymcp/setup", "params": setup},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    return [
        Tool(name=tool["name"], description=tool["description"], input_schema=tool["inputSchema"])
        for tool in serve(files, requests)[1]["result"]["tools"]
    ]


def serve(files: SuiteFiles, requests: Sequence[Json]) -> list[Json]:
    """The server's answers, one per request."""
    text = "".join(json.dumps(request) + "\n" for request in requests)
    answers = run_once(bfcl_server(files), get_sandbox("bwrap"), text)
    return [json.loads(line) for line in answers.splitlines()]


def play(
    files: SuiteFiles, played: Sequence[tuple[Task, Calls]], tools: ToolsByClass
) -> tuple[list[Trajectory], dict[str, Json]]:
    """The records of these episodes, and the states they refer to."""
    cases = [({"id": task.id, "setup": task.initial_state}, _as_json(calls)) for task, calls in played]
    recorded = replay_turns(cases, functools.partial(replay, files, get_sandbox("bwrap")))
    states: dict[str, Json] = {}
    trajectories = []
    for (task, calls), turns in zip(played, recorded, strict=True):
        steps = []
        for index, (turn_calls, turn) in enumerate(zip(calls, turns, strict=True)):
            state = {"public": turn.state}
            ref = digest(state)
            states[ref] = state
            results = tuple(
                ToolResult(call_id=call.id, content=text) for call, text in zip(turn_calls, turn.responses, strict=True)
            )
            seen = Observation(messages=(), tools=tuple(tools_of(task, tools)))
            if turn_calls:
                action = Action(tool_calls=tuple(turn_calls))
                steps.append(Step(turn=index, observation=seen, action=action, results=results, state_ref=ref))
            steps.append(Step(turn=index, observation=seen, action=Action(text="Done."), state_ref=ref))
        trajectories.append(Trajectory(id=task.id, env="bfcl", task=task.id, steps=tuple(steps)))
    return trajectories, states


def gold_calls(task: Task) -> Calls:
    return [list(turn.calls) for turn in task.gold]


def alter(task: Task, tools: ToolsByClass, rng: random.Random) -> Calls:
    """The gold with one to three random changes, or calls drawn at random."""
    calls = gold_calls(task)
    own = tools_of(task, tools)
    if rng.random() < 0.1:
        return [[random_call(rng.choice(own), _words(task), rng) for _ in range(rng.randint(1, 4))] for _ in calls]
    for _ in range(rng.randint(1, 3)):
        turn = rng.choice([turn for turn in calls if turn] or calls)
        place = rng.randrange(len(turn)) if turn else 0
        match rng.choice(["drop", "double", "change", "change", "swap", "add", "add", "move"]):
            case "drop" if turn:
                del turn[place]
            case "double" if turn:
                turn.insert(place, turn[place])
            case "change" if turn:
                turn[place] = _change_argument(turn[place], _words(task), rng)
            case "swap":
                rng.shuffle(turn)
            case "move" if turn:
                rng.choice(calls).append(turn.pop(place))
            case _:
                turn.insert(place, random_call(rng.choice(own), _words(task), rng))
    return calls


def random_call(tool: Tool, words: Sequence[str], rng: random.Random) -> ToolCall:
    """A call that the schema allows; strings are drawn from `words`."""
    return ToolCall(id="random", name=tool.name, arguments=sample_instance(tool.input_schema, rng, words))


def _change_argument(call: ToolCall, words: Sequence[str], rng: random.Random) -> ToolCall:
    """The call with another value for one argument, of the same type; 1 for 1.0 can occur, which is no difference."""
    arguments = dict(call.arguments) if isinstance(call.arguments, Mapping) else {}
    if arguments:
        name = rng.choice(list(arguments))
        value = arguments[name]
        match value:
            case bool():
                arguments[name] = not value
            case int():
                arguments[name] = value + rng.choice([1, 10])
            case float():
                arguments[name] = int(value) if value.is_integer() else value + 1
            case list():
                arguments[name] = value[:-1]
            case str():
                arguments[name] = rng.choice(words)
            case _:
                arguments[name] = {}
    return ToolCall(id=call.id, name=call.name, arguments=arguments)


def _words(task: Task) -> list[str]:
    found = ["nothing", ".", "~!", "USD"]
    for turn in task.gold:
        for call in turn.calls:
            if isinstance(call.arguments, Mapping):
                found += [value for value in call.arguments.values() if isinstance(value, str)]
    return found


def _as_json(calls: Calls) -> Json:
    return [[{"name": call.name, "arguments": call.arguments} for call in turn] for turn in calls]
