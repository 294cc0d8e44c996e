"""Warm start, then again and again: rollouts, credit, update; now and then a look at held-out tasks."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils.logging import disable_progress_bar

from gymcp.agents.budgets import Budget
from gymcp.agents.engine import Engine, EngineOptions, open_engine
from gymcp.agents.react import ReactSettings, TokenModel, react
from gymcp.agents.rollout import Job, Rollout
from gymcp.agents.scheduler import Schedule, run_jobs
from gymcp.agents.scripted import SCRIPTED
from gymcp.atomic import write_atomically
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError, EnvInfraError
from gymcp.evaluators.metrics import calls_beyond_gold
from gymcp.evaluators.statistics import mean_ci95
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.mcp_servers.warm import warmed
from gymcp.protocols import AgentFactory
from gymcp.store import TrajectoryStore
from gymcp.trainers.batch import batch_of
from gymcp.trainers.credit import Credit, assign_credit
from gymcp.trainers.curriculum import demonstrated_tasks, held_out, practised
from gymcp.trainers.diagnostics import anchor_statistics
from gymcp.trainers.learner import Learner, LearnerSettings, Update
from gymcp.trainers.models import Pupil, load_pupil, make_folder, texts_of
from gymcp.trainers.progress import Progress
from gymcp.trainers.recipe import Recipe
from gymcp.trainers.rows import Example, example, rows_of
from gymcp.trainers.shapers import Trackers
from gymcp.trainers.threads import Threads
from gymcp.trainers.warm_start import warm_start
from gymcp.types import Json, Sampling, Trajectory

CHECKPOINT = "checkpoint"
MODEL = "model"
FINAL = "final"
"""The trained model, in a folder that `--policy local:PATH` and transformers load."""
MAX_LOST = 3
"""Iterations one after another in which every episode was lost to infrastructure; then training stops."""
Tell = Callable[[Mapping[str, Json]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How training ended."""

    iterations: int
    reason: str
    """``finished``, or why it stopped before."""


def train(recipe: Recipe, env: LoadedEnv, folder: Path, *, resume: bool, tell: Tell = lambda row: None) -> Ending:
    """Trains in `folder`, telling each row of metrics; with `resume` goes on after the last whole iteration.

    Raises ConfigError for a folder that holds another run, and EnvInfraError where nothing can be rolled out.
    """
    if recipe.deterministic:
        torch.use_deterministic_algorithms(True)
    torch.manual_seed(recipe.seed)
    threads = torch.get_num_threads()
    try:
        return asyncio.run(_Run(recipe, env, folder, tell).run(resume=resume))
    finally:
        torch.set_num_threads(threads)


