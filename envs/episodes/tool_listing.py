"""Which tools an environment's servers have, before any layer."""

from __future__ import annotations

from dataclasses import dataclass

from gymcp.envs.episodes.toolbox import agents_toolbox
from gymcp.envs.episodes.world import Origin, open_world
from gymcp.envs.layers import Scene
from gymcp.envs.spec import LoadedEnv
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.types import Task, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    tools: dict[str, Tool]
    """By name."""
    servers: dict[str, str]
    """By name of a tool, the name of its server."""


async def list_tools(env: LoadedEnv, sandbox: Sandbox) -> dict[str, Tool]:
    """By name, as `list_offer`. Raises EnvInfraError where a server does not start."""
    return (await list_offer(env, sandbox)).tools


async def list_offer(env: LoadedEnv, sandbox: Sandbox) -> Offer:
    """All that the servers offer.

    Servers may make tools of a task's initial state, so tasks are opened until every tag was seen; of a lazy
    environment one, as its servers may not.

    Raises EnvInfraError where a server does not start.
    """
    offer = Offer(tools={}, servers={})
    seen: set[str] = set()
    async with open_warm_sandbox(sandbox) as warm:
        for number, task in enumerate(env.suite.tasks):
            if number and (env.spec.lazy or seen.issuperset(task.tags)):
                continue
            seen.update(task.tags)
            async with open_world(Origin(env=env, sandbox=warm, task=task, seed=0)) as world:
                box = agents_toolbox(env.spec, world.servers)
                offer.tools.update({tool.name: tool for tool in box.offered(frozenset())})
                offer.servers.update(box.servers)
    return offer


def first_offer(env: LoadedEnv, task: Task, offer: Offer) -> tuple[Tool, ...]:
    """What an agent is shown of the servers' tools when the task begins, through all layers."""

    async def unasked(question: str) -> bool:
        return False

    async def untold(question: str) -> str:
        return ""

    scene = Scene(
        task=task,
        seed=0,
        turn=0,
        steps=(),
        said=task.prompts[:1],
        servers=offer.servers,
        confirm=unasked,
        ask=untold,
    )
    tools = tuple(offer.tools.values())
    for layer in env.spec.layers:
        tools = layer.offer(scene, tools)
    return tools
