"""Which tools an environment's servers have, before any layer."""

from __future__ import annotations

from gymcp.envs.layers import Scene
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.toolbox import Toolbox
from gymcp.envs.world import Origin, open_world
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.warm import warmed
from gymcp.types import Task, Tool


async def list_tools(env: LoadedEnv, sandbox: Sandbox) -> dict[str, Tool]:
    """By name. Servers may make tools of a task's initial state, so tasks are opened until every tag was seen,
    but of a lazy environment one: its servers may not.

    Raises EnvInfraError where a server does not start.
    """
    tools: dict[str, Tool] = {}
    seen: set[str] = set()
    async with warmed(sandbox) as warm:
        for number, task in enumerate(env.suite.tasks):
            if number and (env.spec.lazy or seen.issuperset(task.tags)):
                continue
            seen.update(task.tags)
            async with open_world(Origin(env=env, sandbox=warm, task=task, seed=0)) as world:
                tools |= {tool.name: tool for tool in Toolbox(world.servers, env.spec.tools).offered(frozenset())}
    return tools


def first_offer(env: LoadedEnv, task: Task, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """What an agent is shown of the servers' tools when the task begins, through all layers."""

    async def unasked(question: str) -> bool:
        return False

    scene = Scene(task=task, seed=0, turn=0, steps=(), said=task.prompts[:1], confirm=unasked)
    for layer in env.spec.layers:
        tools = layer.offer(scene, tools)
    return tools