class _Run:
    def __init__(self, recipe: Recipe, env: LoadedEnv, folder: Path, tell: Tell) -> None:
        self.recipe, self.env, self.folder, self.tell = recipe, env, folder, tell
        self.preset = recipe.preset
        self.loss = self.preset.loss
        self.trackers = Trackers()
        self.iteration = 0
        self._lost = 0
        self._flat = 0
        self._threads = Threads(1 if recipe.deterministic else torch.get_num_threads())
        torch.set_num_threads(1)  # beside servers; what is computed alone asks for more

    async def run(self, *, resume: bool) -> Ending:
        saved = self._saved()
        if saved is not None and not resume:
            raise ConfigError(f"training run {self.folder}: holds a run; continue it with --resume, or name another")
        if saved is not None and saved["recipe"] != _plain(self.recipe):
            raise ConfigError(f"training run {self.folder}: was started with another recipe")
        self.folder.mkdir(parents=True, exist_ok=True)
        disable_progress_bar()
        async with AsyncExitStack() as stack:
            self.sandbox: Sandbox = await stack.enter_async_context(warmed(get_sandbox(self.recipe.rollout.sandbox)))
            self.store = stack.enter_context(TrajectoryStore.open(self.folder, write=True))
            if saved is None:
                shown = await self._shown()
                pupil, learner = self._begin(shown)
                self.progress = stack.enter_context(Progress(self.folder))
                if shown:
                    for row in warm_start(self.recipe, pupil, shown, self._threads):
                        self.tell(row)
                self._save(learner)
            else:
                pupil = load_pupil(self.recipe.model, self._model_folder())
                learner = self._learner(pupil).load(self.folder / CHECKPOINT / str(saved["iteration"]))
                self.iteration = int(saved["iteration"])
                self.trackers = Trackers(**saved["trackers"])
                self.progress = stack.enter_context(Progress(self.folder, until=self.iteration))
            engine = await stack.enter_async_context(self._engine(pupil))
            return await self._iterate(pupil, learner, engine)

    # ------------------------------------------------------------------------------------------------------- the parts

    async def _shown(self) -> list[Trajectory]:
        """What the oracle does in the tasks of the warm start."""
        tasks = demonstrated_tasks(self.env, self.recipe)
        if not tasks:
            return []
        jobs = [Job(task=task, trial=0, seed=self.recipe.seed) for task in tasks]
        records = await self._play(SCRIPTED["oracle"], jobs, keep=False)
        return [record for record in records if record.success]

    def _begin(self, shown: Sequence[Trajectory]) -> tuple[Pupil, Learner]:
        make_folder(self.recipe.model, self.folder / MODEL, texts_of(shown), seed=self.recipe.seed)
        pupil = load_pupil(self.recipe.model, self._model_folder())
        return pupil, self._learner(pupil)

    def _model_folder(self) -> Path:
        return Path(self.recipe.model.path) if self.recipe.model.path else self.folder / MODEL

    def _learner(self, pupil: Pupil) -> Learner:
        learn = self.recipe.learn
        settings = LearnerSettings(
            learning_rate=learn.learning_rate,
            max_grad_norm=learn.max_grad_norm,
            warmup_steps=learn.warmup_steps,
            schedule=learn.schedule,
            total_steps=learn.iterations * learn.updates * learn.passes,
            micro_batch_tokens=learn.micro_batch_tokens,
            temperature=self.recipe.rollout.temperature,
        )
        return Learner(pupil.model, settings)

    def _engine(self, pupil: Pupil) -> Any:
        options = EngineOptions(
            max_context=pupil.context,
            stop_ids=pupil.end_ids,
            seed=self.recipe.seed,
            deterministic=self.recipe.deterministic,
        )
        version = str(self.iteration)
        return open_engine(pupil.model, slots=self.recipe.rollout.slots, version=version, options=options)

    async def _play(self, make_agent: AgentFactory, jobs: Sequence[Job], *, keep: bool) -> list[Trajectory]:
        """The records of the jobs, in their order; with `keep` those that the store has already are not run again."""
        have: dict[tuple[str, int], Trajectory] = {}
        if keep:
            wanted = {(job.task.id, job.trial) for job in jobs}
            have = {
                (row.task, row.trial): self.store.load(row.id)
                for row in self.store.summaries()
                if (row.task, row.trial) in wanted and row.outcome.has_score
            }
        found: dict[tuple[str, int], Trajectory] = dict(have)

        def take(done: Rollout, last: bool) -> None:
            if keep:
                self.store.append(done.trajectory, done.states, tags=done.job.task.tags)
            if last:
                found[done.job.task.id, done.job.trial] = done.trajectory

        todo = [job for job in jobs if (job.task.id, job.trial) not in have]
        schedule = Schedule(concurrency=self.recipe.rollout.concurrency)
        await run_jobs(self.env, self.sandbox, make_agent, todo, schedule, take)
        return [found[key] for job in jobs if (key := (job.task.id, job.trial)) in found]

    def _agent(self, pupil: Pupil, engine: Engine, temperature: float) -> AgentFactory:
        rollout = self.recipe.rollout
        model = TokenModel(
            name=self.recipe.name, policy=engine, renderer=pupil.renderer, read=pupil.read, context=pupil.context
        )
        sampling = Sampling(max_tokens=rollout.max_tokens, temperature=temperature)
        return react(model, ReactSettings(sampling=sampling, budget=Budget(turns=rollout.turns)))

    # -------------------------------------------------------------------------------------------------------- the loop

    async def _iterate(self, pupil: Pupil, learner: Learner, engine: Engine) -> Ending:
        learn = self.recipe.learn
        if not self.progress.rows:
            self._note({"iteration": 0, **await self._look(pupil, engine, whole=True)})
        while self.iteration < learn.iterations:
            row = await self._one(pupil, learner, engine)
            self.iteration += 1
            every = self.recipe.evaluation.every
            last = self.iteration == learn.iterations
            if last or (every and self.iteration % every == 0):
                row |= await self._look(pupil, engine, whole=last)
            self._note(row)
            self._save(learner)
            if stop := self._collapsed(row):
                return self._end(pupil, stop)
        return self._end(pupil, "finished")

    async def _one(self, pupil: Pupil, learner: Learner, engine: Engine) -> dict[str, Json]:
        """One iteration's row. Raises EnvInfraError where all episodes were lost some times running."""
        started = time.perf_counter()
        size = self.recipe.rollout.episodes
        jobs = [
            Job(task=task, trial=first + k, seed=hash_seed(self.recipe.seed, task.id, first + k))
            for task, first in practised(self.env, self.recipe, self.iteration)
            for k in range(size)
        ]
        records = await self._play(self._agent(pupil, engine, self.recipe.rollout.temperature), jobs, keep=True)
        rolled = time.perf_counter()
        row: dict[str, Json] = {"iteration": self.iteration + 1, **_told(records)}
        scored = [record for record in records if record.outcome.has_score]
        self._lost = 0 if scored else self._lost + 1
        if self._lost >= MAX_LOST:
            why = records[-1].reason
            raise EnvInfraError(f"training: every episode of {MAX_LOST} iterations was lost; the last: {why}")
        if not scored:
            return row | {"skipped": "every episode was lost to infrastructure"}
        gold = {job.task.id: job.task for job in jobs}
        batch = batch_of(scored, gold)
        credit = assign_credit(batch, self.preset, self.trackers)
        self.trackers = credit.trackers
        anchors = anchor_statistics(batch, batch.keys["state"])
        credited = time.perf_counter()
        updates: list[Update] = []

        def change() -> None:
            with self._threads.work(sum(len(record.steps) for record in credit.batch.sources)):
                updates.extend(self._learn(learner, credit))

        await engine.update(str(self.iteration + 1), change)
        ended = time.perf_counter()
        return row | {
            **_merged(updates),
            "dropped": credit.dropped,
            **{f"anchor/{name}": value for name, value in asdict(anchors).items()},
            "seconds": ended - started,
            "seconds/rollout": rolled - started,
            "seconds/credit": credited - rolled,
            "seconds/update": ended - credited,
        }

    def _learn(self, learner: Learner, credit: Credit) -> list[Update]:
        """The updates of one batch, cut by groups into as many parts as the recipe says."""
        examples, groups = examples_of(credit)
        if not examples:
            return []
        parts, passes = self.recipe.learn.updates, self.recipe.learn.passes
        weights = [term.weight for term in credit.terms]
        old = learner.logprobs([each.row for each in examples], groups) if parts * passes > 1 else None
        found = []
        for part in [*range(parts)] * passes:
            chosen = [i for i, group in enumerate(groups) if group % parts == part]
            if chosen:
                found.append(
                    learner.update(
                        [examples[i] for i in chosen],
                        self.loss,
                        weights=weights,
                        groups=[groups[i] for i in chosen],
                        old=[old[i] for i in chosen] if old is not None else None,
                    )
                )
        return found

    async def _look(self, pupil: Pupil, engine: Engine, *, whole: bool) -> dict[str, Json]:
        """Success on held-out tasks, the likeliest token always taken; `whole`: as the recipe has it for the end."""
        found: dict[str, Json] = {}
        started = time.perf_counter()
        rule = self.recipe.evaluation
        most = rule.whole_tasks if whole and rule.whole_tasks else rule.tasks
        for split in rule.whole_splits if whole and rule.whole_splits else rule.splits:
            jobs = [Job(task=task, trial=0, seed=0) for task in held_out(self.env, self.recipe, split, most)]
            records = await self._play(self._agent(pupil, engine, 0.0), jobs, keep=False)
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
        return found | {"seconds/evaluation": time.perf_counter() - started}

    def _collapsed(self, row: Mapping[str, Json]) -> str:
        learn = self.recipe.learn
        self._flat = self._flat + 1 if row.get("entropy", 1.0) < learn.least_entropy else 0
        if self._flat >= learn.patience:
            return f"the policy collapsed: its entropy was below {learn.least_entropy} for {self._flat} iterations"
        return ""

    def _note(self, row: Mapping[str, Json]) -> None:
        self.progress.add(row)
        self.tell(row)

    def _end(self, pupil: Pupil, reason: str) -> Ending:
        model: Any = pupil.model
        whole = model.merge_and_unload() if self.recipe.model.lora_rank else model
        whole.save_pretrained(self.folder / FINAL)
        pupil.renderer.tokenizer.save_pretrained(self.folder / FINAL)
        return Ending(iterations=self.iteration, reason=reason)

    # --------------------------------------------------------------------------------------------------- going on later

    def _save(self, learner: Learner) -> None:
        """A checkpoint, then the file that names it, then the one before it goes: a kill leaves a whole one."""
        here = self.folder / CHECKPOINT / str(self.iteration)
        learner.save(here)
        state = {
            "iteration": self.iteration,
            "trackers": {"fewest_calls": dict(self.trackers.fewest_calls)},
            "recipe": _plain(self.recipe),
        }
        write_atomically(self.folder / "training.json", json.dumps(state).encode())
        for other in (self.folder / CHECKPOINT).iterdir():
            if other != here:
                shutil.rmtree(other)

    def _saved(self) -> dict[str, Json] | None:
        try:
            state: dict[str, Json] = json.loads((self.folder / "training.json").read_text())
        except FileNotFoundError:
            return None
        return state


