"""One episode before training: it shows whether the environment plays, how long it takes, and whether it fits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gymcp.agents.policies.local_model import load_tokenizer, read_context_length
from gymcp.agents.prompts.rendering import Renderer
from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.scheduler import DEFAULT_CONCURRENCY, Schedule, run_jobs
from gymcp.agents.strategies.scripted import SCRIPTED, applies
from gymcp.agents.tool_calls.parsing import choose_format
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError, EnvInfraError
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.outcome import Outcome
from gymcp.protocols import AgentFactory
from gymcp.trainers.recipe.agent import choose_demonstrator, load_demonstrators
from gymcp.trainers.recipe.model import corpus_of, make_model_folder
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curriculum import demonstration_tasks, training_tasks
from gymcp.trainers.rollouts.demonstration_rows import tokenize_record
from gymcp.trainers.rollouts.judge import open_judge
from gymcp.trainers.run.forecasts.disk import measure_record
from gymcp.types import Task, Trajectory

CORPUS_EPISODES = 16
"""Episodes that a tiny model's tokenizer learns from here; in training it learns from all demonstrations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """Episodes of the demonstrating agent on training tasks."""

    agent: str
    """Name of the agent that demonstrates, or null if the task lacks what that one needs."""
    first: Trajectory
    """The episode that was played alone."""
    seconds: float
    """Wall-clock seconds of that episode, with servers that had been started once before."""
    others: tuple[Trajectory, ...]
    """Further episodes, for the tokenizer of a tiny model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Tokens of the first episode, as the model would have to read and write them."""

    context: int
    """Tokens that the model's context has space for."""
    first_prompt: int
    longest: int
    """Tokens of the longest context of the episode, actions included."""
    drawn: int
    """Tokens of all actions together."""
    record: int
    """Bytes of the episode's record with these tokens, without its states."""
    exact: bool
    """False for a tiny model, whose tokenizer will learn from more episodes."""


async def rehearse(recipe: Recipe, env: LoadedEnv) -> Rehearsal:
    """Play the first training task, and for a tiny model some demonstrations.

    Raises EnvInfraError if an episode is lost, ConfigError if the grader fails on one.
    """
    task = training_tasks(env, recipe, 0)[0][0]
    demonstrator = choose_demonstrator(recipe)
    demonstrators = load_demonstrators(recipe)
    agent = demonstrator if applies(demonstrator, task) else "null"
    agents = demonstrators if agent == demonstrator else SCRIPTED[agent]
    sandbox = get_sandbox(recipe.rollout.sandbox)
    sandbox.check()
    needs_corpus = not recipe.model.path and recipe.warm_start.tasks and not recipe.warm_start.run
    async with open_warm_sandbox(sandbox) as warm, open_judge(recipe, env, None) as judged:
        await _play(recipe, judged, warm, agents, [task])  # starts what all later episodes share
        started = time.perf_counter()
        (first,) = await _play(recipe, judged, warm, agents, [task])
        seconds = time.perf_counter() - started
        shown = [each for each in demonstration_tasks(env, recipe)[:CORPUS_EPISODES] if applies(demonstrator, each)]
        others = await _play(recipe, judged, warm, demonstrators, shown) if needs_corpus else []
    return Rehearsal(agent=agent, first=first, seconds=seconds, others=tuple(others))


async def _play(
    recipe: Recipe, env: LoadedEnv, sandbox: Sandbox, agents: AgentFactory, tasks: Sequence[Task]
) -> list[Trajectory]:
    """The tasks' records, each with a score."""
    records: list[Trajectory] = []

    def take(done: Rollout, last: bool) -> None:
        if last:
            records.append(done.trajectory)

    jobs = [Job(task=task, trial=0, seed=recipe.seed) for task in tasks]
    schedule = Schedule(concurrency=recipe.rollout.concurrency or DEFAULT_CONCURRENCY)
    await run_jobs(env, sandbox, agents, jobs, schedule, take)
    for record in records:
        what = f"recipe '{recipe.name}': the episode of task '{record.task}' that was tried"
        if record.outcome is Outcome.GRADER_ERROR:
            raise ConfigError(f"{what} cannot be graded: {record.reason}")
        if not record.outcome.has_score:
            raise EnvInfraError(f"{what} was lost ({record.outcome}): {record.reason}")
    return records


def model_for_check(recipe: Recipe, played: Rehearsal, folder: Path) -> Path:
    """Folder of the recipe's model; a tiny one is made in `folder`, with a tokenizer from the played episodes."""
    records = (played.first, *played.others)
    return make_model_folder(recipe.model, folder, corpus_of(records), seed=recipe.seed)


def count_tokens(recipe: Recipe, played: Rehearsal, model: Path) -> TokenCounts:
    """Tokens of the first episode in the words of the model's tokenizer.

    Raises ConfigError if the folder holds no model, or none that gymcp can talk to.
    """
    who = f"model '{model}'"
    context = min(read_context_length(model, who), recipe.model.context)
    tokenizer, end_ids = load_tokenizer(model, who)
    choose_format(None, tokenizer, who)
    renderer = Renderer(tokenizer, who, end_ids)
    record = tokenize_record(played.first, renderer)
    samples = [step.sampled for step in record.steps if step.sampled is not None]
    return TokenCounts(
        context=context,
        first_prompt=len(samples[0].prompt_ids) if samples else 0,
        longest=max((len(sample.prompt_ids) + len(sample.ids) for sample in samples), default=0),
        drawn=sum(len(sample.ids) for sample in samples),
        record=measure_record(record),
        exact=bool(recipe.model.path),
    )
