"""The forward passes in C++ and in plain torch: the model's own logits, new weights, models they do not compute."""

from __future__ import annotations

import asyncio
import functools
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_models import SHAPE, VOCABULARY, error_of, llama, plain_logits, qwen
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM

from gymcp.agents.policies.engine import forward
from gymcp.agents.policies.engine.cpp_forward import CppForward, CppLibrary
from gymcp.agents.policies.engine.cpp_library import FORWARD_VARIABLE
from gymcp.agents.policies.engine.engine import EngineOptions, open_engine
from gymcp.agents.policies.engine.forward import SlotForward
from gymcp.agents.policies.engine.llama_model import find_obstacle, read_sizes, read_weights
from gymcp.agents.policies.engine.torch_forward import TorchForward
from gymcp.errors import ConfigError
from gymcp.types import Sampling

SLOTS, CONTEXT = 5, 2048
Make = Callable[[Any], SlotForward]


@pytest.fixture(params=["torch", "cpp"])
def make(request: pytest.FixtureRequest) -> Make:
    """Makes the forward pass of a model."""
    library = request.getfixturevalue("cpp_library") if request.param == "cpp" else None

    def make_forward(model: Any) -> SlotForward:
        read, sizes = functools.partial(read_weights, model), read_sizes(model)
        if library is None:
            return TorchForward(read, sizes, SLOTS, CONTEXT)
        return CppForward(library, read, sizes, SLOTS, CONTEXT)

    return make_forward


YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64}
"""Positions whose cosines and sines have a factor."""


@pytest.mark.parametrize(
    "model_of", [qwen, llama, functools.partial(llama, rope_parameters=YARN)], ids=["qwen3", "llama", "yarn"]
)
def test_logits_equal_those_of_a_plain_forward_pass(make: Make, model_of: Callable[..., Any]) -> None:
    """Prompts and single tokens in one call, truncated and copied slots, growing tables, new weights half way."""
    model, rng = model_of(max_position_embeddings=CONTEXT), random.Random(0)
    runner = make(model)
    held: list[list[int]] = [[] for _ in range(SLOTS)]
    worst, compared = 0.0, 0
    for number in range(24):
        if number == 12:
            model.load_state_dict(model_of(1, max_position_embeddings=CONTEXT).state_dict())
            runner.reload()
            held = [[] for _ in range(SLOTS)]
        for slot in range(SLOTS):
            if rng.random() < 0.15:
                held[slot] = held[slot][: rng.randrange(len(held[slot]) + 1)]
            if rng.random() < 0.1 and held[source := rng.randrange(SLOTS)]:
                runner.copy(source, slot, len(held[source]))
                held[slot] = list(held[source])
        rows = rng.sample(range(SLOTS), rng.randint(1, SLOTS))
        chunks = [[rng.randrange(VOCABULARY) for _ in range(rng.choice([1, 1, 2, 17, 150]))] for _ in rows]
        logits = runner.forward(rows, [len(held[row]) for row in rows], chunks, window=rng.random() < 0.5)
        for at, row in enumerate(rows):
            held[row] = [*held[row], *chunks[at]]
            worst = max(worst, float((logits[at] - plain_logits(model, held[row])[-1]).abs().max()))
            compared += 1
    assert compared > 40
    assert max(map(len, held)) > 256
    assert worst < 1e-5


def test_in_cpp_no_bit_depends_on_the_batch(cpp_library: CppLibrary) -> None:
    """A prompt alone at once, and the same prompt in pieces beside other slots, from a copied prefix."""
    model, rng = qwen(), random.Random(0)
    prompt = [rng.randrange(VOCABULARY) for _ in range(150)]
    alone, beside = (
        CppForward(cpp_library, functools.partial(read_weights, model), read_sizes(model), SLOTS, CONTEXT)
        for _ in range(2)
    )
    at_once = alone.forward([0], [0], [prompt], window=True)[0]
    beside.forward([3, 1], [0, 0], [prompt[:70], prompt[:9]], window=True)
    beside.copy(3, 2, 61)
    beside.forward([1, 2], [9, 61], [prompt[20:60], prompt[61:149]], window=True)
    in_pieces = beside.forward([0, 2, 4], [0, 149, 0], [[5], prompt[149:], prompt[:31]], window=True)[1]
    assert torch.equal(at_once, in_pieces)