def examples_of(credit: Credit) -> tuple[list[Example], list[int]]:
    """[N] trajectories -> their rows with the terms' advantages on the tokens, and the number of each row's task."""
    examples: list[Example] = []
    groups: list[int] = []
    starts = credit.batch.starts
    for n, record in enumerate(credit.batch.sources):
        own = slice(int(starts[n]), int(starts[n + 1]))
        for row in rows_of(record):
            advantages = [term.advantage[own] for term in credit.terms]
            examples.append(example(row, advantages, [term.counted[own] for term in credit.terms]))
            groups.append(int(credit.batch.keys["group"][starts[n]]))
    return examples, groups


def hash_seed(seed: int, task: str, trial: int) -> int:
    """A seed of 31 bits for an episode, from nothing but these."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{task}/{trial}".encode()).digest()[:4], "big") >> 1


def _told(records: Sequence[Trajectory]) -> dict[str, Json]:
    scored = [record for record in records if record.outcome.has_score]
    outcomes = Counter(record.outcome.value for record in records)
    told: dict[str, Json] = {f"outcome/{name}": count for name, count in outcomes.items()}
    if scored:
        told |= {
            "reward": float(np.mean([record.score for record in scored])),
            "success": float(np.mean([bool(record.success) for record in scored])),
            "steps": float(np.mean([len(record.steps) for record in scored])),
            "calls": float(np.mean([record.usage.tool_calls for record in scored])),
            "unusable": float(np.mean([not step.valid for record in scored for step in record.steps])),
        }
        for name in sorted({name for record in scored for name in record.components}):
            told[f"component/{name}"] = float(np.mean([record.components.get(name, 0.0) for record in scored]))
    return told


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


def _merged(updates: Sequence[Update]) -> dict[str, Json]:
    if not updates:
        return {}
    tokens = sum(update.tokens for update in updates)
    means = {
        name: sum(getattr(update, name) * update.tokens for update in updates) / max(tokens, 1)
        for name in ("loss", "grad_norm", "entropy", "kl", "clipped")
    }
    return {**means, "tokens": tokens, "learning_rate": updates[-1].learning_rate, "updates": updates[-1].step}


def _plain(recipe: Recipe) -> Json:
    return json.loads(json.dumps(asdict(recipe)))
