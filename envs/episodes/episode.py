"""The one asynchronous core of every environment: a live episode, stepped, recorded and graded."""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from gymcp.aio import hosted
from gymcp.envs.episodes.baselines import check_baseline
from gymcp.envs.episodes.call_validation import check_call, recordable
from gymcp.envs.episodes.snapshots import Snapshot, WorldImage, all_of, capture, parted
from gymcp.envs.episodes.tool_pipeline import Passage
from gymcp.envs.episodes.toolbox import agents_toolbox, users_toolbox
from gymcp.envs.episodes.usage import Bill, by_tool
from gymcp.envs.episodes.user_turn import Counterpart, handbook_of
from gymcp.envs.episodes.world import Origin, World, open_world
from gymcp.envs.errors import ResetNeeded
from gymcp.envs.layers import Scene, StopEpisode, refusal
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import CannotFork, EnvInfraError, ServerLimitExceeded, SnapshotError, Undigestible
from gymcp.evaluators.grading import apply_grader
from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.types import (
    Action,
    Decision,
    EpisodeLimits,
    GiveUp,
    Json,
    Message,
    Observation,
    Outcome,
    Step,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
    Usage,
    UserAct,
)

RESULT_BYTES = 256_000_000
"""Bytes of all results of an episode before calls are refused, because a row of a run folder is bounded."""
_SPENT = (ServerLimitExceeded, Undigestible)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    observation: Observation
    reward: float
    """The score on the last step, 0 before."""
    terminated: bool
    truncated: bool


