"""Episodes: a live world, stepped, recorded and graded. All environments, agents and trainers run on this one core."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import replace

from gymcp.envs.episodes.call_validation import make_recordable
from gymcp.envs.episodes.episode_state import EpisodeState, Transition, Truncation, check_budgets, find_undone
from gymcp.envs.episodes.live_world import LiveWorld, make_live_world
from gymcp.envs.episodes.records import add_reason, begin_step, grade_record, make_usage, total_cost
from gymcp.envs.episodes.restore import open_beside, restore_world
from gymcp.envs.episodes.snapshots import Snapshot, make_recorded_point, snapshot_world, wait_for_all
from gymcp.envs.episodes.usage import EpisodeClock, UsageMeter
from gymcp.envs.episodes.user_turn import Pause, UserSession, system_messages
from gymcp.envs.errors import ResetNeeded
from gymcp.envs.layers import StopEpisode
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.worlds.fresh_world import verify_fresh_world
from gymcp.envs.worlds.server_losses import UNTRIED, Attempts, Loss
from gymcp.envs.worlds.world import EpisodeSetup, World, open_world
from gymcp.errors import EnvInfraError, SnapshotError
from gymcp.evaluators.graders.dynamic import GROUND_TRUTHS
from gymcp.evaluators.judge.asking import ask_judge
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.outcome import Outcome
from gymcp.types import (
    Action,
    Decision,
    GiveUp,
    Json,
    Message,
    Observation,
    SideAnswer,
    Step,
    Task,
    ToolResult,
    Trajectory,
    UserToolCalls,
)


class Episode:
    """One live episode of one task. Made by `open_episode`; stepped by one task at a time."""

    def __init__(
        self,
        live: LiveWorld,
        servers: contextlib.AsyncExitStack,
        *,
        state: EpisodeState,
        states: dict[str, Json],
        clock: EpisodeClock,
        parent: str | None = None,
    ) -> None:
        """`servers` closes the world of `live`; `states` is the one that the world records into."""
        self.id = uuid.uuid4().hex
        self.task = live.setup.task
        self.state = state
        self.states = states
        """States that the record refers to, by content address."""
        self._live = live
        self._servers = servers
        self._clock = clock
        self._parent = parent
        self.meter = UsageMeter()
        self._ungraded: Trajectory | None = None
        """The record of the ended episode as it goes to the grader."""
        self._trajectory: Trajectory | None = None
        self._failure: Loss | None = None
        """The loss of a server, whose error every later step raises again."""

    async def step(self, action: Action | Decision, *, agent_s: float = 0.0) -> Transition:
        """Executes the calls in order; an action without calls ends the user turn.

        `agent_s`: seconds that the agent took to decide, which its budget pays for. A wrong call, or an error of a
        tool, is an observation. An action that takes a server over its limits, leaves a state that cannot be read, or
        loses a server in every attempt (`Attempts`) ends the episode, which is graded on the state before this step.
        Raises EnvInfraError if a server is lost otherwise, and in every later step; ResetNeeded after the end.
        """
        self._check_active()
        decision = action if isinstance(action, Decision) else Decision(action=action)
        self.meter.add(decision)
        action = make_recordable(decision.action)
        decision = replace(decision, action=action)
        self.state, begun = begin_step(self._live.setup, self.state, self.world.key, decision, agent_s)
        results: list[ToolResult] = []
        user_rounds: list[UserToolCalls] = []
        reply: Message | None = None
        before = self.world.state
        try:
            truncation = await self._execute(action, results)
            if not action.tool_calls:
                reply = await self._ask_user(begun, user_rounds)
        except EnvInfraError as error:
            if (why := self._note_loss(error, action)) is None:
                raise
            self.world.state = before
            truncation = Truncation(reason=why, world_lost=True)
        finally:  # a step in which a server was lost is recorded as far as it came
            self._record_step(begun, results, user_rounds)
        self._observe(action, results, reply)
        user_left = not action.tool_calls and reply is None
        if user_left and not (truncation is not None and truncation.world_lost):
            return self._end(terminated=True, reward=self._grade(Outcome.SCORED, ""))
        if truncation is not None:
            return self._end(terminated=False, reward=self._grade(Outcome.BUDGET_EXHAUSTED, truncation.reason))
        return Transition(observation=self.observation, reward=0.0, terminated=False, truncated=False)

    async def give_up(self, end: GiveUp) -> Transition:
        """Ends the episode as it stands because the agent gives up, with the agent's outcome. Raises EnvInfraError."""
        self._check_active()
        self.add_side_answers(end.side_answers)
        before, reason = self.world.state, end.reason
        try:
            await self.world.update()
            await self.world.verify_state()
        except EnvInfraError as error:
            if (why := self._note_loss(error)) is None:
                raise
            self.world.state = before
            reason = f"{reason}; {why}"
        return self._end(terminated=False, reward=self._grade(end.outcome, reason))

    def add_side_answers(self, answers: tuple[SideAnswer, ...]) -> None:
        """Records answers of the agent's model that are no step."""
        self.meter.add_usages(answer.spent for answer in answers)
        self.state = self.state.add_side_answers(answers)

    def _check_active(self) -> None:
        if self._failure is not None:
            raise self._failure.error
        if self._trajectory is not None:
            raise ResetNeeded(f"environment '{self._live.setup.env.spec.name}': the episode has ended; reset first")

    def _note_loss(self, error: EnvInfraError, *action: Action) -> str | None:
        """The reason for an end that is graded; None after an error without a score, which is kept as the failure."""
        actions = (*(step.action for step in self.state.steps), *action)
        loss = Loss(error=error, actions=actions, is_excused=self.world.excuses_losses)
        why = loss.describe_end(self._live.setup.attempts)
        self._failure = loss if why is None else None
        return why

    async def _execute(self, action: Action, results: list[ToolResult]) -> Truncation | None:
        """Runs the calls, appends their `results` and reads the state. Raises EnvInfraError."""
        truncation = await self._run_calls(action, results)
        with self._clock.time_observing():
            await self.world.update()
        if truncation is None:
            waited, ends_turn = self._clock.observing_s, not action.tool_calls
            truncation = check_budgets(self.state, self._live.limits, ends_turn=ends_turn, observing_s=waited)
        if truncation is not None or not action.tool_calls:
            await self.world.verify_state()
        return truncation

    async def _run_calls(self, action: Action, results: list[ToolResult]) -> Truncation | None:
        """Runs the calls until a layer stops the episode."""
        if not action.tool_calls:
            return None
        context = self._live.context(self.state)
        tools = self._live.pipeline.tools_per_layer(context)
        for index, call in enumerate(action.tool_calls):
            try:
                with self._clock.time_aborted():
                    result = await self._live.run_call(self.state, replace(context, index=index), call, tools)
            except EnvInfraError as error:
                if self._note_loss(error, action) is not None:
                    results.append(ToolResult(call_id=call.id, content=str(error), is_error=True))
                raise
            except StopEpisode as stop:
                results.append(ToolResult(call_id=call.id, content=str(stop), is_error=True))
                return Truncation(reason=str(stop))
            results.append(result)
            self.state = self.state.add_result(result)
        return None

    async def _ask_user(self, begun: Step, rounds: list[UserToolCalls]) -> Message | None:
        """The user's reply; None if the user leaves. Calls that the user makes change the world; `rounds` has them."""
        live = self._live
        tools = live.user_tools.list_tools(frozenset())
        reply = await live.user.reply(self.state.steps, begun, tools, live.run_user_call, rounds)
        if rounds:
            await self.world.update()
            await self.world.verify_state()
        return reply

    def _record_step(self, begun: Step, results: list[ToolResult], user_rounds: list[UserToolCalls]) -> None:
        now = self.world.state
        self.state = self.state.add_step(
            replace(
                begun,
                results=tuple(results),
                user_acts=tuple(user_rounds),
                world_key=now.key,
                state_ref=now.ref,
            )
        )

    def _observe(self, action: Action, results: list[ToolResult], reply: Message | None) -> None:
        """Makes the observation before the next step."""
        if action.tool_calls:
            messages = tuple(self._live.tool_message(result) for result in results)
        else:
            self.state = self.state.next_turn()
            messages = (reply,) if reply else ()
        self.state = replace(self.state, observation=self._live.observe(self.state, messages))

    def _end(self, *, terminated: bool, reward: float) -> Transition:
        return Transition(observation=self.observation, reward=reward, terminated=terminated, truncated=not terminated)

    def _grade(self, outcome: Outcome, why: str) -> float:
        self._ungraded = self.record(outcome, why)
        self._trajectory, reward = grade_record(
            self._live.setup, self._ungraded, self.states.__getitem__, self.meter.notes
        )
        return reward

    async def consult_judge(self) -> float:
        """Ask the environment's judge what the grader of the ended episode lacks, grade again; return the cost.

        Does nothing without a judge, or if the grader needs none.
        """
        seat, ungraded = self._live.setup.env.judge, self._ungraded
        failed = self._trajectory is not None and self._trajectory.outcome is Outcome.GRADER_ERROR
        if seat is None or ungraded is None or not failed:
            return 0.0
        started = time.perf_counter()
        setup, states = self._live.setup, self.states.__getitem__
        asked = await ask_judge(setup.env.spec.grade, self.task, ungraded, states, seat)
        if not asked.truths:
            return 0.0
        answered = replace(ungraded, provenance={**ungraded.provenance, GROUND_TRUTHS: asked.truths})
        judging_s = time.perf_counter() - started
        self._trajectory, _ = grade_record(setup, answered, states, self.meter.notes, judging_s=judging_s)
        return asked.cost

    @property
    def world(self) -> World:
        """The world that the episode runs in; a restore replaces it."""
        return self._live.world

    @property
    def observation(self) -> Observation:
        """Messages and tools that the agent sees before the next step."""
        return self.state.observation

    @property
    def turn(self) -> int:
        """The user turn, from 0."""
        return self.state.turn

    @property
    def world_key(self) -> str:
        """Digest of the present state of the world."""
        return self.world.key

    @property
    def state_ref(self) -> str | None:
        """Content address of the present state; None if the servers declare no state."""
        return self.world.state.ref

    @property
    def cost(self) -> float:
        """Cost of models and tools so far."""
        return total_cost(self.state, self.meter, self._live.user)

    @property
    def trajectory(self) -> Trajectory | None:
        """The graded record; None before the end."""
        return self._trajectory

    def record(self, outcome: Outcome, reason: str = "") -> Trajectory:
        """The record so far, without a score."""
        setup, state = self._live.setup, self.state
        return Trajectory(
            id=self.id,
            env=setup.env.spec.name,
            task=self.task.id,
            seed=setup.seed,
            parent=self._parent,
            steps=state.steps,
            side_answers=state.side_answers,
            initial_key=state.initial_key,
            final_key=self.world_key,
            final_state=self.state_ref,
            outcome=outcome,
            reason=reason,
            usage=make_usage(state, self.meter, self._live.user, self._clock),
            provenance=self._failure.provenance() if self._failure is not None else {},
        )

    async def snapshot(self, *, opens: int | None = None) -> Snapshot:
        """This point of the episode, to `restore` or to continue from in episodes of their own.

        `opens`: how often it will be continued, if that is known: servers that can be forked are forked as often ahead.
        Raises SnapshotError, ResetNeeded after the end.
        """
        self._check_active()
        world = await snapshot_world(self.world, opens)
        await self.world.update()
        if self.world.key != self.state.world_key:
            if world is not None:
                world.discard()
            raise SnapshotError(f"task '{self.task.id}': the world has changed since the last step")
        point = make_recorded_point(self.id, self.world, self.state, self.states)
        return replace(point, setup=self._live.setup, world=world)

    async def restore(self, snapshot: Snapshot) -> None:
        """Goes back, or over, to a snapshot of the same task: the record becomes the snapshot's.

        The usage keeps the calls of steps that were taken back. Raises EnvInfraError, such as SnapshotError, after
        which the episode is as it was.
        """
        own, other, paid = self._live.setup, snapshot.setup, list[float]()
        if other.task.id != own.task.id or other.env.spec.name != own.env.spec.name:
            raise SnapshotError(f"task '{own.task.id}': the snapshot is of task '{other.task.id}'")
        try:
            live, servers = await open_beside(snapshot, own, self._live.user, self.states, paid)
        finally:
            self.meter.add_replay(paid)
        self.meter.undone += find_undone(self.state.steps, snapshot.state.steps)
        self._live, self.state = live, snapshot.state
        self.states |= snapshot.states
        self._ungraded = self._trajectory = self._failure = None
        try:
            await self._servers.aclose()
        finally:
            self._servers.push_async_callback(servers.aclose)

    def add_note(self, note: str) -> None:
        """Adds a note to the reason of the record, also of one that is graded."""
        self.meter.notes.append(note)
        if self._trajectory is not None:
            self._trajectory = add_reason(self._trajectory, note)

    def take_back(self, graded: Trajectory, note: str) -> None:
        """Ends the episode with the graded record that it had before a restore."""
        self._trajectory = add_reason(graded, note)

    @contextlib.asynccontextmanager
    async def fork(self, n: int) -> AsyncIterator[list[Episode]]:
        """`n` episodes that continue from here, with servers of their own, usable at the same time as this one.

        Their records hold the steps so far, and this episode as their parent. Raises SnapshotError.
        """
        snapshot = await self.snapshot(opens=n)
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(snapshot.discard)
            yield await wait_for_all([stack.enter_async_context(open_snapshot(snapshot)) for _ in range(n)])


