"""Before the first episode: one real call to every server, one real request to the model, every prompt measured.

What would fail in every episode fails here, once, in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gymcp.agents.policies.models import LEAST_ANSWER, Model, TokenModel
from gymcp.agents.prompts.rendering import under_one_system
from gymcp.agents.strategies.react import ReactSettings
from gymcp.envs.episodes.lazy_server import LazyServer
from gymcp.envs.episodes.tool_listing import ToolListing
from gymcp.envs.episodes.toolbox import agents_toolbox
from gymcp.envs.episodes.user_turn import system_messages
from gymcp.envs.episodes.world import EpisodeSetup, open_world
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError, EnvInfraError, PolicyInfraError, PolicyRefused, PromptTooLong
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.types import Message, Task, Tool, ToolCall, UserView

CALL_TIMEOUT_S = 30.0


async def check_servers(env: LoadedEnv, sandbox: Sandbox, task: Task) -> ToolListing:
    """What is on offer in a fresh world of `task`, after one call to every server of it. Raises EnvInfraError."""
    async with open_world(EpisodeSetup(env=env, sandbox=sandbox, task=task, seed=0)) as world:
        for server in world.servers:
            await _call_once(server)
        withheld = task.withheld[0] if task.withheld else frozenset[str]()
        box = agents_toolbox(env.spec, world.servers)
        return ToolListing(tools={tool.name: tool for tool in box.list_tools(withheld)}, servers=box.servers)


async def _call_once(session: ToolSession | LazyServer) -> None:
    """Any answer will do, an error too: the world is thrown away."""
    if not session.tools:
        raise EnvInfraError(f"server '{session.spec.name}': has no tools, so there is nothing to call")
    tool = min(session.tools, key=lambda tool: (not tool.annotations.get("readOnlyHint"), tool.name))
    await session.call(ToolCall(id="preflight", name=tool.name), {}, timeout_s=CALL_TIMEOUT_S)


async def check_model(
    model: Model,
    settings: ReactSettings,
    tasks: Sequence[Task],
    offered: Callable[[Task], tuple[Tool, ...]],
    *,
    counted: bool = False,
) -> None:
    """Raises ConfigError where the model cannot be asked, or a task's first prompt leaves it no room to answer.

    `offered`: the tools that a task begins with. `counted`: budgets need to know how many tokens an answer took, so an
    endpoint that does not say is refused.
    """
    first, tools = _first(tasks[0]), offered(tasks[0])
    try:
        if isinstance(model, TokenModel):
            _measure(model, settings, tasks, offered)
            prompt = model.renderer.start(first, tools, settings.system)
            await model.policy.sample(prompt, replace(settings.sampling, max_tokens=1, seed=0))
        else:
            # at full length: an endpoint refuses answers that could not fit, too
            messages = under_one_system(settings.system, first)
            decided = await model.policy.chat(messages, tools, replace(settings.sampling, seed=0))
            if counted and not (decided.spent and decided.spent.prompt_tokens):
                raise ConfigError(
                    f"model '{model.name}': the endpoint does not say how many tokens an answer took (usage), so a"
                    " budget of tokens or money cannot be kept"
                )
    except PromptTooLong as error:
        longest = settings.sampling.max_tokens
        raise ConfigError(
            f"model '{model.name}': the first prompt, with {longest} tokens for an answer (--max-tokens),"
            f" is longer than its context: {error}"
        ) from error
    except PolicyRefused as error:
        hint = "; if it cannot call tools itself: --tool-calls text" if "tool" in str(error).lower() else ""
        raise ConfigError(f"{error}{hint}") from error
    except PolicyInfraError as error:
        raise ConfigError(f"the policy does not answer: {error}") from error


async def check_user(env: LoadedEnv, who: str, task: Task) -> None:
    """Raises ConfigError where the model that plays the user of `task` does not say its first words."""
    try:
        await env.spec.user(task).reply(UserView())
    except PolicyInfraError as error:
        raise ConfigError(f"{who}, which plays the user, does not answer: {error}") from error


def _first(task: Task) -> list[Message]:
    return [*system_messages(task), *(Message(role="user", content=prompt) for prompt in task.prompts[:1])]


def _measure(
    model: TokenModel, settings: ReactSettings, tasks: Sequence[Task], offered: Callable[[Task], tuple[Tool, ...]]
) -> None:
    for task in tasks:
        size = len(model.renderer.start(_first(task), offered(task), settings.system))
        if size + LEAST_ANSWER > model.context:
            raise ConfigError(
                f"model '{model.name}': the first prompt of task '{task.id}' has {size} tokens with its"
                f" {len(offered(task))} tools; the context is {model.context}, of which {LEAST_ANSWER} are kept for an"
                " answer"
            )
