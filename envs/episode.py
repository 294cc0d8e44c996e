"""The one asynchronous core of every environment: a live episode, stepped, recorded and graded."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace

from gymcp.envs.arguments import check_arguments
from gymcp.envs.spec import EnvSpec, LoadedEnv
from gymcp.envs.toolbox import Toolbox
from gymcp.envs.world import World
from gymcp.errors import EnvInfraError
from gymcp.evaluators.grading import apply_grader
from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.session import open_session
from gymcp.types import (
    Action,
    EpisodeLimits,
    Json,
    Message,
    Observation,
    Outcome,
    Sampled,
    Step,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Usage,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    observation: Observation
    reward: float
    """The score on the last step, 0 before."""
    terminated: bool
    truncated: bool


class Episode:
    """One live episode of one task. Made by `open_episode`; stepped by the task that opened it."""

    def __init__(self, spec: EnvSpec, task: Task, seed: int, toolbox: Toolbox, world: World) -> None:
        self.task = task
        self.states = world.states
        """What the record refers to, by content address."""
        self._spec = spec
        self._seed = seed
        self._limits: EpisodeLimits = task.limits or spec.limits
        self._toolbox = toolbox
        self._world = world
        self._initial_key = world.key
        self._user = spec.user(task)
        self._steps: list[Step] = []
        self._turn = 0
        self._turn_steps = 0
        self._agent_s = 0.0
        self._history = ""
        self._graded: Trajectory | None = None
        self._started = time.perf_counter()
        self._reset_s = 0.0
        self.observation = Observation(messages=(), tools=())

    async def begin(self, reset_s: float) -> None:
        """Lets the user speak first."""
        self._reset_s = reset_s
        first = await self._user.reply("")
        self.observation = self._observe((first,) if first else ())

    async def step(self, action: Action, *, agent_s: float = 0.0, sampled: Sampled | None = None) -> Transition:
        """Executes the calls in order; without calls, ends the user turn.

        `agent_s`: seconds the agent took to decide, charged to its budget. What a tool or the agent does wrong is an
        observation; raises EnvInfraError where a server is lost, or after the end.
        """
        if self._graded is not None:
            raise EnvInfraError(f"environment '{self._spec.name}': step after the episode ended; reset first")
        observation, state_key = self.observation, self._state_key()
        results = [await self._call(index, call) for index, call in enumerate(action.tool_calls)]
        await self._world.update()
        self._steps.append(
            Step(
                turn=self._turn,
                observation=observation,
                action=action,
                results=tuple(results),
                state_key=state_key,
                world_key=self._world.key,
                state_ref=self._world.state_ref,
                sampled=sampled,
                valid=bool(action.tool_calls or action.text),
                agent_s=agent_s,
            )
        )
        self._agent_s += agent_s
        self._turn_steps += 1
        terminated = not await self._answer(action, results)
        spent = None if terminated else self._budget_spent()
        reward = self._grade(spent) if terminated or spent else 0.0
        return Transition(
            observation=self.observation, reward=reward, terminated=terminated, truncated=spent is not None
        )

    async def _answer(self, action: Action, results: list[ToolResult]) -> bool:
        """Makes the next observation; False where the user has nothing left to ask."""
        if action.tool_calls:
            self.observation = self._observe(tuple(self._tool_message(result) for result in results))
            return True
        reply = await self._user.reply(action.text)
        self._turn += 1
        self._turn_steps = 0
        self.observation = self._observe((reply,) if reply else ())
        return reply is not None

    def _observe(self, messages: tuple[Message, ...]) -> Observation:
        withheld = self.task.withheld[self._turn] if self._turn < len(self.task.withheld) else frozenset[str]()
        return Observation(messages=messages, tools=self._toolbox.offered(withheld))

    def _tool_message(self, result: ToolResult) -> Message:
        text, limit = result.content, self._limits.result_chars
        if len(text) > limit:
            text = f"{text[:limit]}\n[cut: {len(text) - limit} more characters]"
        return Message(role="tool", content=text, tool_call_id=result.call_id, is_error=result.is_error)

    async def _call(self, index: int, call: ToolCall) -> ToolResult:
        def refuse(why: str) -> ToolResult:
            return ToolResult(call_id=call.id, content=why, is_error=True)

        if index >= self._limits.calls_per_step:
            return refuse(f"not run: at most {self._limits.calls_per_step} calls in one step")
        offered = [tool.name for tool in self.observation.tools]
        if call.name not in offered:
            return refuse(f"no tool '{call.name[:200]}'; have {', '.join(offered) or 'none'}")
        arguments = check_arguments(call.arguments, self._limits.argument_bytes)
        if isinstance(arguments, str):
            return refuse(f"tool '{call.name}': {arguments}")
        result = await self._toolbox.call(call, arguments, timeout_s=self._limits.call_timeout_s)
        return replace(result, cost=self._spec.cost(call.name))

    def _state_key(self) -> str:
        """The anchor of the coming step: environment, task, user turn, world and, by `EnvSpec.anchor`, what was seen.

        Source: GiGPO, arXiv:2505.10978, which compares steps taken in the same state.
        """
        seen = [[message.role, message.content] for message in self.observation.messages]
        parts: list[Json] = [self._spec.name, self._spec.version, self.task.id, self._turn, self._world.key]
        if self._spec.anchor == "world+observation":
            parts.append(seen)
        elif self._spec.anchor == "world+history":
            self._history = digest([self._history, seen])
            parts.append(self._history)
        return digest(parts)

    def _budget_spent(self) -> str | None:
        limits = self._limits
        if len(self._steps) >= limits.steps:
            return f"{limits.steps} steps"
        if limits.steps_per_turn is not None and self._turn_steps >= limits.steps_per_turn:
            return f"{limits.steps_per_turn} steps in one user turn"
        if limits.agent_s is not None and self._agent_s >= limits.agent_s:
            return f"{limits.agent_s:g} s of the agent's time"
        return None

    def _grade(self, spent: str | None) -> float:
        started = time.perf_counter()
        record = self.record(Outcome.BUDGET_EXHAUSTED if spent else Outcome.SCORED)
        graded = apply_grader(self._spec.grade, self.task, record, self.states.__getitem__)
        reward = graded.score or 0.0
        self._graded = replace(
            graded,
            steps=(*graded.steps[:-1], replace(graded.steps[-1], reward=reward)),
            reason=f"out of budget ({spent}); {graded.reason}" if spent else graded.reason,
            usage=replace(graded.usage, grading_s=time.perf_counter() - started),
        )
        return reward

    @property
    def turn(self) -> int:
        """The user turn, from 0."""
        return self._turn

    @property
    def world_key(self) -> str:
        """Digest of the world as it is now."""
        return self._world.key

    @property
    def graded(self) -> Trajectory | None:
        """The graded record; None before the end."""
        return self._graded

    def record(self, outcome: Outcome, reason: str = "") -> Trajectory:
        """What has happened so far, without a score."""
        results = [result for step in self._steps for result in step.results]
        return Trajectory(
            id="",
            env=self._spec.name,
            task=self.task.id,
            seed=self._seed,
            steps=tuple(self._steps),
            initial_key=self._initial_key,
            final_key=self._world.key,
            final_state=self._world.state_ref,
            outcome=outcome,
            reason=reason,
            usage=Usage(
                tool_calls=len(results),
                tool_errors=sum(result.is_error for result in results),
                cost=sum(result.cost for result in results),
                wall_s=self._reset_s + time.perf_counter() - self._started,
                reset_s=self._reset_s,
                agent_s=self._agent_s,
                tool_s=sum(result.seconds for result in results),
            ),
        )


@contextlib.asynccontextmanager
async def open_episode(env: LoadedEnv, sandbox: Sandbox, task: Task, *, seed: int) -> AsyncIterator[Episode]:
    """A fresh world for `task`: new server processes, new state; nothing of it remains on the way out.

    Enter and leave it in the same task. Raises EnvInfraError where a server does not start.
    """
    started = time.perf_counter()
    async with contextlib.AsyncExitStack() as stack:
        sessions = []
        for server in env.servers:
            state = task.initial_state
            if len(env.servers) > 1:
                state = state.get(server.name) if isinstance(state, Mapping) else None
            sessions.append(
                await stack.enter_async_context(open_session(server, sandbox, initial_state=state, seed=seed))
            )
        world = World(sessions)
        await world.update()
        episode = Episode(env.spec, task, seed, Toolbox(sessions, env.spec.tools), world)
        await episode.begin(time.perf_counter() - started)
        yield episode
