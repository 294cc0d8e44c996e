"""Episodes of a training run: demonstrations and rollouts to learn from."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from gymcp.agents.policies.models import TokenModel
from gymcp.agents.programs.agent import open_program_agents
from gymcp.agents.programs.settings import ProgramSettings
from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.run import REACT, check_resumes
from gymcp.agents.runner.scheduler import DEFAULT_CONCURRENCY, JobSource, Schedule, run_jobs
from gymcp.agents.strategies.budgets import Budget
from gymcp.agents.strategies.react import ReactSettings, react
from gymcp.agents.strategies.user_agents import make_user_agents
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.tool_costs import ToolCosts, episode_costs
from gymcp.errors import ConfigError
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.outcome import Outcome
from gymcp.protocols import AgentFactory, Policy
from gymcp.seeds import derive_seed
from gymcp.store import TrajectoryStore
from gymcp.trainers.recipe.agent import RolloutAgent, load_demonstrators
from gymcp.trainers.recipe.branching import make_controller, plays_trees
from gymcp.trainers.recipe.model import TrainableModel
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curricula.protocol import PlannedGroup
from gymcp.trainers.rollouts.curriculum import demonstration_tasks
from gymcp.trainers.rollouts.recorded_demonstrations import select_demonstrations
from gymcp.types import Action, Json, Sampling, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingEpisodes:
    """Runs the episodes of a training run in sandboxed servers. Only rollouts go into the store."""

    env: LoadedEnv
    recipe: Recipe
    sandbox: Sandbox
    store: TrajectoryStore
    agent: RolloutAgent | None = None
    """Agent of the user, or program, that plays over the trained model; None: react."""
    shown: Mapping[str, Sequence[Action]] = field(default_factory=dict)
    """Actions of recorded episodes by the id of their task, for a controller that compares with them."""

    async def demonstrations(self) -> list[Trajectory]:
        """Records for the warm start: good episodes that an agent plays now, or those of a recorded run.

        Raises ConfigError if the recipe names the agent and none of its episodes is good.
        """
        rule = self.recipe.warm_start
        if rule.run:
            return select_demonstrations(self.env, self.recipe)
        tasks = demonstration_tasks(self.env, self.recipe)
        jobs = [Job(task=task, trial=0, seed=self.recipe.seed) for task in tasks]
        records = await self.play(load_demonstrators(self.recipe), jobs) if jobs else []
        good = [record for record in records if _is_good(record, rule.min_score)]
        if rule.agent and records and not good:
            raise ConfigError(
                f"warm start: agent '{rule.agent}' has nothing to show: none of its {len(records)} episodes scored"
                f" {rule.min_score:g} or more; the first one: {records[0].outcome}: {records[0].reason}"
            )
        return good

    def rollout_jobs(self, planned: Sequence[PlannedGroup], iteration: int) -> list[Job]:
        """The jobs of groups that are played in an iteration, counted from 0."""
        return [
            Job(
                task=group.task,
                trial=trial,
                seed=derive_seed(self.recipe.seed, group.task.id, trial),
                policy_version=str(iteration),
            )
            for group in planned
            for trial in range(group.first_trial, group.first_trial + (group.episodes or self.recipe.rollout.episodes))
        ]

    async def rollouts(
        self, jobs: Sequence[Job], trainable: TrainableModel, policy: Policy, *, turns: int | None = None
    ) -> list[Trajectory]:
        """The records of the jobs, in their order; a job whose scored record is stored already is not run again.

        `turns`: most turns of an episode; None: as many as the recipe says.
        """
        keys = {(job.task.id, job.trial) for job in jobs}
        stored = {
            (row.task, row.trial): self.store.load(row.id)
            for row in self.store.summaries(tasks={job.task.id for job in jobs})
            if (row.task, row.trial) in keys and row.outcome.has_score
        }
        async with self.open_agent(trainable, policy, self.recipe.rollout.temperature, turns=turns) as agent:
            left = [job for job in jobs if (job.task.id, job.trial) not in stored]
            schedule = self._make_schedule(trainable)
            if left:
                check_resumes(schedule, self.recipe.rollout.agent or REACT, agent, left[0].task)
            new = await self.play(agent, left, keep=True, schedule=schedule)
        records = {(record.task, record.trial): record for record in new} | stored
        return [records[key] for job in jobs if (key := (job.task.id, job.trial)) in records]

    def load_branches(self, records: Sequence[Trajectory]) -> tuple[list[Trajectory], dict[str, tuple[str, int]]]:
        """The stored episodes that branched off these, or off each other, and for each its parent and what they share.

        They are in the order in which their trees were played.
        """
        keys = {(record.task, record.trial) for record in records}
        rows = [
            row
            for row in self.store.branches(tasks={record.task for record in records})
            if (row.episode.task, row.episode.trial) in keys
        ]
        forks = {row.episode.id: (row.episode.parent or "", row.shared) for row in rows}
        return [self.store.load(id) for id in forks], forks

    def _make_schedule(self, trainable: TrainableModel) -> Schedule:
        """The schedule of rollouts, with the recipe's controller."""
        plain = self._plain_schedule
        if not plays_trees(self.recipe):
            return plain
        vocabulary = int(trainable.model.config.get_text_config().vocab_size)
        controller, tree = make_controller(self.recipe, vocabulary=vocabulary, demonstrations=self.shown)
        return replace(plain, controller=controller, tree=tree)

    @property
    def _plain_schedule(self) -> Schedule:
        rollout = self.recipe.rollout
        return Schedule(concurrency=rollout.concurrency or DEFAULT_CONCURRENCY, agent_s=rollout.max_seconds or None)

    async def play(
        self,
        make_agent: AgentFactory,
        jobs: Sequence[Job],
        *,
        keep: bool = False,
        schedule: Schedule | None = None,
    ) -> list[Trajectory]:
        """The last attempts' records, in the order of the jobs. `keep`: all attempts go into the store."""
        records: dict[tuple[str, int], Trajectory] = {}

        def take(done: Rollout, last: bool) -> None:
            if keep:
                self.store.append(done.trajectory, done.states, tags=done.job.task.tags, branches=done.branches)
            if last:
                records[done.job.task.id, done.job.trial] = done.trajectory

        await self.play_jobs(make_agent, jobs, take, schedule)
        return [records[key] for job in jobs if (key := (job.task.id, job.trial)) in records]

    async def play_jobs(
        self,
        make_agent: AgentFactory,
        jobs: Sequence[Job] | JobSource,
        take: Callable[[Rollout, bool], None],
        schedule: Schedule | None = None,
    ) -> None:
        """Play the jobs within the recipe's limits; `take` gets every attempt, and whether it was the job's last."""
        await run_jobs(self.env, self.sandbox, make_agent, jobs, schedule or self._plain_schedule, take)

    @asynccontextmanager
    async def open_agent(
        self, trainable: TrainableModel, policy: Policy, temperature: float, *, turns: int | None = None
    ) -> AsyncIterator[AgentFactory]:
        """The agent that is trained, at this sampling temperature, with at most `turns` turns (None: the recipe's).

        Raises ConfigError if one of the user fails.
        """
        rollout = self.recipe.rollout
        model = TokenModel(
            name=self.recipe.name,
            policy=policy,
            renderer=trainable.renderer,
            parse_calls=trainable.read,
            context=trainable.context,
            timeout_s=(rollout.request_timeout_s or None) if rollout.engine == "embedded" else None,
        )
        sampling = Sampling(max_tokens=rollout.max_tokens, temperature=temperature)
        # the scheduler keeps the time
        settings = ReactSettings(sampling=sampling, budget=Budget(turns=turns or rollout.max_turns, seconds=None))
        if isinstance(self.agent, ProgramSettings):
            program = replace(self.agent, sampling=settings.sampling, budget=settings.budget)
            async with open_program_agents(model, program) as agents:
                yield agents
        else:
            yield react(model, settings) if self.agent is None else make_user_agents(self.agent, model, settings)


