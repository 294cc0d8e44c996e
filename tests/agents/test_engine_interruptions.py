"""The engine when something happens to it during requests: updates, cancellation, its end, failures.

Every test runs with each forward pass.
"""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch
from engine_models import error_of, qwen
from engine_play import NEVER, WAIT_S, Counted, copy_into, engine_on, prompts

from gymcp.errors import ConfigError, PolicyInfraError
from gymcp.types import Sampled, Sampling

pytestmark = pytest.mark.usefixtures("forward_pass")


@pytest.mark.parametrize("way", ["update", "load_state"])
def test_an_update_during_a_request_shows_in_the_versions_and_logprobs_stay_exact(way: str) -> None:
    """Every token's logprob is that of a plain forward pass with the weights it was sampled from."""

    async def play() -> list[Sampled]:
        async with engine_on(model, slots=3, tokenizer=counted) as engine:
            sampling = Sampling(max_tokens=60, seed=5, stop=NEVER)
            asked = [asyncio.create_task(engine.sample(prompt, sampling)) for prompt in prompts(5, shared=30)]
            for version in ("1", "2"):
                async with counted.pause():
                    if way == "load_state":
                        told = engine.load_state(models[version].state_dict(), version)
                    else:
                        told = engine.update(version, lambda version=version: copy_into(model, models[version]))  # type: ignore[misc]
                    updated = asyncio.create_task(told)
                    await asyncio.sleep(0)  # it waits for the model's thread
                await updated
            assert engine.version == "2"
            return await asyncio.gather(*asked)

    counted = Counted(45, 110)
    models = {version: qwen(int(version)) for version in ("0", "1", "2")}
    model = qwen(0)
    samples = asyncio.run(play())
    assert max(error_of(sampled, models) for sampled in samples) < 1e-4
    seen = [tuple(version for version, _, _ in sampled.versions) for sampled in samples]
    assert any(len(versions) > 1 for versions in seen), seen
    for sampled in samples:
        assert [start for _, start, _ in sampled.versions][1:] == [end for _, _, end in sampled.versions][:-1]
        assert (sampled.versions[0][1], sampled.versions[-1][2]) == (0, 60)


def test_an_update_clears_idle_slots() -> None:
    async def play() -> None:
        async with engine_on(model) as engine:
            first = await engine.sample([1, 2, 3, 4, 5], Sampling(max_tokens=4, seed=0))
            await engine.update("1", lambda: copy_into(model, models["1"]))
            second = await engine.sample([*first.prompt_ids, *first.ids, 9], Sampling(max_tokens=4, seed=0))
            assert engine.stats.kept_tokens == 0
            assert second.versions == (("1", 0, 4),)
            assert error_of(second, models) < 1e-4

    models, model = {"1": qwen(1)}, qwen(0)
    asyncio.run(play())


def test_a_failed_update_raises_for_its_caller_and_the_engine_continues() -> None:
    def broken() -> None:
        raise ZeroDivisionError("the trainer's own")

    async def play() -> None:
        async with engine_on(qwen()) as engine:
            with pytest.raises(ZeroDivisionError, match="the trainer's own"):
                await engine.update("1", broken)
            with pytest.raises(ConfigError, match="no tensor 'nothing'"):
                await engine.load_state({"nothing": torch.zeros(1)}, "1")
            with pytest.raises(ConfigError, match="has shape"):
                await engine.load_state({"model.norm.weight": torch.zeros(1)}, "1")
            assert engine.version == "0"
            assert (await engine.sample([1], Sampling(max_tokens=2))).versions == (("0", 0, 2),)

    asyncio.run(play())


def test_a_cancelled_request_frees_its_slot() -> None:
    """There is one slot, occupied by a request far longer than the test may take."""

    async def play() -> None:
        counted = Counted(3)
        async with engine_on(qwen(max_position_embeddings=10**6), slots=1, tokenizer=counted) as engine:
            endless = asyncio.create_task(engine.sample([1], Sampling(max_tokens=10**6, stop=NEVER)))
            waiting = asyncio.create_task(engine.sample([2], Sampling(max_tokens=3)))
            never_admitted = asyncio.create_task(engine.sample([3], Sampling(max_tokens=10**6)))
            async with counted.pause():
                never_admitted.cancel()
                endless.cancel()
            assert len((await waiting).ids) == 3
            assert endless.cancelled()
            assert never_admitted.cancelled()
            assert engine.stats.requests == 1

    asyncio.run(play())


def test_a_long_prompt_does_not_block_other_requests() -> None:
    """While a prompt of 2000 tokens is computed in chunks of 16, a short request is sampled to its end."""

    async def play() -> None:
        async with engine_on(qwen(max_position_embeddings=4096), slots=2, prefill_tokens=16) as engine:
            ended: list[str] = []
            both_asked = threading.Event()
            held = asyncio.create_task(engine.update("1", lambda: ended.append(str(both_asked.wait(WAIT_S)))))
            long = asyncio.create_task(engine.sample([1, 2] * 1000, Sampling(max_tokens=1)))
            short = asyncio.create_task(engine.sample([3], Sampling(max_tokens=20)))
            long.add_done_callback(lambda _: ended.append("long"))
            short.add_done_callback(lambda _: ended.append("short"))
            await asyncio.sleep(0)
            both_asked.set()
            await asyncio.gather(held, long, short)
            assert len(short.result().ids) == 20
            assert ended == ["True", "short", "long"]

    asyncio.run(play())


def test_closing_ends_requests_under_way() -> None:
    async def play() -> None:
        counted, forever = Counted(3), Sampling(max_tokens=10**6, stop=NEVER)
        async with engine_on(qwen(max_position_embeddings=10**6), slots=1, tokenizer=counted) as engine:
            tasks = [asyncio.create_task(engine.sample([1], forever)) for _ in range(2)]
            async with counted.pause():
                pass
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [str(answer) for answer in answers] == ["embedded engine: it is closed"] * 2
        assert {type(answer) for answer in answers} == {PolicyInfraError}
        with pytest.raises(PolicyInfraError, match="closed"):
            await engine.sample([1], Sampling())
        with pytest.raises(PolicyInfraError, match="closed"):
            await engine.update("1")

    asyncio.run(play())
    assert not [thread for thread in threading.enumerate() if thread.name == "gymcp-engine"]


def test_a_failed_forward_pass_is_a_policy_failure_and_the_next_one_runs() -> None:
    async def play() -> None:
        async with engine_on(model) as engine:
            broken = torch.zeros(3, 3)
            weight = model.model.norm.weight.data
            await engine.update("bad", lambda: setattr(model.model.norm.weight, "data", broken))
            with pytest.raises(PolicyInfraError, match="forward pass failed"):
                await engine.sample([1, 2, 3], Sampling(max_tokens=4))
            await engine.update("good", lambda: setattr(model.model.norm.weight, "data", weight))
            sampled = await engine.sample([1, 2, 3], Sampling(max_tokens=4))
            assert error_of(sampled, {"good": model}) < 1e-4

    model = qwen()
    asyncio.run(play())


def test_weights_that_are_not_numbers_are_a_policy_failure() -> None:
    async def play() -> None:
        async with engine_on(model) as engine:
            await engine.update("7", lambda: model.model.norm.weight.data.fill_(torch.nan))
            with pytest.raises(PolicyInfraError, match="weights 7: logits are not finite"):
                await engine.sample([1, 2, 3], Sampling(max_tokens=4))

    model = qwen()
    asyncio.run(play())
