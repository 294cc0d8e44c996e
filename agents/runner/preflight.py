"""Checks before the first episode: one real call to every server, one real request to the model, all prompts measured.

A defect that would fail every episode fails here, once, with one line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from gymcp.agents.policies.models import MIN_ANSWER_TOKENS, Model, TokenModel
from gymcp.agents.prompts.rendering import merge_system_messages
from gymcp.agents.strategies.react import ReactSettings
from gymcp.envs.episodes.user_turn import system_messages
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.worlds.lazy_server import LazyServer
from gymcp.envs.worlds.tool_listing import ToolListing
from gymcp.envs.worlds.toolbox import agents_toolbox
from gymcp.envs.worlds.world import EpisodeSetup, open_world
from gymcp.errors import ConfigError, EnvInfraError, PolicyInfraError, PolicyRefused, PromptTooLong
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.protocols import UserView
from gymcp.types import Decision, Message, Task, Tool, ToolCall

CALL_TIMEOUT_S = 30.0
"""Seconds that a server may take for its first call."""
FIRST_ANSWER_S = 600.0
"""Seconds that the model may take for its first answer, unless an episode may take longer."""


async def call_every_server(env: LoadedEnv, sandbox: Sandbox, task: Task) -> ToolListing:
    """The tools on offer in a fresh world of `task`, after one call to every server. Raises EnvInfraError."""
    async with open_world(EpisodeSetup(env=env, sandbox=sandbox, task=task, seed=0)) as world:
        for server in world.servers:
            await _call_once(server)
        withheld = task.offer.withheld_in(0)
        box = agents_toolbox(env.spec, world.servers)
        return ToolListing(tools={tool.name: tool for tool in box.list_tools(withheld)}, servers=box.servers)


async def _call_once(session: ToolSession | LazyServer) -> None:
    """Call one tool, a read-only one if there is any. An error result is fine too: the world is thrown away."""
    if not session.tools:
        raise EnvInfraError(f"server '{session.spec.name}': has no tools, so there is nothing to call")
    tool = min(session.tools, key=lambda tool: (not tool.annotations.get("readOnlyHint"), tool.name))
    await session.call_tool(ToolCall(id="preflight", name=tool.name), {}, timeout_s=CALL_TIMEOUT_S)


async def check_model(
    model: Model,
    settings: ReactSettings,
    tasks: Sequence[Task],
    tools_of: Callable[[Task], tuple[Tool, ...]],
    *,
    needs_usage: bool = False,
) -> None:
    """Raises ConfigError if the model cannot be asked, or if a task's first prompt leaves no room for an answer.

    `tools_of`: the tools that a task begins with. `needs_usage`: refuse an endpoint that does not report the number of
    tokens of an answer, because budgets of tokens or money depend on it.
    """
    first, tools = _first_messages(tasks[0]), tools_of(tasks[0])
    if isinstance(model, TokenModel):
        _check_prompts_fit(model, settings, tasks, tools_of)
    limit_s = max(FIRST_ANSWER_S, settings.budget.seconds or 0.0)
    try:
        async with asyncio.timeout(limit_s):
            answered = await _ask_once(model, settings, first, tools)
    except TimeoutError as error:
        raise ConfigError(
            f"model '{model.name}': no answer within {limit_s:g} s; for a model that is slower: --max-episode-seconds"
        ) from error
    except PromptTooLong as error:
        max_tokens = settings.sampling.max_tokens
        raise ConfigError(
            f"model '{model.name}': the first prompt, with {max_tokens} tokens for an answer (--max-tokens),"
            f" is longer than its context: {error}"
        ) from error
    except PolicyRefused as error:
        hint = "; if it cannot call tools itself: --tool-calls text" if "tool" in str(error).lower() else ""
        raise ConfigError(f"{error}{hint}") from error
    except PolicyInfraError as error:
        raise ConfigError(f"the policy does not answer: {error}") from error
    if needs_usage and answered is not None and not (answered.spent and answered.spent.prompt_tokens):
        raise ConfigError(
            f"model '{model.name}': the endpoint does not say how many tokens an answer took (usage), so a"
            " budget of tokens or money cannot be kept"
        )


async def _ask_once(
    model: Model, settings: ReactSettings, first: Sequence[Message], tools: tuple[Tool, ...]
) -> Decision | None:
    """The answer of an endpoint to the first messages; None of a token model, which draws one token."""
    if isinstance(model, TokenModel):
        prompt = model.renderer.first_prompt(first, tools, settings.system)
        await model.policy.sample(prompt, replace(settings.sampling, max_tokens=1, seed=0))
        return None
    # with the full max_tokens, because an endpoint also refuses a request whose answer might not fit
    messages = merge_system_messages(settings.system, first)
    return await model.policy.chat(messages, tools, replace(settings.sampling, seed=0))


async def check_user(env: LoadedEnv, who: str, task: Task) -> None:
    """Raises ConfigError if the model that plays the user of `task` does not answer when asked for its first words."""
    try:
        await env.spec.user(task).reply(UserView())
    except PolicyInfraError as error:
        raise ConfigError(f"{who}, which plays the user, does not answer: {error}") from error


def _first_messages(task: Task) -> list[Message]:
    return [*system_messages(task), *(Message(role="user", content=prompt) for prompt in task.prompts[:1])]


def _check_prompts_fit(
    model: TokenModel, settings: ReactSettings, tasks: Sequence[Task], tools_of: Callable[[Task], tuple[Tool, ...]]
) -> None:
    for task in tasks:
        size = len(model.renderer.first_prompt(_first_messages(task), tools_of(task), settings.system))
        if size + MIN_ANSWER_TOKENS > model.context:
            raise ConfigError(
                f"model '{model.name}': the first prompt of task '{task.id}' has {size} tokens with its"
                f" {len(tools_of(task))} tools; the context is {model.context}, of which {MIN_ANSWER_TOKENS} are kept"
                " for an answer"
            )