def test_deterministic_engines_in_cpp_reuse_what_they_hold(cpp_library: CppLibrary) -> None:
    """A sample is the same to the last bit, alone or with others, and a common prefix is computed once."""

    async def play(count: int) -> tuple[Any, int]:
        options = EngineOptions(deterministic=True, forward="cpp", prefill_tokens=32)
        async with open_engine(model, slots=4, options=options) as engine:
            asked = [engine.sample([*range(40), at], Sampling(max_tokens=12, seed=at)) for at in range(count)]
            return (await asyncio.gather(*asked))[0], engine.stats.copied_tokens

    model = qwen()
    (alone, _), (together, copied) = asyncio.run(play(1)), asyncio.run(play(6))
    assert alone == together
    assert copied >= 3 * 40


def test_weights_of_another_shape_are_an_error(make: Make) -> None:
    model = qwen()
    runner = make(model)
    model.model.norm.weight.data = torch.zeros(3, 3)
    with pytest.raises(ValueError, match=r"norm is \(3, 3\)"):
        runner.forward([0], [0], [[1]], window=True)


def with_adapter() -> Any:
    return get_peft_model(llama(), LoraConfig(r=4, target_modules=["q_proj"])).get_base_model()


def with_hook() -> Any:
    model = qwen()
    model.model.layers[1].register_forward_hook(lambda *_: None)
    return model


def qwen2() -> Any:
    shape = {name: value for name, value in SHAPE.items() if name != "head_dim"}
    return Qwen2ForCausalLM(Qwen2Config(**shape)).eval()


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft still asks for it
@pytest.mark.parametrize(
    ("model_of", "reason"),
    [
        (qwen2, "Qwen2ForCausalLM is neither"),
        (lambda: llama(attention_bias=True), r"q_proj has a bias"),
        (lambda: llama(hidden_act="gelu"), "activation is gelu"),
        (with_adapter, "q_proj is a Linear, such as an adapter"),
        (with_hook, r"layers\.1 has hooks"),
        (lambda: qwen().to(torch.bfloat16), "its weights are bfloat16 on cpu"),
    ],
    ids=["class", "bias", "activation", "adapter", "hook", "dtype"],
)
def test_other_models_are_computed_by_transformers_which_is_said_once(
    model_of: Callable[[], Any], reason: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FORWARD_VARIABLE, raising=False)
    forward._warn_once.cache_clear()
    model = model_of()
    with caplog.at_level(logging.WARNING):
        assert [forward.open_forward(model, 2, 64).name for _ in range(2)] == ["transformers"] * 2
    assert [record.getMessage() for record in caplog.records] == [
        f"embedded engine: the forward pass is that of transformers, the slowest: {find_obstacle(model)}"
    ]
    with pytest.raises(ConfigError, match=f"'torch' does not compute this model: .*{reason}"):
        forward.open_forward(model, 2, 64, "torch")


def test_an_unknown_forward_pass_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORWARD_VARIABLE, "fortran")
    with pytest.raises(ConfigError, match="no forward pass 'fortran'; have cpp, torch, transformers"):
        forward.open_forward(qwen(), 2, 64)


def test_without_a_compiler_plain_torch_is_used_and_it_is_said(
    tmp_path: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> tuple[str, float]:
        async with open_engine(model, slots=2) as engine:
            sampled = await engine.sample([1, 2, 3], Sampling(max_tokens=5, seed=0))
            return engine.forward_pass, error_of(sampled, {"0": model})

    for name in (FORWARD_VARIABLE, "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    forward._warn_once.cache_clear()
    model = qwen()
    name, error = asyncio.run(play())
    assert (name, error < 1e-4) == ("torch", True)
    assert [record.getMessage() for record in caplog.records] == [
        "embedded engine: forward pass 'cpp' cannot be used: no C++ compiler in PATH (g++, clang++, c++);"
        " the next slower one is used"
    ]
    with pytest.raises(ConfigError, match="'cpp' cannot be used: no C"):
        forward.open_forward(model, 2, 64, "cpp")
