"""The model that a recipe names, ready for sampling and training."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedModel

from gymcp.agents.policies.local_model import SMALL_MODEL_BYTES, load_tokenizer, read_context_length
from gymcp.agents.policies.tiny_model import TinySize, make_tiny_model
from gymcp.agents.prompts.rendering import Renderer
from gymcp.agents.tool_calls.formats import Format
from gymcp.agents.tool_calls.parsing import choose_format
from gymcp.errors import ConfigError
from gymcp.trainers.recipe.model_path import named_model_folder
from gymcp.trainers.recipe.recipe import ModelRecipe
from gymcp.types import Trajectory

MAX_WORKERS = 8
"""Most threads of one update, each with a micro-batch of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainableModel:
    """A model with its chat template, tool-call format and limits."""

    model: PreTrainedModel
    renderer: Renderer
    read: Format
    context: int
    end_ids: tuple[int, ...]
    workers: int
    """Threads that an update may use, one micro-batch each."""


def make_model_folder(recipe: ModelRecipe, folder: Path, corpus: Iterable[str], *, seed: int) -> Path:
    """Folder of the recipe's model: the given one, or `folder`, into which a tiny model with random weights is written.

    The tokenizer of a tiny model learns its pieces from the corpus.
    """
    if recipe.path:
        return named_model_folder(recipe)
    size = TinySize(
        vocabulary=recipe.vocabulary,
        hidden=recipe.hidden,
        layers=recipe.layers,
        heads=recipe.heads,
        context=recipe.context,
        init_std=0.02,
    )
    return make_tiny_model(folder, recipe.style, seed=seed, size=size, corpus=corpus)


def uses_bfloat16(recipe: ModelRecipe, *, on_gpu: bool) -> bool:
    """True if the model computes in bfloat16: as the recipe says, else on a GPU."""
    return on_gpu if recipe.precision == "auto" else recipe.precision == "bfloat16"


def is_small(model: Any) -> bool:
    """True for a model so small that threads within one operation would mostly wait for each other.

    If `OMP_NUM_THREADS` is set, it decides the number of threads, and no model counts as small.
    """
    parameters = list(model.parameters())
    size = sum(weight.numel() * weight.element_size() for weight in parameters)
    return parameters[0].device.type == "cpu" and size < SMALL_MODEL_BYTES and "OMP_NUM_THREADS" not in os.environ


def load_trainable(recipe: ModelRecipe, folder: Path, seed: int = 0, *, device: str = "") -> TrainableModel:
    """The model in `folder` on `device`; by default on a GPU if there is one.

    Trained weights are float32 whatever the arithmetic: a small step would be lost in bfloat16. Raises ConfigError for
    a folder without a model, a tokenizer, or a chat template that can be continued.
    """
    who = f"model '{folder}'"
    context = min(read_context_length(folder, who), recipe.context)
    tokenizer, end_ids = load_tokenizer(folder, who)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        is_half_precision = recipe.lora_rank > 0 and uses_bfloat16(recipe, on_gpu=device != "cpu")
        dtype = torch.bfloat16 if is_half_precision else torch.float32
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        model = model.to(device)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ConfigError(f"{who}: cannot be loaded: {error}") from error
    if recipe.lora_rank:
        rank, alpha = recipe.lora_rank, recipe.lora_alpha or 2 * recipe.lora_rank
        adapter = LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = get_peft_model(model, adapter)
    renderer = Renderer(tokenizer, who, end_ids)
    return TrainableModel(
        model=model,
        renderer=renderer,
        read=choose_format(None, tokenizer, who),
        context=context,
        end_ids=tuple(sorted(renderer.end_ids)),
        workers=min(torch.get_num_threads(), MAX_WORKERS) if is_small(model) else 1,
    )


def corpus_of(records: Iterable[Trajectory]) -> Iterator[str]:
    """Texts of recorded episodes, from which the tokenizer of a tiny model learns its pieces."""
    for record in records:
        for step in record.steps:
            yield from (message.content for message in step.observation.messages)
            yield from (tool.name for tool in step.observation.tools)
            yield step.action.text
            for call in step.action.tool_calls:
                arguments = call.arguments if isinstance(call.arguments, str) else call.arguments.values()
                yield " ".join([call.name, *map(str, arguments)])
