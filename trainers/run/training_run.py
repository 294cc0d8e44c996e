"""The open parts of a training run: model, learner, sampler, episodes, metrics log."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gymcp.agents.runner.concurrency import ConcurrencyChoice
from gymcp.agents.strategies.user_agents import UserAgent
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.store import TrajectoryStore
from gymcp.trainers.credit.presets import Preset
from gymcp.trainers.learner.critic import Critic
from gymcp.trainers.learner.distributed_processes import Accelerated
from gymcp.trainers.learner.forward import why_no_shared_prefix
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.learner.learner_settings import LearnerSettings
from gymcp.trainers.learner.token_rows import Example
from gymcp.trainers.recipe.agent import RolloutAgent
from gymcp.trainers.recipe.model import TrainableModel, corpus_of, is_small, make_model_folder, uses_bfloat16
from gymcp.trainers.recipe.preset_settings import list_settings
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.concurrency import fill_concurrency
from gymcp.trainers.rollouts.curricula.choose import make_curriculum
from gymcp.trainers.rollouts.curricula.protocol import Curriculum
from gymcp.trainers.rollouts.engines import Sampler, open_sampler
from gymcp.trainers.rollouts.judge import open_judge
from gymcp.trainers.rollouts.playing import EpisodePlayer
from gymcp.trainers.rollouts.recorded_demonstrations import load_shown_actions
from gymcp.trainers.rollouts.rollouts import TrainingEpisodes
from gymcp.trainers.run.checkpoints import TrainingState, load_training, save_training
from gymcp.trainers.run.distributed_controller import load_on_all_ranks, make_learner
from gymcp.trainers.run.experience.recorded_buffer import load_recorded_buffer
from gymcp.trainers.run.experience.replay_buffer import ReplayBuffer, remember
from gymcp.trainers.run.iteration import TrainingSetup
from gymcp.trainers.run.metrics_log import MetricsLog
from gymcp.trainers.run.model_columns import FURTHER_HEADS, NEEDS_CRITIC
from gymcp.trainers.run.model_files import MODEL, model_folder
from gymcp.trainers.run.warm_start import warm_start, warm_start_examples
from gymcp.types import Json, Trajectory

log = logging.getLogger(__name__)
OnRow = Callable[[Mapping[str, Json]], None]
"""Called with each row of metrics: those of the warm start's epochs, then those of the iterations."""
OpenPlayer = Callable[[], AbstractAsyncContextManager[EpisodePlayer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInputs:
    """The inputs of a training run."""

    recipe: Recipe
    preset: Preset
    """Built from the recipe."""
    env: LoadedEnv
    folder: Path
    on_row: OnRow
    processes: Accelerated | None
    """None: this process trains alone."""
    agent: RolloutAgent | None = None
    """Agent of the user that plays over the trained model; None: react."""
    concurrency: ConcurrencyChoice | None = None
    """Episodes at a time on this machine; None: as many as the recipe says."""
    open_player: OpenPlayer | None = None
    """Opens a player of the trained model's episodes; None: this machine plays them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """The open parts of a training run. They stay the same objects until it ends."""

    inputs: RunInputs
    trainable: TrainableModel
    setup: TrainingSetup
    replay_examples: Sequence[Example]
    """Demonstrations that are learnt again beside rollouts; empty: the recipe asks for none."""
    recorded: Mapping[str, Trajectory]
    """Episodes of the run ``replay.run``, by id."""
    episodes: TrainingEpisodes
    curriculum: Curriculum
    sampler: Sampler
    log: MetricsLog


@asynccontextmanager
async def open_run(
    inputs: RunInputs, saved: TrainingState | None, server: str
) -> AsyncIterator[tuple[TrainingRun, TrainingState]]:
    """The parts of the run and the state it goes on from: `saved`, or for a new run the state after its warm start.

    `server` is the spec of the vLLM server; empty: the embedded engine samples.
    """
    recipe, folder = inputs.recipe, inputs.folder
    async with AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(open_warm_sandbox(get_sandbox(recipe.rollout.sandbox)))
        store = stack.enter_context(TrajectoryStore.open(folder, write=True))
        env = await stack.enter_async_context(open_judge(recipe, inputs.env, folder))
        shown = load_shown_actions(env, recipe)
        playing = recipe if inputs.concurrency is None else fill_concurrency(recipe, inputs.concurrency)
        episodes = TrainingEpisodes(
            env=env, recipe=playing, sandbox=sandbox, store=store, agent=inputs.agent, shown=shown
        )
        replays = recipe.learn.demonstrations
        records = await episodes.demonstrations() if saved is None or replays else []
        if saved is None:
            make_model_folder(recipe.model, folder / MODEL, corpus_of(records), seed=recipe.seed)
        trainable = load_on_all_ranks(recipe, model_folder(recipe, folder), inputs.processes)
        _say_what_is_slower(recipe, trainable)
        stack.enter_context(limit_update_threads(trainable))
        critic, heads = _make_heads(recipe, inputs.preset, trainable)
        replay_examples = warm_start_examples(recipe, trainable, records) if replays else []
        settings = make_learner_settings(recipe, trainable)
        recorded = {each.id: each for each in load_recorded_buffer(inputs.env, recipe)} if recipe.replay.run else {}
        if saved is None:
            log = stack.enter_context(MetricsLog(folder))
            learner = _start_learner(inputs, trainable, records)
            state = _make_first_state(recipe, inputs.preset, list(recorded.values()))
            save_training(folder, recipe, state, learner, critic, heads)
        else:
            learner = make_learner(trainable, settings, inputs.processes)
            state = saved
            load_training(folder, state, learner, critic, heads)
            log = stack.enter_context(MetricsLog(folder, until=state.iteration))
        opening = open_sampler(recipe, trainable, learner, folder, server, str(state.iteration))
        sampler = await stack.enter_async_context(opening)
        player = None if inputs.open_player is None else await stack.enter_async_context(inputs.open_player())
        shares_weights = records_learner_logprobs(inputs.agent, server, settings)
        setup = _make_setup(inputs, trainable, learner, critic, heads, shares_weights=shares_weights)
        run = TrainingRun(
            inputs=inputs,
            trainable=trainable,
            setup=setup,
            replay_examples=replay_examples,
            recorded=recorded,
            episodes=replace(episodes, player=player),
            curriculum=make_curriculum(env, recipe),
            sampler=sampler,
            log=log,
        )
        yield run, state


def _make_first_state(recipe: Recipe, preset: Preset, recorded: Sequence[Trajectory]) -> TrainingState:
    buffer = remember(ReplayBuffer(), recorded, recipe.replay, iteration=-1)
    return TrainingState(replay=buffer, settings=list_settings(recipe, preset))


def _make_setup(
    inputs: RunInputs,
    trainable: TrainableModel,
    learner: Learner,
    critic: Critic | None,
    heads: Mapping[str, Critic],
    *,
    shares_weights: bool,
) -> TrainingSetup:
    recipe = inputs.recipe
    return TrainingSetup(
        preset=inputs.preset,
        learner=learner,
        critic=critic,
        heads=heads,
        minibatches=recipe.learn.minibatches,
        epochs=recipe.learn.epochs,
        restarts=recipe.learn.restart,
        costs=inputs.env.spec.costs,
        renderer=trainable.renderer,
        engine_shares_weights=shares_weights,
    )


def records_learner_logprobs(agent: RolloutAgent | None, server: str, settings: LearnerSettings) -> bool:
    """True if the engine records the log-probabilities that the learner would compute.

    An agent of the user may sample at another temperature than the recipe's; react and programs cannot.
    """
    return not server and not settings.autocast and not isinstance(agent, UserAgent)


def _say_what_is_slower(recipe: Recipe, trainable: TrainableModel) -> None:
    if kind := why_no_shared_prefix(trainable.model):
        log.warning(
            "training '%s': %s has %s, so the prompt that the episodes of a task share is computed for each of them",
            recipe.name,
            type(trainable.model).__name__,
            kind,
        )


def _start_learner(inputs: RunInputs, trainable: TrainableModel, records: Sequence[Trajectory]) -> Learner:
    """A new learner after the warm start on `records`, whose weights are then the reference policy if there is one.

    Raises ConfigError if the warm start diverges.
    """
    recipe = inputs.recipe
    if records:
        try:
            for row in warm_start(recipe, trainable, records, inputs.processes):
                inputs.on_row(row)
        except FloatingPointError as error:
            rate = recipe.warm_start.learning_rate
            raise ConfigError(
                f"training: warm start: {error}; is warm_start.learning_rate, {rate:g}, too high?"
            ) from error
    learner = make_learner(trainable, make_learner_settings(recipe, trainable), inputs.processes)
    if inputs.preset.loss.kl or inputs.preset.preference is not None or recipe.learn.restart:
        learner.set_reference()
    return learner


def make_learner_settings(recipe: Recipe, trainable: TrainableModel) -> LearnerSettings:
    """The settings with which the recipe's model learns after its warm start."""
    learn = recipe.learn
    return LearnerSettings(
        learning_rate=learn.learning_rate,
        max_grad_norm=learn.max_grad_norm,
        warmup_steps=learn.warmup_steps,
        schedule=learn.schedule,
        total_steps=learn.iterations * learn.minibatches * learn.epochs * (2 if learn.demonstrations else 1),
        micro_batch_tokens=learn.micro_batch_tokens,
        temperature=recipe.rollout.temperature,
        autocast=uses_bfloat16(recipe.model, on_gpu=trainable.model.device.type != "cpu"),
        workers=trainable.workers,
    )


def _make_heads(recipe: Recipe, preset: Preset, trainable: TrainableModel) -> tuple[Critic | None, dict[str, Critic]]:
    """The critic if the preset needs one, and the further heads that it needs by name."""
    critic = _make_head(recipe, trainable) if preset.needs & NEEDS_CRITIC else None
    needed = [name for name, signal in FURTHER_HEADS.items() if signal in preset.needs]
    return critic, {name: _make_head(recipe, trainable) for name in needed}


def _make_head(recipe: Recipe, trainable: TrainableModel) -> Critic:
    return Critic(
        trainable.model.config.get_text_config().hidden_size,
        trainable.model.device,
        learning_rate=recipe.learn.critic_learning_rate,
        epochs=recipe.learn.critic_epochs,
        seed=recipe.seed,
    )


@contextmanager
def limit_update_threads(trainable: TrainableModel) -> Iterator[None]:
    """Use one thread for each operation of a small model on CPU cores, because servers need the cores as well.

    An update still takes several threads, each for a micro-batch of its own.
    """
    before = torch.get_num_threads()
    if is_small(trainable.model):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
