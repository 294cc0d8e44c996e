"""One agent in one episode, and the record of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial

from gymcp.agents.runner.trees.tree import NOT_REPLACED, Fork, Steered, Steers
from gymcp.agents.strategies.budgets import Budget, RunBudget, limit_agent_time
from gymcp.agents.strategies.guarded_agent import GuardedAgent
from gymcp.aio import PausableTimeout, limit_wait
from gymcp.envs.episodes.episode import Episode, open_episode, open_snapshot
from gymcp.envs.episodes.records import cost_of, subtract_shared
from gymcp.envs.episodes.user_turn import Pause
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.worlds.server_losses import UNTRIED, Attempts
from gymcp.errors import AnswerTimeout, EnvInfraError, GymcpError, PolicyInfraError, ServerTimeout
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.outcome import Outcome
from gymcp.protocols import Agent, AgentFactory, Closes, LeavesAnswers, Resumes
from gymcp.store import BranchRecord
from gymcp.types import Action, Decision, GiveUp, Json, Observation, SideAnswer, Task, Trajectory, Usage
from gymcp.user_code import describe_error

OVERTIME = "more than {:g} s for its part of the episode: servers, calls, states, grading"
"""End of the reason of an episode that the harness could not finish in time."""
_REPORTED: set[str] = set()
"""Failures of a caller's own agents that have been shown on standard error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One episode to run."""

    task: Task
    trial: int
    seed: int
    """Seed of the world and its user and, without `agent_seed`, of the agent."""
    agent_seed: int | None = None
    """Seed of the agent in a search, whose episodes begin in one world; None: `seed`."""
    policy_version: str = ""
    """Version of the policy that plays: all trials of a task by one version form one group."""
    attempts: Attempts = UNTRIED
    """The attempts at it, of which the next one that is played is one."""

    def group(self, env: str) -> str:
        """The name of the job's group."""
        return "/".join(part for part in (env, self.task.id, self.policy_version) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The result of a job."""

    job: Job
    trajectory: Trajectory
    states: Mapping[str, Json]
    """The states that the trajectory refers to, by content address."""
    branches: tuple[BranchRecord, ...] = ()
    """The other episodes of the job's tree, each after its parent (`gymcp.agents.runner.trees`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """The outcome and reason of an episode that did not reach its own end."""

    outcome: Outcome
    reason: str


async def rollout(
    env: LoadedEnv,
    sandbox: Sandbox,
    make_agent: AgentFactory,
    job: Job,
    *,
    timeout_s: float,
    agent_s: float | None = None,
    budget: RunBudget | None = None,
    steering: Steers | None = None,
) -> Rollout:
    """Play one episode to its end. Failures of harness and policy, and a cancellation, become outcomes without a score.

    `timeout_s`: seconds for the harness's own work, in which neither the agent nor the user is waited for. `agent_s`:
    seconds for the agent's decisions together (`limit_agent_time`); after them the episode is ``budget_exhausted``.

    The cost of every step is added to the run's `budget`. Once that is spent, by whichever episode, the agent is not
    asked again and the outcome is ``cancelled``.

    `steering`: the controller's decisions after each step, for an episode of a tree. One that branches off another goes
    on from there: its record has the steps of the whole path, its usage is its own.

    A record is returned in any case, so the CancelledError is swallowed: a caller that cancels must remember that.
    """
    attempt = _Attempt(env, sandbox, make_agent, job, budget or RunBudget(), agent_s, steering)
    failure = await _run_to_record(attempt, timeout_s)
    with contextlib.suppress(asyncio.CancelledError):  # the episode is recorded without a verdict, to be judged later
        await attempt.consult_judge()
    return attempt.rollout(failure)


async def _run_to_record(attempt: _Attempt, timeout_s: float) -> _Failure | None:
    """Play the episode; return the failure that ended it, None if it ended by itself."""
    try:
        async with PausableTimeout(timeout_s) as harness_time:
            return await attempt.play(harness_time)
    except asyncio.CancelledError:
        return _Failure(outcome=Outcome.CANCELLED, reason="interrupted")
    except TimeoutError:
        return _Failure(outcome=Outcome.TIMEOUT, reason=f"the harness took {OVERTIME.format(timeout_s)}")
    except ServerTimeout as error:
        return _Failure(outcome=Outcome.TIMEOUT, reason=str(error))
    except EnvInfraError as error:
        return _Failure(outcome=Outcome.ENV_INFRA, reason=str(error))
    except PolicyInfraError as error:
        return _Failure(outcome=Outcome.POLICY_INFRA, reason=str(error))
    except Exception as error:  # the boundary: one defect must not take hundreds of episodes with it
        return _Failure(outcome=Outcome.ENV_INFRA, reason=f"the harness raised {type(error).__name__}: {error}")


class _Attempt:
    """One attempt at a job. It knows how far the episode has come even if something outside ends `play`."""

    def __init__(
        self,
        env: LoadedEnv,
        sandbox: Sandbox,
        make_agent: AgentFactory,
        job: Job,
        budget: RunBudget,
        agent_limit_s: float | None,
        steering: Steers | None,
    ) -> None:
        self._env = env
        self._sandbox = sandbox
        self._make_agent = make_agent
        self._job = job
        self._budget = budget
        self._steering = steering
        self._fork = steering.fork if steering is not None else None
        self._episode: Episode | None = None
        self._agent_limit_s = limit_agent_time(job.task.limits or env.spec.limits, agent_limit_s)
        if self._fork is not None:
            self._agent_limit_s -= self._fork.snapshot.state.agent_s
        self._paid = cost_of(self._fork.snapshot.state.steps) if self._fork is not None else 0.0
        self._not_replaced: list[int] = []
        self._agent_s = 0.0
        self._started_at = time.time()
        self._started = time.perf_counter()

    async def play(self, harness_time: PausableTimeout) -> _Failure | None:
        """Play until the episode ends or the budget of the run is spent, which is the one failure returned."""
        agent = self._make(_find_agent_seed(self._job, self._fork))
        async with (
            _closing(agent),
            self._open(harness_time.pause) as episode,
            contextlib.AsyncExitStack() as stack,
        ):
            self._episode = episode
            self._pay(episode)
            stack.callback(self._keep_rest, agent, episode)
            if self._fork is not None:
                _resume(agent, episode)
            while not self._budget.is_spent:
                before = episode.state
                steered = Steered(has_ended=await self._step(agent, episode, harness_time.pause))
                if self._steering is not None:
                    look = self._steering.at_end if steered.has_ended else self._steering.after
                    try:
                        steered = await look(episode, before)
                    finally:
                        self._pay(episode)
                    if steered.lacks_replacement:
                        self._not_replaced.append(len(before.steps))
                if steered.has_ended:
                    return None
                if steered.agent_seed is not None:
                    agent = self._make(steered.agent_seed)
                    await stack.enter_async_context(_closing(agent))
                    stack.callback(self._keep_rest, agent, episode)
                    _resume(agent, episode)
        return _Failure(outcome=Outcome.CANCELLED, reason="the money of the run is spent")

    def _open(self, pause: Pause) -> AbstractAsyncContextManager[Episode]:
        """A fresh episode, or one that goes on from the point of the branch."""
        if self._fork is not None:
            return open_snapshot(self._fork.snapshot, pause=pause)
        job = self._job
        return open_episode(self._env, self._sandbox, job.task, seed=job.seed, pause=pause, attempts=job.attempts)

    async def _step(self, agent: Agent, episode: Episode, pause: Pause) -> bool:
        """Play the agent's next step, or its end of the episode; return True if the episode is over."""
        agent_s_before = self._agent_s
        with pause():
            decision = await self._ask_in_time(agent, episode.observation)
        agent_s = self._agent_s - agent_s_before
        try:
            if isinstance(decision, GiveUp):
                transition = await episode.give_up(decision)
            else:
                transition = await episode.step(decision, agent_s=agent_s)
        finally:
            self._pay(episode)
        return transition.terminated or transition.truncated

    def _pay(self, episode: Episode) -> None:
        """Pay for what the episode has cost since it was last paid for."""
        self._budget.spend(episode.cost - self._paid)
        self._paid = episode.cost

    def _make(self, seed: int) -> Agent:
        """The agent of the episode; one of the caller's own is guarded, and its failures are the agent's."""
        make = partial(self._make_agent, self._job.task, seed)
        try:
            agent = make()
        except GymcpError:
            raise
        except Exception:
            if _is_of_gymcp(self._make_agent):
                raise
            return GuardedAgent(make, Budget(), _REPORTED)
        return agent if _is_of_gymcp(type(agent)) else GuardedAgent(lambda: agent, Budget(), _REPORTED)

    async def _ask_in_time(self, agent: Agent, observation: Observation) -> Action | Decision | GiveUp:
        """The agent's next action, or the end of the episode if the agent's time runs out first."""
        left_s = self._agent_limit_s - self._agent_s
        if left_s <= 0:
            return self._out_of_time(agent)
        asked = time.perf_counter()
        try:
            async with limit_wait(left_s) as deadline:
                return await _ask(agent, observation)
        except AnswerTimeout as error:
            return self._out_of_time(agent, str(error))
        except TimeoutError:
            if not deadline.expired():
                raise
            return self._out_of_time(agent)
        finally:
            self._agent_s += time.perf_counter() - asked

    def _out_of_time(self, agent: Agent, reason: str = "") -> GiveUp:
        reason = reason or f"{self._agent_limit_s:g} s of the agent's time"
        return GiveUp(outcome=Outcome.BUDGET_EXHAUSTED, reason=reason, side_answers=_take_rest(agent))

    def _keep_rest(self, agent: Agent, episode: Episode) -> None:
        """Pay for the answers that no decision has handed over; they are recorded unless the episode has its record."""
        rest = _take_rest(agent)
        self._budget.spend(sum(answer.spent.cost for answer in rest if answer.spent is not None))
        if episode.trajectory is None:
            episode.add_side_answers(rest)

    async def consult_judge(self) -> None:
        """Let the environment's judge, if its grader needs one, give its verdict on the episode that has ended."""
        if self._episode is not None and not self._budget.is_spent:
            self._budget.spend(await self._episode.consult_judge())

    def rollout(self, failure: _Failure | None) -> Rollout:
        """The record of the attempt, which is over."""
        trajectory = self._trajectory(failure)
        if self._not_replaced:
            provenance = {**trajectory.provenance, NOT_REPLACED: self._not_replaced}
            trajectory = replace(trajectory, provenance=provenance)
        record = replace(
            trajectory,
            id=trajectory.id or uuid.uuid4().hex,
            group=self._job.group(self._env.spec.name),
            trial=self._job.trial,
            usage=self._usage(trajectory),
        )
        return Rollout(job=self._job, trajectory=record, states=self._episode.states if self._episode else {})

    def _trajectory(self, failure: _Failure | None) -> Trajectory:
        if self._episode and self._episode.trajectory:
            return self._episode.trajectory  # it had ended: a failure while tearing down changes nothing of the record
        failure = failure or _Failure(outcome=Outcome.ENV_INFRA, reason="the episode ended without a record")
        if self._episode:
            return self._episode.record(failure.outcome, failure.reason)
        state = self._fork.snapshot.state if self._fork is not None else None
        return Trajectory(
            id="",
            env=self._env.spec.name,
            task=self._job.task.id,
            seed=self._job.seed,
            parent=self._fork.snapshot.episode if self._fork is not None else None,
            steps=state.steps if state is not None else (),
            initial_key=state.initial_key if state is not None else "",
            outcome=failure.outcome,
            reason=failure.reason,
        )

    def _usage(self, trajectory: Trajectory) -> Usage:
        """The episode's usage with the times that only the rollout can measure.

        An episode does not see its own opening fail, the end of its servers, or a decision that never comes.
        """
        usage = trajectory.usage
        if self._fork is not None:
            usage = subtract_shared(usage, trajectory.steps, self._fork.shared)
        wall_s = time.perf_counter() - self._started
        return replace(
            usage,
            started_at=self._started_at,
            wall_s=wall_s,
            agent_s=self._agent_s,
            reset_s=usage.reset_s if self._episode else wall_s,
        )


def _find_agent_seed(job: Job, fork: Fork | None) -> int:
    """Seed of the agent that plays the job, or the branch."""
    if fork is not None:
        return fork.seed
    return job.seed if job.agent_seed is None else job.agent_seed


@contextlib.asynccontextmanager
async def _closing(agent: Agent) -> AsyncIterator[None]:
    """Close the agent at the end if it holds something, also if the episode is cancelled."""
    try:
        yield
    finally:
        if isinstance(agent, Closes):
            await agent.close()


def _resume(agent: Agent, episode: Episode) -> None:
    """Let a new agent go on from the record of the episode. Raises PolicyInfraError."""
    if not isinstance(agent, Resumes):
        raise PolicyInfraError(f"agent {type(agent).__name__}: has no method resume(steps), so it cannot take a branch")
    agent.resume(episode.state.steps)


def _take_rest(agent: Agent) -> tuple[SideAnswer, ...]:
    return agent.take_rest() if isinstance(agent, LeavesAnswers) else ()


async def _ask(agent: Agent, observation: Observation) -> Action | Decision | GiveUp:
    """The agent's next action. Raises PolicyInfraError, also for a defect of gymcp: it says nothing of the policy."""
    try:
        return await agent.act(observation)
    except PolicyInfraError:
        raise
    except Exception as error:
        raise PolicyInfraError(f"the agent raised {describe_error(error)}") from error


def _is_of_gymcp(defined: object) -> bool:
    """True if a class or function is gymcp's own."""
    return str(getattr(defined, "__module__", "")).partition(".")[0] == "gymcp"
