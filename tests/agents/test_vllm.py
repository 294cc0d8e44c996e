"""A real vLLM on this machine's CPU, serving a tiny model."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_models import error_of
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from gymcp.agents.tiny_model import make_tiny_model
from gymcp.agents.vllm import VllmPolicy, open_vllm
from gymcp.agents.vllm_install import CPU, vllm_python
from gymcp.agents.vllm_server import VllmPlan, VllmServer, running_vllm
from gymcp.errors import ConfigError
from gymcp.types import Sampled, Sampling

WAIT_S = 600.0

Folders = dict[str, Path]

pytestmark = pytest.mark.xdist_group("vllm")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Two sets of weights for one tokenizer, with an output layer of their own: tied ones cannot be reloaded."""
    made = tmp_path_factory.mktemp("models")
    folders = {version: make_tiny_model(made / f"tiny-{version}", seed=int(version)) for version in ("0", "1")}
    for folder in folders.values():
        model = load(folder)
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().flip(0).contiguous())
        model.save_pretrained(folder)
    return folders


@pytest.fixture(scope="module")
def server(folders: Folders) -> Iterator[VllmServer]:
    if vllm_python(CPU) is None and os.environ.get("GYMCP_REQUIRE_ALL") != "1":
        pytest.skip("vLLM is not set up: gymcp serve MODEL --cpu")
    with running_vllm(VllmPlan(model=folders["0"], name="tiny", lora_rank=8), print) as running:
        yield running


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def on(server: VllmServer, play: Callable[[VllmPolicy], Awaitable[Any]], model: str = "tiny") -> Any:
    async def opened() -> Any:
        async with asyncio.timeout(WAIT_S), open_vllm(server.url, model) as policy:
            return await play(policy)

    return asyncio.run(opened())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_a_plain_forward(server: VllmServer, folders: Folders, temperature: float) -> None:
    async def play(policy: VllmPolicy) -> list[Sampled]:
        assert policy.spans
        rule = Sampling(max_tokens=24, temperature=temperature)
        return await asyncio.gather(*(policy.sample([7, at, 9], rule) for at in range(20, 28)))

    model = load(folders["0"])
    samples = on(server, play)
    worst = 0.0
    for sampled in samples:
        name = sampled.versions[0][0]
        worst = max(worst, error_of(sampled, {name: model}, temperature))
    assert worst < 1e-4


def test_completions_give_the_same(server: VllmServer) -> None:
    async def play(policy: VllmPolicy) -> tuple[Sampled, Sampled]:
        rule = Sampling(max_tokens=16, seed=3)
        first = await policy.sample([7, 8, 9], rule)
        policy.spans = False
        return first, await policy.sample([7, 8, 9], rule)

    first, second = on(server, play)
    assert first.ids == second.ids
    assert first.logprobs == pytest.approx(second.logprobs, abs=1e-4)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft still asks for it
def test_an_adapter_is_loaded(server: VllmServer, folders: Folders, tmp_path: Path) -> None:
    wrapped: Any = get_peft_model(
        load(folders["0"]), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    )
    wrapped.save_pretrained(tmp_path / "adapter")

    async def play(policy: VllmPolicy) -> None:
        await policy.load_adapter("better", tmp_path / "adapter")

    async def sample(policy: VllmPolicy) -> Sampled:
        return await policy.sample([7, 8, 9], Sampling(max_tokens=16))

    on(server, play)
    sampled = on(server, sample, "better")
    assert error_of(sampled, {sampled.versions[0][0]: wrapped.eval()}) < 1e-4


def test_new_weights_in_mid_request(server: VllmServer, folders: Folders) -> None:
    """The spans tell which token came from which weights, and each logprob is theirs."""

    async def play(policy: VllmPolicy) -> list[Sampled]:
        rule = Sampling(max_tokens=400, temperature=1.0)
        asked = [asyncio.create_task(policy.sample([7, at, 9], rule)) for at in range(30, 34)]
        await policy.sample([5, 5], Sampling(max_tokens=8))
        await policy.load_weights(folders["1"], "new")
        samples = await asyncio.gather(*asked)
        await policy.load_weights(folders["0"], "0")
        return samples

    old, new = load(folders["0"]), load(folders["1"])
    samples = on(server, play)
    for sampled in samples:
        models = {name: new if name == "new" else old for name, _, _ in sampled.versions}
        assert error_of(sampled, models) < 1e-4
    assert any(len(sampled.versions) == 2 for sampled in samples)


def test_an_unknown_model_is_one_clear_error(server: VllmServer) -> None:
    async def play(policy: VllmPolicy) -> None:
        raise AssertionError("it opened")

    with pytest.raises(ConfigError, match="has no model 'large'; it has tiny"):
        on(server, play, "large")
