"""The engine as a policy: exact logprobs, reuse, stops, limits, models that it can open.

Every test runs with each forward pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_models import VOCABULARY, error_of, llama, plain_logits, qwen
from engine_play import WAIT_S, Letters, engine_on, prompts, sample_all
from peft import LoraConfig, get_peft_model

from gymcp.agents.policies.engine.engine import EngineOptions, open_engine
from gymcp.agents.policies.tiny_model import make_tiny_model
from gymcp.errors import ConfigError
from gymcp.types import Sampled, Sampling

pytestmark = pytest.mark.usefixtures("forward_pass")


@pytest.mark.parametrize("make", [qwen, llama])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_recorded_logprobs_equal_those_of_a_plain_forward_pass(make: Callable[[], Any], temperature: float) -> None:
    """With many more requests than slots, unequal lengths, some common prefixes, and chunks of 16 tokens."""

    async def play() -> list[Sampled]:
        async with engine_on(model, prefill_tokens=16) as engine:
            asked = [*prompts(12), *prompts(12, seed=1, shared=20)]
            return await sample_all(engine, asked, Sampling(max_tokens=16, temperature=temperature, top_p=0.95))

    model = make()
    samples = asyncio.run(play())
    assert len(samples) == 24
    assert max(error_of(sampled, {"0": model}, temperature) for sampled in samples) < 1e-4


def test_a_sample_tells_the_time_of_its_request_and_of_its_first_token() -> None:
    """The times are no part of what is equal: samples of the same seed stay equal."""

    async def play() -> list[Sampled]:
        async with engine_on(qwen(), slots=1) as engine:
            asked = [engine.sample([3, 4, 5], Sampling(max_tokens=tokens, seed=7)) for tokens in (1, 12, 12)]
            return await asyncio.gather(*asked)

    one, *twelve = asyncio.run(play())
    for sampled in (one, *twelve):
        assert sampled.request_times is not None
        assert sampled.request_times.first_token_s is not None
        assert 0 < sampled.request_times.first_token_s <= sampled.request_times.request_s
    assert twelve[0] == twelve[1]
    last = twelve[1].request_times
    assert last is not None
    assert last.first_token_s is not None
    assert last.first_token_s > (one.request_times.request_s if one.request_times else 0)  # it waited for the slot


def test_episodes_continue_in_their_slots() -> None:
    """Only the new tokens of each turn are computed, and the logprobs stay exact."""

    async def play() -> None:
        async with engine_on(model) as engine:
            rows = prompts(4)
            for turn in range(4):
                samples = await sample_all(engine, rows, Sampling(max_tokens=8))
                assert max(error_of(sampled, {"0": model}) for sampled in samples) < 1e-4
                rows = [[*s.prompt_ids, *s.ids, 7, turn] for s in samples]
                before = engine.stats
            samples = await sample_all(engine, rows, Sampling(max_tokens=8))
            # the last token drawn has not been computed yet, and two came from outside
            assert engine.stats.kept_tokens - before.kept_tokens == sum(len(row) - 3 for row in rows)
            assert engine.stats.copied_tokens == 0

    model = qwen()
    asyncio.run(play())


def test_a_common_prefix_is_computed_once() -> None:
    async def play() -> None:
        async with engine_on(model, slots=8, prefill_tokens=16) as engine:
            beginning = prompts(1, shared=64)[0][:64]
            asked = [[*beginning, at, at + 1] for at in range(8)]
            samples = await sample_all(engine, asked, Sampling(max_tokens=4))
            assert max(error_of(sampled, {"0": model}) for sampled in samples) < 1e-4
            assert engine.stats.copied_tokens == 7 * 64
            assert engine.stats.computed_tokens + engine.stats.copied_tokens <= 8 * 66

    model = qwen()
    asyncio.run(play())


def test_the_same_seed_gives_the_same_tokens_whatever_else_is_sampled() -> None:
    async def play() -> tuple[list[Sampled], list[Sampled]]:
        asked = prompts(6)
        async with engine_on(model, slots=6) as engine:
            together = await sample_all(engine, asked, Sampling(max_tokens=20))
        alone = []
        for at, prompt in enumerate(asked):
            async with engine_on(model, slots=1) as engine:
                alone.append(await engine.sample(prompt, Sampling(max_tokens=len(together[at].ids), seed=at)))
        return together, alone

    model = qwen()
    together, alone = asyncio.run(play())
    assert [sampled.ids for sampled in together] == [sampled.ids for sampled in alone]


def test_deterministic_samples_are_equal_to_the_last_bit() -> None:
    async def play() -> tuple[list[Sampled], Sampled]:
        asked = prompts(6, shared=40)
        async with engine_on(model, deterministic=True, prefill_tokens=16) as engine:
            first = await sample_all(engine, asked, Sampling(max_tokens=20))
            again = await engine.sample(asked[3], Sampling(max_tokens=len(first[3].ids), seed=3))
            return first, again

    model = qwen()
    first, again = asyncio.run(play())
    assert first[3] == again


def test_requests_without_a_seed_differ() -> None:
    async def play() -> list[Sampled]:
        async with engine_on(qwen()) as engine:
            return await asyncio.gather(*(engine.sample([1, 2], Sampling(max_tokens=16)) for _ in range(4)))

    assert len({sampled.ids for sampled in asyncio.run(play())}) == 4


def test_greedy_takes_the_likeliest_token() -> None:
    async def play() -> Sampled:
        async with engine_on(model) as engine:
            return await engine.sample([3, 1, 4], Sampling(max_tokens=10, temperature=0.0))

    model = qwen()
    sampled = asyncio.run(play())
    likeliest = plain_logits(model, [*sampled.prompt_ids, *sampled.ids]).argmax(-1).tolist()
    assert list(sampled.ids) == likeliest[2:-1]
    assert error_of(sampled, {"0": model}) < 1e-4


def test_a_stop_token_ends_the_sample_and_is_part_of_it() -> None:
    async def play() -> Sampled:
        async with engine_on(model, stop_ids=(11,)) as engine:
            return await engine.sample([1], Sampling(max_tokens=200, seed=1))

    model = qwen()
    model.generation_config.eos_token_id = [12, 13]
    sampled = asyncio.run(play())
    assert sampled.finish == "stop"
    assert sampled.ids[-1] in (11, 12, 13)
    assert not {11, 12, 13} & set(sampled.ids[:-1])


def test_a_stop_text_ends_the_sample_with_the_token_that_completes_it() -> None:
    async def play() -> tuple[Sampled, Sampled]:
        async with engine_on(qwen(), tokenizer=Letters()) as engine:
            free = await engine.sample([1], Sampling(max_tokens=40, seed=1))
            text = Letters().decode(list(free.ids), skip_special_tokens=False)
            stop = text[20:23]
            assert text.index(stop) == 20
            return free, await engine.sample([1], Sampling(max_tokens=40, seed=1, stop=("\N{SNOWMAN}", stop)))

    free, stopped = asyncio.run(play())
    assert stopped.ids == free.ids[:23]
    assert (free.finish, stopped.finish) == ("length", "stop")


def test_the_context_is_filled_to_its_last_token() -> None:
    async def play() -> None:
        async with engine_on(model, slots=2, max_context=48) as engine:
            long, short, full = await asyncio.gather(
                *(engine.sample([1] * size, Sampling(max_tokens=100, seed=size)) for size in (47, 40, 48))
            )
            assert [(len(s.ids), s.finish) for s in (long, short, full)] == [
                (1, "length"),
                (8, "length"),
                (0, "length"),
            ]
            assert max(error_of(sampled, {"0": model}) for sampled in (long, short)) < 1e-4

    model = qwen()
    asyncio.run(play())


def test_invalid_requests_are_refused() -> None:
    async def play() -> None:
        async with engine_on(qwen()) as engine:
            for prompt, sampling, why in [
                ([], Sampling(), "prompt is empty"),
                ([VOCABULARY], Sampling(), "outside the model's vocabulary"),
                ([-1], Sampling(), "outside the model's vocabulary"),
                ([1], Sampling(stop=("x",)), "need a tokenizer"),
                ([1], Sampling(top_p=2.0), "top_p is 2.0"),
            ]:
                with pytest.raises(ConfigError, match=why):
                    await engine.sample(prompt, sampling)

    asyncio.run(play())


def test_an_engine_with_a_bad_model_or_setting_is_refused_with_a_reason(tmp_path: Any) -> None:
    async def open_and_close(model: Any, **more: Any) -> None:
        async with open_engine(model, **{"slots": 1, **more}):
            pass

    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (tmp_path / "nothing", {}, "no model in .*nothing"),
        (qwen(), {"slots": 0}, "0 slots"),
        (qwen(), {"device": "cuda"}, "the model is on cpu, not on cuda"),
        (qwen(), {"options": EngineOptions(max_context=257)}, "made for 2 to 256"),
    ]
    for model, more, why in wrong:
        with pytest.raises(ConfigError, match=why):
            asyncio.run(open_and_close(model, **more))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot load"):
        asyncio.run(open_and_close(tmp_path))


def test_a_folder_provides_the_tokenizer_and_the_stop_tokens(tmp_path: Any) -> None:
    async def play() -> Sampled:
        async with asyncio.timeout(WAIT_S), open_engine(make_tiny_model(tmp_path), slots=1, version="v7") as engine:
            return await engine.sample([5, 6], Sampling(max_tokens=8, stop=("x",), seed=0))

    assert asyncio.run(play()).versions[0][0] == "v7"


@pytest.mark.parametrize("forward_pass", ["transformers"], indirect=True)
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft still asks for it
def test_a_trainer_and_the_engine_share_adapters() -> None:
    """An optimizer step over a peft model, given to the engine as an update, changes the samples."""

    async def play() -> None:
        async with engine_on(model) as engine:
            first = await engine.sample([1, 2, 3], Sampling(max_tokens=6, seed=0))
            assert error_of(first, {"0": model}) < 1e-4
            optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
            model(input_ids=torch.tensor([[1, 2, 3]])).logits.square().mean().backward()
            await engine.update("1", optimizer.step)
            second = await engine.sample([1, 2, 3], Sampling(max_tokens=6, seed=0))
            assert error_of(second, {"1": model}) < 1e-4
            assert second.logprobs != first.logprobs

    model: Any = get_peft_model(llama(), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    asyncio.run(play())