def _is_good(record: Trajectory, min_score: float) -> bool:
    """True for an episode that may be demonstrated; one in which the agent itself failed never is."""
    has_failed = record.outcome is Outcome.AGENT_ERROR or not record.steps
    return not has_failed and record.score is not None and record.score >= min_score


def rollout_metrics(records: Sequence[Trajectory], costs: ToolCosts) -> dict[str, Json]:
    """Metrics of an iteration's rollouts: counts of their outcomes, and means over episodes with a score."""
    scored = [record for record in records if record.outcome.has_score]
    outcomes = Counter(record.outcome.value for record in records)
    metrics: dict[str, Json] = {f"outcome/{name}": count for name, count in sorted(outcomes.items())}
    if scored:
        metrics |= {
            "reward": float(np.mean([record.score for record in scored])),
            "success": float(np.mean([bool(record.success) for record in scored])),
            "steps": float(np.mean([len(record.steps) for record in scored])),
            "calls": float(np.mean([record.usage.tool_calls for record in scored])),
        }
        if unusable := [not step.valid for record in scored for step in record.steps]:
            metrics["unusable"] = float(np.mean(unusable))
        for name in sorted({name for record in scored for name in record.components}):
            metrics[f"component/{name}"] = float(np.mean([record.components.get(name, 0.0) for record in scored]))
        metrics |= cost_metrics(scored, costs)
    return metrics


def cost_metrics(records: Sequence[Trajectory], costs: ToolCosts) -> dict[str, Json]:
    """Mean cost of an episode's calls, by each component that the environment declares; there must be a record."""
    spent = [episode_costs(record.steps, costs) for record in records]
    return {f"cost/{name}": float(np.mean([each[name] for each in spent])) for name in spent[0]}
