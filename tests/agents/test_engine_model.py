"""The forward pass over slots is the model's own."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from engine_models import VOCABULARY, llama, plain_logits, qwen
from peft import LoraConfig, get_peft_model
from transformers import MistralConfig, MistralForCausalLM

from gymcp.agents.policies.engine.model import SlotModel, check_exact, check_supported, copy_sharing_weights
from gymcp.errors import ConfigError


def eager() -> Any:
    model = qwen()
    model.set_attn_implementation("eager")
    return model


@pytest.mark.parametrize("make", [qwen, llama, eager], ids=["qwen3", "llama", "eager"])
@pytest.mark.parametrize("seed", range(3))
def test_logits_of_any_interleaving_equal_those_of_a_plain_forward_pass(make: Any, seed: int) -> None:
    """Rows are added, removed, truncated, copied and continued in random chunks."""
    model, rng, slots = make(), random.Random(seed), 5
    runner = SlotModel(model, slots, 256)
    held: list[list[int]] = [[] for _ in range(slots)]
    worst, compared = 0.0, 0
    for _ in range(25):
        for slot in range(slots):
            if rng.random() < 0.15:
                held[slot] = held[slot][: rng.randrange(len(held[slot]) + 1)]
            if rng.random() < 0.1:
                source = rng.randrange(slots)
                runner.cache.copy(source, slot, len(held[source]))
                held[slot] = list(held[source])
        rows = sorted(rng.sample(range(slots), rng.randint(1, slots)))
        chunks = [[rng.randrange(VOCABULARY) for _ in range(rng.choice([1, 1, 2, 7]))] for _ in rows]
        logits = runner.forward(rows, [len(held[row]) for row in rows], chunks, window=rng.random() < 0.5)
        for at, row in enumerate(rows):
            held[row] = [*held[row], *chunks[at]]
            worst = max(worst, float((logits[at] - plain_logits(model, held[row])[-1]).abs().max()))
            compared += 1
    assert compared > 40
    assert worst < 1e-5


def test_the_weights_are_shared_and_the_mode_is_not() -> None:
    model = qwen(attention_dropout=0.5).train()
    view = copy_sharing_weights(model)
    assert not view.training
    assert model.training
    assert all(a is b for a, b in zip(model.parameters(), view.parameters(), strict=True))
    assert view.lm_head.weight is view.model.embed_tokens.weight


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft still asks for it
def test_adapters_are_part_of_the_forward_pass() -> None:
    wrapped: Any = get_peft_model(
        llama(), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.5, init_lora_weights=False)
    )
    base = plain_logits(llama(), [5, 6, 7])[-1]
    runner = SlotModel(wrapped.get_base_model(), 1, 256)
    ours = runner.forward([0], [0], [[5, 6, 7]], window=False)[0]
    wrapped.eval()
    assert float((ours - plain_logits(wrapped, [5, 6, 7])[-1]).abs().max()) < 1e-5
    assert float((ours - base).abs().max()) > 1e-2


def test_half_precision_runs() -> None:
    check_exact(qwen().to(torch.bfloat16), 256)


def test_a_sliding_window_is_refused_beyond_the_window() -> None:
    shape: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "head_dim": 8,
    }
    model: Any = MistralForCausalLM(
        MistralConfig(**shape, num_attention_heads=4, num_key_value_heads=2, sliding_window=16)
    )
    check_supported(model, 16)
    check_exact(model, 16)
    with pytest.raises(ConfigError, match=r"sliding window of 16 tokens.*max_context to 16"):
        check_supported(model, 17)


def test_a_model_with_some_sliding_layers_is_refused() -> None:
    model = qwen(layer_types=["full_attention", "sliding_attention"], sliding_window=8, use_sliding_window=True)
    with pytest.raises(ConfigError, match="sliding window of 8"):
        check_supported(model, 64)


def test_layers_without_keys_and_values_are_refused() -> None:
    model = qwen()
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(ConfigError, match="linear_attention"):
        check_supported(model, 64)


def test_positions_that_depend_on_the_batch_are_refused() -> None:
    model = llama(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
    with pytest.raises(ConfigError, match="dynamic positions"):
        check_supported(model, 64)


def test_a_model_that_slots_compute_wrongly_is_refused() -> None:
    class Skewed(type(qwen())):  # type: ignore[misc]
        def forward(self, *args: Any, past_key_values: Any = None, **rest: Any) -> Any:
            output = super().forward(*args, past_key_values=past_key_values, **rest)
            if past_key_values is not None:
                output.logits = output.logits + torch.arange(VOCABULARY) * 1e-2
            return output

    model = qwen()
    model.__class__ = Skewed
    with pytest.raises(ConfigError, match="differs from its own forward pass"):
        check_exact(model, 64)