@contextlib.asynccontextmanager
async def open_episode(
    env: LoadedEnv, sandbox: Sandbox, task: Task, *, seed: int, pause: Pause = nullcontext, attempts: Attempts = UNTRIED
) -> AsyncIterator[Episode]:
    """A fresh world for `task`, proven clean: new server processes, new state; nothing of it remains on the way out.

    `pause`: context in which the user is waited for, because a model may play it. `attempts`: those at this episode.
    Servers are forked if the sandbox is warm (`open_warm_sandbox`), else started. The caller keeps the fork servers,
    because they belong to one event loop and end with it, and an episode does not know how many follow.

    Enter and leave the context in the same task. Raises DirtyReset if the world is not the task's baseline,
    EnvInfraError if a server does not start.
    """
    started = time.perf_counter()
    setup = EpisodeSetup(env=env, sandbox=sandbox, task=task, seed=seed, attempts=attempts)
    user = UserSession(env.spec.user(task), seed, pause)
    servers, states = contextlib.AsyncExitStack(), dict[str, Json]()
    async with contextlib.aclosing(servers):
        world = await servers.enter_async_context(open_world(setup, states=states))
        await verify_fresh_world(world)
        clock = EpisodeClock(reset_s=time.perf_counter() - started)
        live = make_live_world(setup, world, user)
        first = await user.open()
        state = EpisodeState(initial_key=world.key)
        observation = live.observe(state, (*system_messages(task), *((first,) if first else ())))
        yield Episode(live, servers, state=replace(state, observation=observation), states=states, clock=clock)


@contextlib.asynccontextmanager
async def open_snapshot(snapshot: Snapshot, *, pause: Pause = nullcontext) -> AsyncIterator[Episode]:
    """An episode of its own that continues from the snapshot; `pause` as above. Raises SnapshotError, EnvInfraError."""
    started = time.perf_counter()
    setup = snapshot.setup
    user = UserSession(setup.env.spec.user(setup.task), setup.seed, pause)
    servers, states, paid = contextlib.AsyncExitStack(), dict[str, Json](), list[float]()
    async with contextlib.aclosing(servers):
        live = await restore_world(snapshot, setup, user, servers, states, paid)
        states |= snapshot.states
        clock = EpisodeClock(reset_s=time.perf_counter() - started)
        episode = Episode(live, servers, state=snapshot.state, states=states, clock=clock, parent=snapshot.episode)
        episode.meter.add_replay(paid)
        yield episode
