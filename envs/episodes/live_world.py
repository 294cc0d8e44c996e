"""A world with the agent's and the user's way to its tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gymcp.envs.episodes.episode_state import EpisodeState, refuse_call
from gymcp.envs.episodes.tool_pipeline import ToolPipeline, run_without_layers
from gymcp.envs.episodes.user_turn import UserSession
from gymcp.envs.layers import CallContext, refusal
from gymcp.envs.worlds.toolbox import Toolbox, agents_toolbox, users_toolbox
from gymcp.envs.worlds.world import EpisodeSetup, World
from gymcp.types import EpisodeLimits, Message, Observation, Tool, ToolCall, ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWorld:
    """The world of an episode, its tools, and its user. Made by `make_live_world`."""

    setup: EpisodeSetup
    """Setup of the episode; after a restore, the world may come from that of another one."""
    world: World
    user: UserSession
    limits: EpisodeLimits
    pipeline: ToolPipeline
    user_tools: Toolbox

    def context(self, state: EpisodeState) -> CallContext:
        """The point at which the episode is, for layers."""
        return CallContext(
            task=self.setup.task,
            seed=self.setup.seed,
            turn=state.turn,
            steps=state.steps,
            user_texts=state.user_texts,
            servers=self.pipeline.toolbox.servers,
            confirm=self.user.confirm,
            ask=self.user.answer_question,
        )

    def observe(self, state: EpisodeState, messages: tuple[Message, ...]) -> Observation:
        """The next observation: the messages, and the tools that are now on offer."""
        return Observation(messages=messages, tools=self.pipeline.tools_per_layer(self.context(state))[-1])

    def tool_message(self, result: ToolResult) -> Message:
        """The message by which the agent sees the result, cut to the limit."""
        text, limit = result.content, self.limits.result_chars
        if len(text) > limit:
            text = f"{text[:limit]}\n[cut: {len(text) - limit} more characters]"
        return Message(role="tool", content=text, tool_call_id=result.call_id, is_error=result.is_error)

    async def run_call(
        self, state: EpisodeState, context: CallContext, call: ToolCall, tools_per_layer: Sequence[tuple[Tool, ...]]
    ) -> ToolResult:
        """The result of the agent's call number `context.index` in its step. Raises StopEpisode, EnvInfraError."""
        if (reason := refuse_call(state, self.limits, context.index)) is not None:
            return refusal(call, reason)
        return await self.pipeline.run(context, call, state.observation.tools, tools_per_layer)

    async def run_user_call(self, call: ToolCall) -> ToolResult:
        """The result of a call by the user: no layer sees it, and the agent's budgets do not pay for it."""
        return await run_without_layers(self.user_tools, call, self.limits)


def make_live_world(setup: EpisodeSetup, world: World, user: UserSession) -> LiveWorld:
    """The world with the tools and limits that its environment and task define."""
    spec = setup.env.spec
    limits = setup.task.limits or spec.limits
    pipeline = ToolPipeline(
        layers=spec.layers, toolbox=agents_toolbox(spec, world.servers), limits=limits, costs=spec.costs
    )
    return LiveWorld(
        setup=setup,
        world=world,
        user=user,
        limits=limits,
        pipeline=pipeline,
        user_tools=users_toolbox(spec, world.servers),
    )
