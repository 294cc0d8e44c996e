"""One agent in one episode, and what became of it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gymcp.agents.strategies.budgets import RunBudget
from gymcp.envs.episodes.episode import Episode, open_episode
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import EnvInfraError, PolicyInfraError, ServerTimeout
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.protocols import AgentFactory
from gymcp.types import GiveUp, Json, Outcome, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One episode to run."""

    task: Task
    trial: int
    seed: int
    policy_version: str = ""
    """Of who plays: trials of a task by one version are one group."""

    def group(self, env: str) -> str:
        """The name of the job's group."""
        return "/".join(part for part in (env, self.task.id, self.policy_version) if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """What came of a job."""

    job: Job
    trajectory: Trajectory
    states: Mapping[str, Json]
    """What the trajectory refers to, by content address."""


async def rollout(
    env: LoadedEnv,
    sandbox: Sandbox,
    make_agent: AgentFactory,
    job: Job,
    *,
    timeout_s: float,
    budget: RunBudget | None = None,
) -> Rollout:
    """Plays the episode to its end. Failures of harness and policy become outcomes without a score, cancelling too.

    What it costs is paid from the run's `budget` after every step; once that is spent, by whichever episode, the agent
    is not asked again and the outcome is ``cancelled``.

    A record comes back in any case; who cancels must know itself that it did.
    """
    progress = _Progress()
    started_at, started = time.time(), time.perf_counter()
    try:
        async with asyncio.timeout(timeout_s):
            await _play(env, sandbox, make_agent, job, progress, budget or RunBudget())
    except asyncio.CancelledError:
        progress.failed = (Outcome.CANCELLED, "interrupted")
    except TimeoutError:
        progress.failed = (Outcome.TIMEOUT, f"the episode took more than {timeout_s:g} s")
    except ServerTimeout as error:
        progress.failed = (Outcome.TIMEOUT, str(error))
    except EnvInfraError as error:
        progress.failed = (Outcome.ENV_INFRA, str(error))
    except PolicyInfraError as error:
        progress.failed = (Outcome.POLICY_INFRA, str(error))
    except Exception as error:  # the boundary: one defect must not take hundreds of episodes with it
        progress.failed = (Outcome.ENV_INFRA, f"the harness raised {type(error).__name__}: {error}")
    wall_s = time.perf_counter() - started
    trajectory = progress.trajectory(env, job)
    identity = replace(
        trajectory,
        id=trajectory.id or uuid.uuid4().hex,
        group=job.group(env.spec.name),
        trial=job.trial,
        usage=replace(
            trajectory.usage,
            started_at=started_at,
            wall_s=wall_s,
            agent_s=progress.agent_s,
            reset_s=trajectory.usage.reset_s if progress.episode else wall_s,
        ),
    )
    return Rollout(job=job, trajectory=identity, states=progress.episode.states if progress.episode else {})


class _Progress:
    """How far the episode has come when something outside ends it."""

    def __init__(self) -> None:
        self.episode: Episode | None = None
        self.failed: tuple[Outcome, str] | None = None
        self.agent_s = 0.0

    def trajectory(self, env: LoadedEnv, job: Job) -> Trajectory:
        if self.episode and self.episode.trajectory:
            return self.episode.trajectory  # it had ended: a failure while tearing down changes nothing of the record
        outcome, reason = self.failed or (Outcome.ENV_INFRA, "the episode ended without a record")
        if self.episode:
            return self.episode.record(outcome, reason)
        return Trajectory(id="", env=env.spec.name, task=job.task.id, seed=job.seed, outcome=outcome, reason=reason)


async def _play(
    env: LoadedEnv,
    sandbox: Sandbox,
    make_agent: AgentFactory,
    job: Job,
    progress: _Progress,
    budget: RunBudget,
) -> None:
    agent = make_agent(job.task, job.seed)
    async with open_episode(env, sandbox, job.task, seed=job.seed) as episode:
        progress.episode = episode
        while not budget.is_spent:
            asked = time.perf_counter()
            try:
                decided = await agent.act(episode.observation)
            except PolicyInfraError:
                raise
            except Exception as error:
                raise PolicyInfraError(f"the agent raised {type(error).__name__}: {error}") from error
            finally:
                agent_s = time.perf_counter() - asked
                progress.agent_s += agent_s
            if isinstance(decided, GiveUp):
                await episode.give_up(decided)
                return
            paid = episode.cost
            try:
                transition = await episode.step(decided, agent_s=agent_s)
            finally:
                budget.pay(episode.cost - paid)
            if transition.terminated or transition.truncated:
                return
        progress.failed = (Outcome.CANCELLED, "the money of the run is spent")
