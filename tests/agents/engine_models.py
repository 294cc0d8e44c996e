"""Tiny random models for the engine's tests, and the log-probabilities of a plain forward pass to compare with."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from gymcp.types import Sampled

torch.set_num_threads(1)  # more of them only wait for each other over matrices this small

VOCABULARY = 97

SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,  # sharp: a mistake in a logit shows
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def qwen(seed: int = 0, **changes: Any) -> Any:
    """Grouped-query attention, tied embeddings."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(**{**SHAPE, "tie_word_embeddings": True, **changes})).eval()


def llama(seed: int = 0, **changes: Any) -> Any:
    """As many key heads as query heads, untied embeddings."""
    torch.manual_seed(seed)
    shape = {**SHAPE, "num_key_value_heads": 4, "tie_word_embeddings": False, **changes}
    return LlamaForCausalLM(LlamaConfig(**shape)).eval()


def plain_logits(model: Any, ids: list[int]) -> torch.Tensor:
    """[L, V]: the logits of the model itself, without cache, batch or engine."""
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
    return logits


def error_of(sampled: Sampled, models: dict[str, Any], temperature: float = 1.0) -> float:
    """Largest difference of a recorded logprob from that of a plain forward pass with the token's weight version."""
    worst = 0.0
    ids = [*sampled.prompt_ids, *sampled.ids]
    for version, start, end in sampled.versions:
        logprobs = torch.log_softmax(plain_logits(models[version], ids) / temperature, dim=-1)
        for at in range(start, end):
            position = len(sampled.prompt_ids) + at
            worst = max(worst, abs(float(logprobs[position - 1, ids[position]]) - sampled.logprobs[at]))
    return worst
