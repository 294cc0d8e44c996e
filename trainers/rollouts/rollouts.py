"""Episodes of a training run: demonstrations and rollouts to learn from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.scheduler import JobSource, run_jobs
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.tool_costs import ToolCosts, episode_costs
from gymcp.errors import ConfigError
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.outcome import Outcome
from gymcp.protocols import AgentFactory, Policy
from gymcp.seeds import derive_seed
from gymcp.store import TrajectoryStore
from gymcp.trainers.recipe.agent import RolloutAgent, load_demonstrators
from gymcp.trainers.recipe.branching import plays_trees
from gymcp.trainers.recipe.model import TrainableModel
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curricula.protocol import PlannedGroup
from gymcp.trainers.rollouts.curriculum import demonstration_tasks
from gymcp.trainers.rollouts.playing import EpisodePlayer, LocalPlayer, PlaySettings, TextInterface
from gymcp.trainers.rollouts.recorded_demonstrations import select_demonstrations
from gymcp.types import Action, Json, Trajectory


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
    player: EpisodePlayer | None = None
    """Plays the episodes of the trained model; None: this machine does."""

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
        self,
        jobs: Sequence[Job],
        trainable: TrainableModel,
        policy: Policy,
        *,
        turns: int | None = None,
        tree_episodes: int | None = None,
    ) -> list[Trajectory]:
        """The records of the jobs, in their order; a job whose scored record is stored already is not run again.

        `turns`: most turns of an episode, `tree_episodes`: most episodes of a tree; None: as many as the recipe says.
        """
        keys = {(job.task.id, job.trial) for job in jobs}
        stored = {
            (row.task, row.trial): self.store.load(row.id)
            for row in self.store.summaries(tasks={job.task.id for job in jobs})
            if (row.task, row.trial) in keys and row.outcome.has_score
        }
        left = [job for job in jobs if (job.task.id, job.trial) not in stored]
        rollout = self.recipe.rollout
        settings = PlaySettings(
            temperature=rollout.temperature,
            turns=turns or rollout.max_turns,
            branches=plays_trees(self.recipe),
            tree_episodes=tree_episodes,
        )
        if left and settings.branches:
            await self._here.check_resumes(describe_text(trainable), policy, settings, left[0].task)
        new = await self.play_trained(trainable, policy, settings, left, keep=True)
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

    async def play(self, make_agent: AgentFactory, jobs: Sequence[Job]) -> list[Trajectory]:
        """The last attempts' records of episodes of other agents, played on this machine, in the order of the jobs."""
        records: dict[tuple[str, int], Trajectory] = {}
        schedule = self._here.plain_schedule
        await run_jobs(self.env, self.sandbox, make_agent, jobs, schedule, _take_last(records))
        return _in_order(records, jobs)

    async def play_trained(
        self,
        trainable: TrainableModel,
        policy: Policy,
        settings: PlaySettings,
        jobs: Sequence[Job],
        *,
        keep: bool = False,
    ) -> list[Trajectory]:
        """The last attempts' records of the trained model, in the order of the jobs.

        `keep`: all attempts go into the store.
        """
        records: dict[tuple[str, int], Trajectory] = {}
        take_last = _take_last(records)

        def take(done: Rollout, last: bool) -> None:
            if keep:
                self.store.append(done.trajectory, done.states, tags=done.job.task.tags, branches=done.branches)
            take_last(done, last)

        await self.play_jobs(trainable, policy, settings, jobs, take)
        return _in_order(records, jobs)

    async def play_jobs(
        self,
        trainable: TrainableModel,
        policy: Policy,
        settings: PlaySettings,
        jobs: Sequence[Job] | JobSource,
        take: Callable[[Rollout, bool], None],
    ) -> None:
        """Let the trained model play the jobs; `take` gets every attempt, and whether it was the job's last."""
        await (self.player or self._here).play(describe_text(trainable), policy, settings, jobs, take)

    @property
    def _here(self) -> LocalPlayer:
        return LocalPlayer(env=self.env, recipe=self.recipe, sandbox=self.sandbox, agent=self.agent, shown=self.shown)


def describe_text(trainable: TrainableModel) -> TextInterface:
    """The model as agents see it."""
    return TextInterface(
        renderer=trainable.renderer,
        read=trainable.read,
        context=trainable.context,
        vocabulary=int(trainable.model.config.get_text_config().vocab_size),
    )


def _take_last(records: dict[tuple[str, int], Trajectory]) -> Callable[[Rollout, bool], None]:
    """Function that puts the record of each last attempt into `records`, by task and trial."""

    def take(done: Rollout, last: bool) -> None:
        if last:
            records[done.job.task.id, done.job.trial] = done.trajectory

    return take


def _in_order(records: Mapping[tuple[str, int], Trajectory], jobs: Sequence[Job]) -> list[Trajectory]:
    return [records[key] for job in jobs if (key := (job.task.id, job.trial)) in records]


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
