"""A real vLLM on this machine's CPU, serving a tiny model."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine_models import error_of
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from vllm_serving import KEY

from gymcp.agents.policies.specs import parse_policy
from gymcp.agents.policies.vllm.client import VllmPolicy, open_vllm
from gymcp.errors import ConfigError
from gymcp.types import Sampled, Sampling

WAIT_S = 600.0

SIGNED = {"authorization": f"Bearer {KEY}"}
Folders = dict[str, Path]

pytestmark = pytest.mark.xdist_group("vllm")


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def on(vllm_spec: str, play: Callable[[VllmPolicy], Awaitable[Any]], model: str = "") -> Any:
    async def open_policy() -> Any:
        spec = parse_policy(vllm_spec)
        async with asyncio.timeout(WAIT_S), open_vllm(spec.url, model or spec.model, key=KEY) as policy:
            return await play(policy)

    return asyncio.run(open_policy())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_equal_those_of_a_plain_forward_pass(vllm_spec: str, tied_models: Folders, temperature: float) -> None:
    async def play(policy: VllmPolicy) -> list[Sampled]:
        assert policy.reports_versions
        rule = Sampling(max_tokens=24, temperature=temperature)
        return await asyncio.gather(*(policy.sample([7, at, 9], rule) for at in range(20, 28)))

    model = load(tied_models["0"])
    samples = on(vllm_spec, play)
    worst = 0.0
    for sampled in samples:
        name = sampled.versions[0][0]
        worst = max(worst, error_of(sampled, {name: model}, temperature))
    assert worst < 1e-4


def test_long_prompts_with_seeds_are_sampled_at_once(vllm_spec: str, tied_models: Folders) -> None:
    """Together they have more tokens than vLLM computes in a step; one that it computed in parts ended the server."""

    async def play(policy: VllmPolicy) -> list[Sampled]:
        prompts = [[10 + (at * 7 + place * place) % 400 for place in range(700)] for at in range(8)]
        rules = (Sampling(max_tokens=8, seed=seed) for seed in range(8))
        return await asyncio.gather(*(policy.sample(*each) for each in zip(prompts, rules, strict=True)))

    model = load(tied_models["0"])
    errors = [error_of(sampled, {sampled.versions[0][0]: model}) for sampled in on(vllm_spec, play)]
    assert max(errors) < 1e-4


def test_the_completions_endpoint_gives_the_same_samples(vllm_spec: str) -> None:
    async def play(policy: VllmPolicy) -> tuple[Sampled, Sampled]:
        rule = Sampling(max_tokens=16, seed=3)
        first = await policy.sample([7, 8, 9], rule)
        policy.reports_versions = False
        return first, await policy.sample([7, 8, 9], rule)

    first, second = on(vllm_spec, play)
    assert first.ids == second.ids
    assert first.logprobs == pytest.approx(second.logprobs, abs=1e-4)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft still asks for it
def test_an_adapter_is_loaded(vllm_spec: str, tied_models: Folders, tmp_path: Path) -> None:
    wrapped: Any = get_peft_model(
        load(tied_models["0"]), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    )
    wrapped.save_pretrained(tmp_path / "adapter")

    async def play(policy: VllmPolicy) -> None:
        await policy.load_adapter("better", tmp_path / "adapter")

    async def sample(policy: VllmPolicy) -> Sampled:
        return await policy.sample([7, 8, 9], Sampling(max_tokens=16))

    on(vllm_spec, play)
    sampled = on(vllm_spec, sample, "better")
    assert error_of(sampled, {sampled.versions[0][0]: wrapped.eval()}) < 1e-4


async def running(client: httpx.AsyncClient) -> float:
    """The number of requests for which the server is sampling."""
    lines = (await client.get("/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running"))


def test_new_weights_are_loaded_during_requests(vllm_spec: str, tied_models: Folders) -> None:
    """The spans tell the weight version of each token; its logprob fits that version although embeddings are tied."""

    async def play(policy: VllmPolicy) -> list[Sampled]:
        rule = Sampling(max_tokens=400, temperature=1.0)
        samples: list[Sampled] = []
        each = httpx.Limits(max_keepalive_connections=0)  # an idle connection may be closed just as it is used again
        client = httpx.AsyncClient(
            base_url=parse_policy(vllm_spec).url, headers=SIGNED, trust_env=False, limits=each, timeout=60
        )
        async with client, asyncio.timeout(300):
            while not any(len(sampled.versions) == 2 for sampled in samples):  # all may have ended before the update
                asked = [asyncio.create_task(policy.sample([7, at, 9], rule)) for at in range(30, 42)]
                while await running(client) < 4 and not all(task.done() for task in asked):
                    pass
                await policy.load_weights(tied_models["1"], "new")
                samples += await asyncio.gather(*asked)
                await policy.load_weights(tied_models["0"], "0")
        return samples

    old, new = load(tied_models["0"]), load(tied_models["1"])
    for sampled in on(vllm_spec, play):
        models = {name: new if name == "new" else old for name, _, _ in sampled.versions}
        assert error_of(sampled, models) < 1e-4


def test_an_unknown_model_is_one_clear_error(vllm_spec: str) -> None:
    async def play(policy: VllmPolicy) -> None:
        raise AssertionError("it opened")

    with pytest.raises(ConfigError, match="has no model 'large'; it has tiny-0"):
        on(vllm_spec, play, "large")
