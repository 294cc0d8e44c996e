"""The size of a training run before it starts: episodes, updates and memory, from the recipe and the model's shape."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from gymcp.agents.policies.local_model import read_context_length
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.trainers.credit.presets import Preset
from gymcp.trainers.recipe.build_preset import build_preset
from gymcp.trainers.recipe.model import uses_bfloat16
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curriculum import heldout_tasks

ACTIVATIONS_PER_LAYER = 16
"""Values kept for the backward pass, per token, layer and unit of width: attention and MLP of a Llama-like layer."""
LOGITS_COPIES = 3
"""Copies of the logits that a micro-batch holds: logits, log-probabilities, gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeCounts:
    """Episodes that a training run plays."""

    demonstrations: int
    """Episodes of the warm start, played by the demonstrating agent; 0 also for demonstrations from a recorded run."""
    rollouts: int
    evaluations: int
    """Number of evaluations."""
    heldout: int
    """Episodes of all evaluations together."""

    @property
    def all(self) -> int:
        return self.demonstrations + self.rollouts + self.heldout


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The parts of a model's shape that its memory depends on."""

    parameters: int
    trained: int
    """Parameters that training changes: all, or those of the LoRA adapter."""
    vocabulary: int
    hidden: int
    layers: int
    cache_width: int
    """Values of keys and values per token and layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryForecast:
    """Bytes that training takes, roughly."""

    weights: int
    """Weights, gradients and optimiser: this much it takes in any case."""
    reference: int
    """Second copy of the trained weights for a divergence or a restart; 0 without one."""
    activations: int
    """One micro-batch, with its logits."""
    cache: int
    """Keys and values of the embedded engine with all slots full; 0 with another engine."""

    @property
    def all(self) -> int:
        return self.weights + self.reference + self.activations + self.cache


def count_episodes(recipe: Recipe, env: LoadedEnv) -> EpisodeCounts:
    """Episodes of a run of this recipe that no reason ends early; those that fill batches (``curriculum.refill``,
    ``rollout.batch_tokens``), and branches, come on top."""
    rule, iterations = recipe.evaluation, recipe.learn.iterations
    ends = sorted({0, iterations})
    between = len(range(rule.every, iterations, rule.every)) if rule.every else 0
    final_most = rule.final_tasks or rule.tasks
    at_ends = sum(len(heldout_tasks(env, recipe, split, final_most)) for split in rule.final_splits or rule.splits)
    at_others = sum(len(heldout_tasks(env, recipe, split, rule.tasks)) for split in rule.splits) if between else 0
    shown = 0 if recipe.warm_start.run else recipe.warm_start.tasks
    return EpisodeCounts(
        demonstrations=min(shown, len(env.suite.tasks)) if env.spec.more_tasks is None else shown,
        rollouts=iterations * recipe.rollout.groups * recipe.rollout.episodes,
        evaluations=len(ends) + between,
        heldout=len(ends) * at_ends + between * at_others,
    )


def count_updates(recipe: Recipe) -> int:
    """Optimiser steps after the warm start, at most. A preset that updates turn by turn takes one for each step."""
    learn = recipe.learn
    each = recipe.rollout.max_turns if build_preset(recipe).turns is not None else 1
    return learn.iterations * learn.minibatches * learn.epochs * (each + (1 if learn.demonstrations else 0))


def count_warm_updates(recipe: Recipe, episodes: EpisodeCounts) -> int:
    """Optimiser steps of the warm start, if each demonstration is one example."""
    warm = recipe.warm_start
    shown = warm.tasks if warm.run else episodes.demonstrations
    return warm.epochs * -(-shown // warm.batch_size)


def read_shape(recipe: Recipe, folder: Path) -> ModelShape:
    """Shape of the model in `folder`, without loading a weight. Raises ConfigError for a folder without a model."""
    read_context_length(folder, f"model '{folder}'")
    try:
        config: Any = AutoConfig.from_pretrained(folder, local_files_only=True)
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConfigError(f"model '{folder}': cannot be made: {error}") from error
    text = config.get_text_config()
    parameters = sum(weight.numel() for weight in model.parameters())
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return ModelShape(
        parameters=parameters,
        trained=_count_adapter(model, recipe.model.lora_rank) if recipe.model.lora_rank else parameters,
        vocabulary=text.vocab_size,
        hidden=text.hidden_size,
        layers=text.num_hidden_layers,
        cache_width=2 * heads * width,
    )


def _count_adapter(model: Any, rank: int) -> int:
    """Weights of a LoRA adapter on all linear layers but the head."""
    layers = [part for name, part in model.named_modules() if isinstance(part, torch.nn.Linear) and name != "lm_head"]
    return sum(rank * (layer.in_features + layer.out_features) for layer in layers)


def forecast_memory(recipe: Recipe, preset: Preset, shape: ModelShape, *, on_gpu: bool) -> MemoryForecast:
    """Bytes for the learner and the embedded engine, which share the weights. A vLLM server's own come on top."""
    size = 2 if uses_bfloat16(recipe.model, on_gpu=on_gpu) else 4
    frozen = shape.parameters if recipe.model.lora_rank else 0
    tokens = recipe.learn.micro_batch_tokens
    activations = tokens * shape.layers * shape.hidden * ACTIVATIONS_PER_LAYER * size
    slots = recipe.rollout.slots if recipe.rollout.engine == "embedded" else 0
    return MemoryForecast(
        weights=frozen * size + shape.trained * (4 + 4 + 8),  # float32 weights and gradients, two moments of Adam
        reference=4 * shape.trained if preset.loss.kl or recipe.learn.restart else 0,
        activations=activations + LOGITS_COPIES * tokens * shape.vocabulary * 4,
        cache=slots * recipe.model.context * shape.layers * shape.cache_width * size,
    )
