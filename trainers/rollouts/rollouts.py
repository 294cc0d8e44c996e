"""Episodes for a training run: those it practises, those it is shown, those it is tested with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gymcp.agents.policies.models import TokenModel
from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.budgets import Budget
from gymcp.agents.strategies.react import ReactSettings, react
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.envs.spec import LoadedEnv
from gymcp.evaluators.metrics import calls_beyond_gold
from gymcp.evaluators.statistics import mean_ci95
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.protocols import AgentFactory, Policy
from gymcp.seeds import derive_seed
from gymcp.store import TrajectoryStore
from gymcp.trainers.recipe.model import Pupil
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curriculum import demonstrated_tasks, held_out, practised
from gymcp.trainers.rollouts.recorded_demonstrations import recorded_episodes
from gymcp.types import Json, Sampling, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Where episodes are played."""

    env: LoadedEnv
    recipe: Recipe
    sandbox: Sandbox
    store: TrajectoryStore

    async def shown(self) -> list[Trajectory]:
        """What the oracle does in the tasks of the warm start, where it succeeds; or what a run has recorded."""
        if self.recipe.warm_start.run:
            return recorded_episodes(self.env, self.recipe)
        tasks = demonstrated_tasks(self.env, self.recipe)
        jobs = [Job(task=task, trial=0, seed=self.recipe.seed) for task in tasks]
        records = await self._play(SCRIPTED["oracle"], jobs) if jobs else []
        return [record for record in records if record.success]

    def jobs(self, iteration: int) -> list[Job]:
        """Of an iteration, counted from 0: a function of the recipe and that number."""
        return [
            Job(
                task=task,
                trial=first + k,
                seed=derive_seed(self.recipe.seed, task.id, first + k),
                policy_version=str(iteration),
            )
            for task, first in practised(self.env, self.recipe, iteration)
            for k in range(self.recipe.rollout.episodes)
        ]

    async def practice(self, jobs: Sequence[Job], pupil: Pupil, policy: Policy) -> list[Trajectory]:
        """The records of the jobs, in their order; those that the store has already are not run again."""
        wanted = {(job.task.id, job.trial) for job in jobs}
        have = {
            (row.task, row.trial): self.store.load(row.id)
            for row in self.store.summaries()
            if (row.task, row.trial) in wanted and row.outcome.has_score
        }
        agent = self._agent(pupil, policy, self.recipe.rollout.temperature)
        todo = [job for job in jobs if (job.task.id, job.trial) not in have]
        new = await self._play(agent, todo, keep=True)
        found = {(record.task, record.trial): record for record in new} | have
        return [found[key] for job in jobs if (key := (job.task.id, job.trial)) in found]

    async def test(self, pupil: Pupil, policy: Policy, *, whole: bool) -> dict[str, Json]:
        """Success on held-out tasks; `whole`: of as many as it has at the end."""
        found: dict[str, Json] = {}
        rule = self.recipe.evaluation
        most = rule.whole_tasks if whole and rule.whole_tasks else rule.tasks
        for split in rule.whole_splits if whole and rule.whole_splits else rule.splits:
            tasks = held_out(self.env, self.recipe, split, most)
            jobs = [Job(task=task, trial=0, seed=derive_seed(self.recipe.seed, task.id, 0)) for task in tasks]
            records = await self._play(self._agent(pupil, policy, rule.temperature), jobs)
            found |= {f"test/{split}/{name}": value for name, value in _calls_of(records, jobs).items()}
            scores = {record.task: [float(record.success or 0)] for record in records if record.outcome.has_score}
            interval = mean_ci95(scores)
            if interval is not None:
                low, high = interval.low, interval.high
                mean = float(np.mean([value for of_task in scores.values() for value in of_task]))
                found |= {f"test/{split}/success": mean, f"test/{split}/low": low, f"test/{split}/high": high}
            found[f"test/{split}/scored"] = len(scores)
            for tag in sorted({tag for job in jobs for tag in job.task.tags}):
                tagged = [scores[job.task.id][0] for job in jobs if tag in job.task.tags and job.task.id in scores]
                found[f"test/{split}/{tag}"] = float(np.mean(tagged)) if tagged else None
        return found

    async def _play(self, make_agent: AgentFactory, jobs: Sequence[Job], *, keep: bool = False) -> list[Trajectory]:
        found: dict[tuple[str, int], Trajectory] = {}

        def take(done: Rollout, last: bool) -> None:
            if keep:
                self.store.append(done.trajectory, done.states, tags=done.job.task.tags)
            if last:
                found[done.job.task.id, done.job.trial] = done.trajectory

        schedule = Schedule(concurrency=self.recipe.rollout.concurrency)
        await run_jobs(self.env, self.sandbox, make_agent, jobs, schedule, take)
        return [found[key] for job in jobs if (key := (job.task.id, job.trial)) in found]

    def _agent(self, pupil: Pupil, policy: Policy, temperature: float) -> AgentFactory:
        rollout = self.recipe.rollout
        model = TokenModel(
            name=self.recipe.name, policy=policy, renderer=pupil.renderer, parse_calls=pupil.read, context=pupil.context
        )
        sampling = Sampling(max_tokens=rollout.max_tokens, temperature=temperature)
        return react(model, ReactSettings(sampling=sampling, budget=Budget(turns=rollout.turns)))


def told(records: Sequence[Trajectory]) -> dict[str, Json]:
    """What the metrics say of episodes: how they ended, and means over those with a score."""
    scored = [record for record in records if record.outcome.has_score]
    outcomes = Counter(record.outcome.value for record in records)
    found: dict[str, Json] = {f"outcome/{name}": count for name, count in sorted(outcomes.items())}
    if scored:
        found |= {
            "reward": float(np.mean([record.score for record in scored])),
            "success": float(np.mean([bool(record.success) for record in scored])),
            "steps": float(np.mean([len(record.steps) for record in scored])),
            "calls": float(np.mean([record.usage.tool_calls for record in scored])),
        }
        if unusable := [not step.valid for record in scored for step in record.steps]:
            found["unusable"] = float(np.mean(unusable))
        for name in sorted({name for record in scored for name in record.components}):
            found[f"component/{name}"] = float(np.mean([record.components.get(name, 0.0) for record in scored]))
    return found


def _calls_of(records: Sequence[Trajectory], jobs: Sequence[Job]) -> dict[str, Json]:
    """Calls of an episode, and those beyond the gold's: of all scored ones, and of those that succeeded."""
    tasks = {job.task.id: job.task for job in jobs}
    scored = [record for record in records if record.outcome.has_score]
    found: dict[str, Json] = {}
    for name, chosen in (("calls", scored), ("calls_of_solved", [record for record in scored if record.success])):
        if chosen:
            beyond = [calls_beyond_gold(tasks[record.task], record) for record in chosen]
            found[name] = float(np.mean([record.usage.tool_calls for record in chosen]))
            found[f"{name}_beyond_gold"] = float(np.mean(beyond))
    return found
