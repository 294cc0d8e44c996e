"""The tools that an environment's servers have, and those that an agent sees when a task begins."""

from __future__ import annotations

from dataclasses import dataclass, field

from gymcp.envs.layers import CallContext
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.worlds.toolbox import agents_toolbox
from gymcp.envs.worlds.world import EpisodeSetup, open_world
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.types import Task, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolListing:
    """The tools of several servers, before any layer."""

    tools: dict[str, Tool]
    """Tool name -> tool."""
    servers: dict[str, str]
    """Tool name -> name of its server."""
    tasks: dict[str, Task] = field(default_factory=dict)
    """Tool name -> a task whose world has the tool."""


async def list_tools(env: LoadedEnv, sandbox: Sandbox) -> dict[str, Tool]:
    """The tools of all servers by name, as in `make_tool_listing`. Raises EnvInfraError if a server does not start."""
    return (await make_tool_listing(env, sandbox)).tools


async def make_tool_listing(env: LoadedEnv, sandbox: Sandbox) -> ToolListing:
    """The tools of all servers, in any task.

    Servers may derive tools from a task's initial state, so tasks are opened until every tag has occurred. In a lazy
    environment, whose servers may not, one task is enough.

    Raises EnvInfraError if a server does not start.
    """
    listing = ToolListing(tools={}, servers={})
    seen: set[str] = set()
    async with open_warm_sandbox(sandbox) as warm:
        for number, task in enumerate(env.suite.tasks):
            if number and (env.spec.lazy or seen.issuperset(task.tags)):
                continue
            seen.update(task.tags)
            async with open_world(EpisodeSetup(env=env, sandbox=warm, task=task, seed=0)) as world:
                toolbox = agents_toolbox(env.spec, world.servers)
                tools = {tool.name: tool for tool in toolbox.list_tools(frozenset())}
                listing.tools.update(tools)
                listing.tasks.update(dict.fromkeys(tools, task))
                listing.servers.update(toolbox.servers)
    return listing


def tools_at_start(env: LoadedEnv, task: Task, listing: ToolListing) -> tuple[Tool, ...]:
    """The tools that an agent sees when the task begins, behind all layers."""

    async def refuse(question: str) -> bool:
        return False

    async def answer_nothing(question: str) -> str:
        return ""

    context = CallContext(
        task=task,
        seed=0,
        turn=0,
        steps=(),
        user_texts=task.prompts[:1],
        servers=listing.servers,
        confirm=refuse,
        ask=answer_nothing,
    )
    tools = tuple(listing.tools.values())
    for layer in env.spec.layers:
        tools = layer.filter_tools(context, tools)
    return tools
