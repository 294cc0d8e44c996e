"""Tiny models are real models: they load, generate, and use their chat style."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gymcp.agents.policies.tiny_model import STYLES, Style, make_tiny_model
from gymcp.errors import ConfigError

PAY = {"name": "transfer", "arguments": {"amount": 5, "source": "ann", "target": "bob"}}
TOOL = {
    "type": "function",
    "function": {
        "name": "transfer",
        "parameters": {
            "type": "object",
            "properties": {name: {} for name in ("amount", "note", "source", "target")},
            "required": ["amount", "source", "target"],
        },
    },
}


@pytest.mark.parametrize("style", STYLES)
def test_a_tiny_model_loads_and_generates(tmp_path: Path, style: Style) -> None:
    make_tiny_model(tmp_path, style)
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path)
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Pay Bob."}], tools=[TOOL], add_generation_prompt=True, return_tensors="pt"
    )
    made = model.generate(**prompt, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert made.shape[1] == prompt["input_ids"].shape[1] + 4
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    ends = [tokenizer.convert_tokens_to_ids(token) for token in STYLES[style].end_tokens]
    assert model.generation_config.eos_token_id in (ends, ends[0])


def test_the_same_seed_makes_the_same_model(tmp_path: Path) -> None:
    a, b, c = (make_tiny_model(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    weights = "model.safetensors"
    assert (a / weights).read_bytes() == (b / weights).read_bytes() != (c / weights).read_bytes()
    assert (a / "tokenizer.json").read_bytes() == (b / "tokenizer.json").read_bytes()


def test_the_compact_style_uses_one_token_for_each_marker(tmp_path: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(make_tiny_model(tmp_path, "compact"))
    messages = [
        {"role": "user", "content": "Pay Bob."},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": PAY}]},
        {"role": "tool", "content": "done"},
    ]
    text = tokenizer.apply_chat_template(messages, tools=[TOOL], add_generation_prompt=True, tokenize=False)
    assert text == (
        "<|t|>transfer<|v|>amount<|v|>source<|v|>target<|v|>note<|u|>Pay Bob."
        "<|a|><|c|>transfer<|v|>5<|v|>ann<|v|>bob<|e|><|r|>done<|a|>"
    )
    call = tokenizer.encode("<|c|>transfer<|v|>5<|v|>ann<|v|>bob<|e|>")
    assert len(call) <= 12


def test_an_unknown_style_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'mistral'; have qwen, llama, compact, terse"):
        make_tiny_model(tmp_path, "mistral")  # type: ignore[arg-type]
