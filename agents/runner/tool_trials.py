"""Trial calls of the tools that no gold calls: a defect in such a tool shows in no gate."""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from gymcp.agents.strategies.random_arguments import find_words, sample_instance
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.worlds.tool_listing import make_tool_listing
from gymcp.envs.worlds.toolbox import agents_toolbox
from gymcp.envs.worlds.world import EpisodeSetup, open_world
from gymcp.errors import EnvInfraError
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.native.runtime import find_violation
from gymcp.mcp_servers.native.server import is_native
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.seeds import derive_seed
from gymcp.types import Json, Tool, ToolCall

CALL_TIMEOUT_S = 10.0
MAX_DRAWS = 20
"""Most times that arguments are drawn until the tool's schema allows them."""
DEFECTS = (
    "AttributeError", "ImportError", "ModuleNotFoundError", "NameError", "NotImplementedError", "RecursionError",
    "SyntaxError", "SystemExit", "TypeError", "UnboundLocalError",
)  # fmt: skip
"""Exceptions that valid arguments cannot be blamed for; others, such as a KeyError, made-up values may cause."""
_DEFECT = re.compile(rf"({'|'.join(DEFECTS)})(: |$)|Tool '[^']*' returned ")

Ending = Literal["answered", "error", "defect", "not called"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTrial:
    """One call of a tool with made-up arguments, and its end."""

    tool: str
    ending: Ending
    """error: the tool answered with an error, as it may when the arguments are made up. defect: it has an error in its
    own code, or its server was lost."""
    text: str = ""
    """The answer, or the reason why the tool was not called."""
    again: str | None = None
    """The answer to the same call on another fresh server; None: it was not called again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedTools:
    """Trials of the tools that no gold of the suite calls."""

    servers: Mapping[str, str]
    """Tool -> name of its server, for all tools."""
    trials: tuple[ToolTrial, ...]


async def try_unused_tools(env: LoadedEnv, sandbox: Sandbox, *, seed: int = 0) -> UnusedTools:
    """Call each tool that no gold calls once, in worlds that are thrown away, with valid arguments drawn by the seed.

    A tool of a server whose state cannot be seen is called a second time, on another fresh server. Nothing is called on
    a remote server, or in a sandbox that confines nothing, because such a call cannot be undone.
    Raises EnvInfraError if a server does not start.
    """
    used = {call.name for task in env.suite.tasks for turn in task.gold for call in turn.calls}
    async with open_warm_sandbox(sandbox) as warm:
        listing = await make_tool_listing(env, warm)
        unused = [tool for name, tool in listing.tools.items() if name not in used]

        def world_of(tool: Tool) -> tuple[str, str]:
            return listing.tasks[tool.name].id, listing.servers[tool.name]

        trials: list[ToolTrial] = []
        for (_, name), group in groupby(sorted(unused, key=world_of), world_of):
            tools = list(group)
            server = next(server for server in env.servers if server.name == name)
            if server.url is not None or not sandbox.confined:
                why = "its server runs elsewhere" if server.url is not None else "nothing is confined"
                trials += [ToolTrial(tool=tool.name, ending="not called", text=why) for tool in tools]
            else:
                setup = EpisodeSetup(env=env, sandbox=warm, task=listing.tasks[tools[0].name], seed=seed)
                results = await _try_tools(setup, tools, native=is_native(server))
                if not server.shows_state:
                    again = await _try_tools(setup, tools, native=is_native(server))
                    results = [replace(one, again=other.text) for one, other in zip(results, again, strict=True)]
                trials += results
    return UnusedTools(servers=listing.servers, trials=tuple(sorted(trials, key=lambda trial: trial.tool)))


async def _try_tools(setup: EpisodeSetup, tools: Sequence[Tool], *, native: bool) -> list[ToolTrial]:
    """One trial of each tool in one world, and in a new world after a call that cost its server."""
    words = find_words(" ".join([*setup.task.prompts, json.dumps(setup.task.initial_state)]))
    trials: list[ToolTrial] = []
    while len(trials) < len(tools):
        async with open_world(setup) as world:
            toolbox = agents_toolbox(setup.env.spec, world.servers)
            for tool in tools[len(trials) :]:
                arguments = _draw_arguments(tool, words, setup.seed, native=native)
                if arguments is None:
                    why = "no valid arguments were found"
                    trials.append(ToolTrial(tool=tool.name, ending="not called", text=why))
                    continue
                call = ToolCall(id="trial", name=tool.name, arguments=arguments)
                try:
                    result = await toolbox.dispatch(call, arguments, timeout_s=CALL_TIMEOUT_S)
                except EnvInfraError as error:
                    trials.append(ToolTrial(tool=tool.name, ending="defect", text=str(error)))
                    break
                is_defect = native and result.is_error and _DEFECT.match(result.content)
                ending: Ending = "defect" if is_defect else "error" if result.is_error else "answered"
                trials.append(ToolTrial(tool=tool.name, ending=ending, text=result.content))
            with contextlib.suppress(EnvInfraError):  # the digest notes which masks have an effect
                await world.update()
    return trials


def _draw_arguments(tool: Tool, words: Sequence[str], seed: int, *, native: bool) -> dict[str, Json] | None:
    """Arguments that the tool's schema allows; None if none were drawn. A foreign schema is not tested against."""
    rng = random.Random(derive_seed(seed, tool.name))
    for _ in range(MAX_DRAWS):
        arguments = sample_instance(tool.input_schema, rng, words)
        if not isinstance(arguments, dict):
            arguments = {}
        if not native or find_violation(arguments, dict(tool.input_schema)) is None:
            return arguments
    return None