class Episode:
    """One live episode of one task. Made by `open_episode`; stepped by one task at a time."""

    def __init__(self, origin: Origin, parent: str | None = None) -> None:
        spec, task = origin.env.spec, origin.task
        self.id = uuid.uuid4().hex
        self.task = task
        self.states: dict[str, Json] = {}
        """What the record refers to, by content address."""
        self._parent = parent
        self._origin = origin
        self._spec = spec
        self._limits: EpisodeLimits = task.limits or spec.limits
        self._live = contextlib.AsyncExitStack()
        """Closes the servers; what they are can be replaced by a restore."""
        self._user = Counterpart(spec.user(task), origin.seed)
        self._steps: list[Step] = []
        self._turn = 0
        self._turn_steps = 0
        self._agent_s = 0.0
        self._tool_s = 0.0
        self._world_s = 0.0
        """Seconds of looking at what the calls left, which takes long if they left much."""
        self._result_bytes = 0
        self._cut_short_s = 0.0
        """Of calls that have no result, because the server or the episode ended in them."""
        self._history = ""
        self._bill = Bill()
        self._graded: Trajectory | None = None
        self._broken: EnvInfraError | None = None
        """What every step raises, once a server is lost."""
        self._started = time.perf_counter()
        self._reset_s = 0.0
        self.observation = Observation(messages=(), tools=())

    def _attach(self, world: World) -> None:
        self._world = world
        tools = agents_toolbox(self._spec, world.servers)
        self._passage = Passage(spec=self._spec, limits=self._limits, toolbox=tools)
        self._user_toolbox = users_toolbox(self._spec, world.servers)
        self.states |= world.states
        world.states = self.states

    async def _begin(self, world: World, reset_s: float) -> None:
        """Lets the user speak first."""
        self._attach(world)
        self._initial_key = world.key
        self._reset_s = reset_s
        first = await self._user.first_words()
        self.observation = self._observe((*handbook_of(self.task), *((first,) if first else ())))

    async def step(self, action: Action | Decision, *, agent_s: float = 0.0) -> Transition:
        """Executes the calls in order; without calls, ends the user turn.

        `agent_s`: seconds the agent took to decide, charged to its budget. What a tool or the agent does wrong is an
        observation; what it does to a server's limits or to the world's, such that its state cannot be told any more,
        ends the episode, graded on the state before this step. Raises EnvInfraError if a server is lost otherwise, and
        then in every later step; ResetNeeded after the end.
        """
        self._check_live()
        sampled = None
        if isinstance(action, Decision):
            sampled = action.sampled
            self._bill.add(action)
            action = action.action
        action = recordable(action)
        begun = Step(
            turn=self._turn,
            observation=self.observation,
            action=action,
            state_key=self._state_key(),
            sampled=sampled,
            valid=action.is_usable,
            agent_s=agent_s,
        )
        self._agent_s += agent_s
        self._turn_steps += 1
        results: list[ToolResult] = []
        acts: list[UserAct] = []
        reply: Message | None = None
        known, lost = self._world.known, False
        try:
            spent = await self._execute(action, results)
            if not action.tool_calls:
                reply = await self._ask_user(begun, acts)
        except _SPENT as error:  # the world stays the one before this step: nobody can tell it any more
            self._world.go_back(known)
            spent, lost = str(error), True
        except EnvInfraError as error:
            self._broken = error
            raise
        finally:  # a step in which a server was lost is recorded as far as it came
            world = self._world
            done = replace(begun, results=tuple(results), user_acts=tuple(acts))
            self._steps.append(replace(done, world_key=world.key, state_ref=world.state_ref))
        terminated = not action.tool_calls and reply is None and not lost
        self._go_on(action, results, reply)
        spent = None if terminated else spent
        outcome = Outcome.BUDGET_EXHAUSTED if spent else Outcome.SCORED
        reward = self._grade(outcome, spent or "") if terminated or spent else 0.0
        return Transition(
            observation=self.observation, reward=reward, terminated=terminated, truncated=spent is not None
        )

    async def give_up(self, end: GiveUp) -> Transition:
        """Ends the episode where it is, as the agent wants: out of budget, or an agent error. Raises EnvInfraError."""
        self._check_live()
        known, reason = self._world.known, end.reason
        try:
            await self._world.update()
            await self._world.confirm()
        except _SPENT as error:
            self._world.go_back(known)
            reason = f"{reason}; {error}"
        except EnvInfraError as error:
            self._broken = error
            raise
        reward = self._grade(end.outcome, reason)
        return Transition(observation=self.observation, reward=reward, terminated=False, truncated=True)

    def _check_live(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self._graded is not None:
            raise ResetNeeded(f"environment '{self._spec.name}': the episode has ended; reset first")

    async def _execute(self, action: Action, results: list[ToolResult]) -> str | None:
        """Runs the calls and adds their `results`; which budget is spent afterwards, if any. Raises EnvInfraError."""
        stopped = ""
        for index, call in enumerate(action.tool_calls):
            try:
                result = await self._call(index, call)
            except _SPENT as error:
                results.append(ToolResult(call_id=call.id, content=str(error), is_error=True))
                raise
            except StopEpisode as stop:
                results.append(ToolResult(call_id=call.id, content=str(stop), is_error=True))
                stopped = str(stop)
                break
            results.append(result)
            self._tool_s += result.seconds
            self._result_bytes += result.bytes
        asked = time.perf_counter()
        await self._world.update()
        self._world_s += time.perf_counter() - asked
        spent = stopped or self._budget_spent(len(self._steps) + 1, self._turn_steps if action.tool_calls else 0)
        if spent or not action.tool_calls:
            await self._world.confirm()
        return spent

    async def _ask_user(self, said: Step, acts: list[UserAct]) -> Message | None:
        """What the user answers; None: nothing any more. What they do before changes the world, and is in `acts`."""
        tools = self._user_toolbox.offered(frozenset())
        reply = await self._user.answer(self._steps, said, tools, self._call_for_user, acts)
        if acts:
            await self._world.update()
            await self._world.confirm()
        return reply

    def _go_on(self, action: Action, results: list[ToolResult], reply: Message | None) -> None:
        """Makes the next observation."""
        if action.tool_calls:
            self.observation = self._observe(tuple(self._tool_message(result) for result in results))
            return
        self._turn += 1
        self._turn_steps = 0
        self.observation = self._observe((reply,) if reply else ())

    def _observe(self, messages: tuple[Message, ...]) -> Observation:
        return Observation(messages=messages, tools=self._passage.offered(self._scene()))

    def _scene(self, index: int = 0) -> Scene:
        return Scene(
            task=self.task,
            seed=self._origin.seed,
            turn=self._turn,
            steps=self._steps,
            index=index,
            said=tuple(
                message.content
                for observation in (*(step.observation for step in self._steps), self.observation)
                for message in observation.messages
                if message.role == "user"
            ),
            servers=self._passage.toolbox.servers,
            confirm=self._user.confirm,
            ask=self._user.tell,
        )

    def _tool_message(self, result: ToolResult) -> Message:
        text, limit = result.content, self._limits.result_chars
        if len(text) > limit:
            text = f"{text[:limit]}\n[cut: {len(text) - limit} more characters]"
        return Message(role="tool", content=text, tool_call_id=result.call_id, is_error=result.is_error)

    async def _call(self, index: int, call: ToolCall) -> ToolResult:
        if index >= self._limits.calls_per_step:
            return refusal(call, f"not run: at most {self._limits.calls_per_step} calls in one step")
        if self._tool_s >= self._limits.tool_s:
            return refusal(call, f"not run: the tools have taken {self._limits.tool_s:g} s together")
        if self._result_bytes >= RESULT_BYTES:
            return refusal(call, f"not run: the results have {RESULT_BYTES} bytes together")
        asked = time.perf_counter()
        try:
            return await self._passage.call(self._scene(index), call, self.observation.tools)
        except BaseException:  # noted and passed on
            self._cut_short_s += time.perf_counter() - asked
            raise

    async def _call_for_user(self, call: ToolCall) -> ToolResult:
        """Without layers, and not on the agent's account."""
        limits, tools = self._limits, self._user_toolbox
        arguments = check_call(call, tools.offered(frozenset()), limits.argument_bytes)
        if isinstance(arguments, str):
            return refusal(call, arguments)
        return await tools.call(call, arguments, timeout_s=limits.call_timeout_s)

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

    def _budget_spent(self, steps: int, turn_steps: int) -> str | None:
        limits = self._limits
        if steps >= limits.steps:
            return f"{limits.steps} steps"
        if limits.steps_per_turn is not None and turn_steps >= limits.steps_per_turn:
            return f"{limits.steps_per_turn} steps in one user turn"
        if limits.agent_s is not None and self._agent_s >= limits.agent_s:
            return f"{limits.agent_s:g} s of the agent's time"
        if self._tool_s >= limits.tool_s:
            return f"{limits.tool_s:g} s of the tools' time"
        if self._tool_s + self._world_s >= limits.tool_s:
            return f"{limits.tool_s:g} s of the tools' time, with that for reading what they left"
        if self._result_bytes >= RESULT_BYTES:
            return f"{RESULT_BYTES} bytes of results"
        return None

    def _grade(self, outcome: Outcome, why: str) -> float:
        started = time.perf_counter()
        graded = apply_grader(self._spec.grade, self.task, self.record(outcome, why), self.states.__getitem__)
        reward = graded.score or 0.0
        steps = graded.steps
        if outcome is Outcome.BUDGET_EXHAUSTED:
            why = f"out of budget ({why})"
        reasons = dict.fromkeys(reason for reason in (why, graded.reason, *self._bill.notes) if reason)
        self._graded = replace(
            graded,
            steps=(*steps[:-1], replace(steps[-1], reward=reward)) if steps else (),
            reason="; ".join(reasons),
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
    def state_ref(self) -> str | None:
        """Content address of the state as it is now; None where the servers tell none."""
        return self._world.state_ref

    @property
    def cost(self) -> float:
        """Money for models and tools so far."""
        return math.fsum(
            [self._bill.cost, self._user.bill.cost, *(result.cost for step in self._steps for result in step.results)]
        )

    @property
    def graded(self) -> Trajectory | None:
        """The graded record; None before the end."""
        return self._graded

    def record(self, outcome: Outcome, reason: str = "") -> Trajectory:
        """What has happened so far, without a score."""
        results = [result for step in self._steps for result in step.results]
        return Trajectory(
            id=self.id,
            env=self._spec.name,
            task=self.task.id,
            seed=self._origin.seed,
            parent=self._parent,
            steps=tuple(self._steps),
            initial_key=self._initial_key,
            final_key=self._world.key,
            final_state=self._world.state_ref,
            outcome=outcome,
            reason=reason,
            usage=Usage(
                tool_calls=len(results),
                tool_errors=sum(result.is_error for result in results),
                user_calls=sum(len(act.calls) for step in self._steps for act in step.user_acts),
                prompt_tokens=self._bill.prompt_tokens,
                completion_tokens=self._bill.completion_tokens,
                cost=self.cost,
                user_cost=self._user.bill.cost,
                wall_s=self._reset_s + time.perf_counter() - self._started,
                reset_s=self._reset_s,
                agent_s=self._agent_s,
                tool_s=self._cut_short_s + math.fsum(result.seconds for result in results),
                user_s=self._user.seconds,
                tools=by_tool(self._steps),
                models={name: dict(entry) for name, entry in self._bill.models.items()},
            ),
        )

    # ---------------------------------------------------------------------------------------------------- snapshots

    async def snapshot(self, *, opens: int | None = None) -> Snapshot:
        """This point of the episode, to `restore` or to go on from in episodes of their own.

        `opens`: how often it will be gone on from, where that is known: servers that can be copied are, as often.
        Raises SnapshotError, ResetNeeded after the end.
        """
        self._check_live()
        image = await capture(self._world, opens)
        await self._world.update()
        key = self._steps[-1].world_key if self._steps else self._initial_key
        if self._world.key != key:
            if image is not None:
                image.discard()
            raise SnapshotError(f"environment '{self._spec.name}': the world has changed since the last step")
        return Snapshot(
            episode=self.id,
            origin=self._origin,
            initial_key=self._initial_key,
            world_key=key,
            image=image,
            told=self._world.is_told,
            observation=self.observation,
            steps=tuple(self._steps),
            states=dict(self.states),
            turn=self._turn,
            turn_steps=self._turn_steps,
            agent_s=self._agent_s,
            history=self._history,
        )

    async def restore(self, snapshot: Snapshot) -> None:
        """Goes back, or over, to a snapshot of the same task: the record becomes the snapshot's.

        Call it in the task that opened the episode. Raises SnapshotError, after which the episode is lost.
        """
        if snapshot.origin.task.id != self.task.id or snapshot.origin.env.spec.name != self._spec.name:
            raise SnapshotError(f"task '{self.task.id}': the snapshot is of task '{snapshot.origin.task.id}'")
        await self._live.aclose()
        # servers of its own sandbox, whoever the snapshot was taken from
        await self._resume(replace(snapshot, origin=replace(snapshot.origin, sandbox=self._origin.sandbox)))

    @contextlib.asynccontextmanager
    async def fork(self, n: int) -> AsyncIterator[list[Episode]]:
        """`n` episodes that go on from here, with servers of their own, usable at the same time as this one.

        Their records hold the steps so far, and this episode as their parent. Raises SnapshotError.
        """
        snapshot = await self.snapshot(opens=n)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(snapshot.discard)
            yield await all_of([stack.enter_async_context(open_snapshot(snapshot)) for _ in range(n)])

    async def _resume(self, snapshot: Snapshot) -> None:
        if snapshot.image is None or not await self._enter_image(snapshot, snapshot.image):
            await self._replay(snapshot)
        self._initial_key = snapshot.initial_key
        self._steps = list(snapshot.steps)
        self._turn, self._turn_steps = snapshot.turn, snapshot.turn_steps
        self._agent_s, self._history = snapshot.agent_s, snapshot.history
        self._tool_s = sum(result.seconds for step in snapshot.steps for result in step.results)
        self._graded = self._broken = None
        self.states |= snapshot.states
        self.observation = snapshot.observation

    async def _enter_image(self, snapshot: Snapshot, image: WorldImage) -> bool:
        """False where the image can no longer be opened, or the servers are not in the state they were in."""
        try:
            world = await self._live.enter_async_context(hosted(open_world(snapshot.origin, image.servers)))
        except CannotFork:
            return False
        if world.key != snapshot.world_key:
            await self._live.aclose()
            return False
        self._attach(world)
        return True

    async def _replay(self, snapshot: Snapshot) -> None:
        """Runs the recorded calls on a fresh world, which must be the recorded one after every step."""
        world = await self._live.enter_async_context(hosted(open_world(snapshot.origin)))
        self._attach(world)
        if world.key != snapshot.initial_key:
            raise SnapshotError(parted(snapshot, 0, snapshot.initial_key, world.key))
        for number, step in enumerate(snapshot.steps, start=1):
            self.observation = step.observation
            self._steps, self._turn = list(snapshot.steps[: number - 1]), step.turn
            results = [await self._call(index, call) for index, call in enumerate(step.action.tool_calls)]
            told = list(step.results)
            for act in step.user_acts:
                results += [await self._call_for_user(call) for call in act.calls]
                told += act.results
            await world.update()
            if world.key != step.world_key:
                raise SnapshotError(parted(snapshot, number, step.world_key, world.key))
            if not snapshot.told and [r.content for r in results] != [r.content for r in told]:
                raise SnapshotError(parted(snapshot, number, "the answers of the record", "others"))


@contextlib.asynccontextmanager
async def open_episode(env: LoadedEnv, sandbox: Sandbox, task: Task, *, seed: int) -> AsyncIterator[Episode]:
    """A fresh world for `task`, proven clean: new server processes, new state; nothing of it remains on the way out.

    Servers are forked in a sandbox of `open_warm_sandbox`, else started. Templates are not kept behind the caller's
    back: they are processes of one event loop, which must end with it, and an episode does not know how many come
    after it.

    Enter and leave it in the same task. Raises DirtyReset where the world is not the task's baseline, EnvInfraError
    where a server does not start.
    """
    started = time.perf_counter()
    origin = Origin(env=env, sandbox=sandbox, task=task, seed=seed)
    episode = Episode(origin)
    async with _closing(episode):
        world = await episode._live.enter_async_context(open_world(origin))
        await check_baseline(world)
        await episode._begin(world, time.perf_counter() - started)
        yield episode


@contextlib.asynccontextmanager
async def open_snapshot(snapshot: Snapshot) -> AsyncIterator[Episode]:
    """An episode of its own that goes on from the snapshot. Raises SnapshotError, EnvInfraError."""
    started = time.perf_counter()
    episode = Episode(snapshot.origin, parent=snapshot.episode)
    async with _closing(episode):
        await episode._resume(snapshot)
        episode._reset_s = time.perf_counter() - started
        yield episode


@contextlib.asynccontextmanager
async def _closing(episode: Episode) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await episode._live.aclose()
