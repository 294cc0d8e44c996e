"""Models of known shapes with random weights, and rows of random tokens: what `gpu.py` measures on."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The shape of a Qwen3 with tied embeddings."""

    name: str
    hidden: int
    layers: int
    heads: int
    inner: int
    """Width of the feed-forward layers."""
    kv_heads: int = 8
    head_dim: int = 128
    vocabulary: int = 151_936
    context: int = 40_960


SIZES = {
    "0.6b": Shape(name="0.6 B", hidden=1024, layers=28, heads=16, inner=3072),
    "1.7b": Shape(name="1.7 B", hidden=2048, layers=28, heads=16, inner=6144),
    "4b": Shape(name="4 B", hidden=2560, layers=36, heads=32, inner=9728),
}
"""Shapes of Qwen3 by their published size."""
TOY = Shape(name="toy", hidden=64, layers=2, heads=4, inner=128, kv_heads=2, head_dim=16, vocabulary=4096, context=2048)


def make_model(shape: Shape, dtype: torch.dtype, device: str) -> Any:
    """A model with random weights, the same for the same shape and device."""
    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = Qwen3ForCausalLM(config)
    return model.to(dtype)


def with_adapter(model: Any, rank: int = 16) -> Any:
    """The model behind a LoRA adapter of its linear layers, as a recipe with `lora_rank` makes it."""
    torch.manual_seed(0)
    adapter = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, adapter)


def make_rows(
    shape: Shape, *, groups: int, group: int, prompt: int, completion: int
) -> list[tuple[list[int], list[int]]]:
    """[groups * group] pairs of prompt and completion; the rows of a group share their prompt."""
    rng = random.Random(0)

    def draw(count: int) -> list[int]:
        return [rng.randrange(10, shape.vocabulary) for _ in range(count)]

    prompts = [draw(prompt) for _ in range(groups)]
    return [(shared, draw(completion)) for shared in prompts for _ in range(group)]
