"""Small random models, and rows of tokens for them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import (
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from gymcp.trainers.learner.forward import token_values
from gymcp.trainers.learner.token_rows import Example, Row

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
}


def model(kind: str = "qwen3", seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False))
    if kind == "sliding windows":
        layers = ["full_attention", "sliding_attention"]
        config = Qwen3Config(**SIZES, use_sliding_window=True, sliding_window=16, layer_types=layers)
        return Qwen3ForCausalLM(config)
    if kind == "linear attention":
        return Lfm2ForCausalLM(Lfm2Config(**SIZES, layer_types=["full_attention", "conv"]))
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=True))


def row(prefix: Sequence[int], rng: random.Random, *, length: int) -> Row:
    """A row of two steps: drawn tokens, then tokens from a tool, then drawn tokens."""
    tokens = (*prefix, *(rng.randrange(97) for _ in range(length)))
    cut = len(prefix) + length // 3
    spans = ((0, len(prefix) + 1, cut), (1, cut + 2, len(tokens)))
    mask = tuple(any(start <= t < end for _, start, end in spans) for t in range(len(tokens)))
    return Row(
        token_ids=tokens, loss_mask=mask, logprobs=tuple(-3.0 * drawn for drawn in mask), versions=(), steps=spans
    )


def example(row: Row, advantages: Sequence[float]) -> Example:
    """The row with an advantage for each of its steps."""
    per_token = np.zeros(len(row.token_ids))
    for index, start, end in row.steps:
        per_token[start:end] = advantages[index]
    return Example(row=row, advantages=(per_token,), counted=(np.array(row.loss_mask),))


def group(seed: int, *, episodes: int = 4, prompt: int = 40, longer: int = 3) -> list[Row]:
    """Rows of one task: the same prompt in all, and each row `longer` tokens longer than the one before."""
    rng = random.Random(seed)
    prefix = [rng.randrange(97) for _ in range(prompt)]
    return [row(prefix, rng, length=9 + longer * n) for n in range(episodes)]


def gradients(
    model: PreTrainedModel, rows: Sequence[Row], prefix: int, *, nested: bool = False
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Log-probabilities of all drawn tokens, and the gradients of a weighted sum of them."""
    values = token_values(model, rows, prefix=prefix, nested=nested).logprobs
    weights = torch.linspace(-1, 1, len(values))
    return values, list(torch.autograd.grad((values * weights).sum(), list(model.parameters())))
