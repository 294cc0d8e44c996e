"""Retries of the vLLM policy: an endpoint on a real socket gives scripted answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gymcp.agents.policies.vllm.client import VllmPolicy, VllmSettings, open_vllm
from gymcp.errors import AnswerTimeout, ConfigError, PolicyInfraError
from gymcp.types import Sampled, Sampling

MODELS = {"data": [{"id": "tiny", "max_model_len": 8}]}
QUICK = VllmSettings(timeout_s=20.0, attempts=4, backoff_s=0.001)
HASTY_S = 2.0
"""Timeout in seconds for a sample that does not come."""
WAIT_S = 60.0


def answer_with(*ids: int, finish: str = "length", **more: Any) -> tuple[int, Any]:
    content = [{"logprob": -float(token)} for token in ids]
    return 200, {
        "choices": [{"token_ids": list(ids), "logprobs": {"content": content}, "finish_reason": finish, **more}]
    }


OPENING = [(200, MODELS), (400, {}), answer_with(1)]


class Script:
    """Answers requests in turn with (status, JSON or bytes); None is no answer, b"" half of one."""

    def __init__(self, answers: Sequence[tuple[int, Any] | None]) -> None:
        self.answers = list(answers)
        self.bodies: list[Any] = []
        self.was_given_up = asyncio.Event()
        """Set once a client has closed its connection instead of waiting for an answer."""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        sizes = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        body = await reader.readexactly(int(sizes[0])) if sizes else b""
        self.bodies.append(json.loads(body) if body else None)
        said = self.answers.pop(0)
        if said is None:
            await reader.read()  # until the client gives up
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            self.was_given_up.set()
        else:
            status, content = said
            whole = content if isinstance(content, bytes) else json.dumps(content).encode()
            length = len(whole) + (100 if whole.startswith(b"HALF") else 0)
            writer.write(
                f"HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n".encode() + whole
            )
        writer.close()


@asynccontextmanager
async def policy_on(script: Script) -> AsyncIterator[VllmPolicy]:
    settings = replace(QUICK, sample_timeout_s=HASTY_S) if None in script.answers else QUICK
    async with asyncio.timeout(WAIT_S):
        server = await asyncio.start_server(script.answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, open_vllm(url, "tiny", settings) as policy:
            yield policy


def sample(answers: Sequence[tuple[int, Any] | None], **sampling: Any) -> tuple[Sampled, Script]:
    async def play() -> Sampled:
        async with policy_on(script) as policy:
            return await policy.sample([5, 6], Sampling(**sampling))

    script = Script([*OPENING, *answers])
    return asyncio.run(play()), script


@pytest.mark.parametrize(
    "failure",
    [(500, {}), (503, b"starting"), (429, {}), (200, b"garbage"), (200, b"HALF an answer")],
    ids=["500", "503", "429", "garbage", "half"],
)
def test_a_server_that_recovers_is_tried_again(failure: Any) -> None:
    sampled, script = sample([failure, failure, answer_with(3, 4)], max_tokens=2)
    assert (sampled.ids, sampled.logprobs, sampled.finish) == ((3, 4), (-3.0, -4.0), "length")
    assert script.answers == []
    assert sampled.request_times is not None
    assert sampled.request_times.request_s > 0
    assert sampled.request_times.first_token_s is None  # the answer comes as a whole


def test_a_sample_that_is_too_late_is_not_asked_for_again() -> None:
    script = Script([*OPENING, None, answer_with(3)])

    async def play() -> None:
        async with policy_on(script) as policy:
            with pytest.raises(AnswerTimeout, match="no answer within 2 s"):
                await policy.sample([5, 6], Sampling(max_tokens=1))
            await script.was_given_up.wait()

    asyncio.run(play())
    assert len(script.answers) == 1


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([(500, b"out of memory")] * 4, "answered 500: out of memory"),
        ([(400, b"bad request")], "answered 400: bad request"),
        ([(200, {"choices": []})], "answered something else"),
        ([(200, [1])], "answered something else"),
        ([answer_with()], "no tokens"),
        (
            [(200, {"choices": [{"token_ids": [1], "logprobs": None, "finish_reason": "stop"}]})],
            "1 tokens, but 0 logprobs",
        ),
    ],
)
def test_a_server_that_does_not_recover_is_a_policy_failure(answers: list[Any], why: str) -> None:
    with pytest.raises(PolicyInfraError, match=why):
        sample(answers)


def test_a_sample_cut_short_by_an_update_is_continued() -> None:
    first = answer_with(3, 4, finish="abort", weight_versions=[{"version": "a", "start": 0, "end": 2}])
    second = answer_with(7, finish="stop", weight_versions=[{"version": "b", "start": 0, "end": 1}])
    sampled, script = sample([first, second], max_tokens=5, seed=1)
    assert sampled == Sampled(
        prompt_ids=(5, 6),
        ids=(3, 4, 7),
        logprobs=(-3.0, -4.0, -7.0),
        versions=(("a", 0, 2), ("b", 2, 3)),
        finish="stop",
    )
    before, after = script.bodies[-2:]
    assert (before["token_ids"], after["token_ids"]) == ([5, 6], [5, 6, 3, 4])
    assert (before["sampling_params"]["max_tokens"], after["sampling_params"]["max_tokens"]) == (5, 3)
    assert before["sampling_params"]["seed"] != after["sampling_params"]["seed"]


def test_the_context_bounds_a_sample() -> None:
    _, script = sample([answer_with(1)], max_tokens=100)
    assert script.bodies[-1]["sampling_params"]["max_tokens"] == 8 - 2

    async def full() -> Sampled:
        async with policy_on(Script(OPENING)) as policy:
            return await policy.sample([1] * 8, Sampling())

    assert asyncio.run(full()) == Sampled(prompt_ids=(1,) * 8, ids=(), logprobs=(), versions=(), finish="length")


def test_top_p_is_refused_because_logprobs_would_not_be_exact() -> None:
    with pytest.raises(ConfigError, match="allow_restricted"):
        sample([], top_p=0.9)


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([(200, {"data": [{"id": "other"}]})], "has no model 'tiny'; it has other"),
        ([(404, b"nothing here")], "does not answer as vLLM does"),
        ([(401, b"")], r"asks for a key \(status 401\); name the variable that holds it with --key-env"),
        ([(200, {"data": [{"id": "tiny"}]})], "does not answer as vLLM does"),
        ([(200, b"<html>")], "does not answer as vLLM does"),
        ([(200, MODELS), (400, {}), (400, b"no logprobs here")], "the first request failed.*no logprobs here"),
    ],
)
def test_a_wrong_endpoint_is_one_clear_error(answers: list[Any], why: str) -> None:
    async def play() -> None:
        async with policy_on(Script(answers)):
            pass

    with pytest.raises(ConfigError, match=why):
        asyncio.run(play())


def test_an_endpoint_that_is_down_is_one_clear_error() -> None:
    async def play() -> None:
        async with open_vllm("http://127.0.0.1:9", "tiny"):
            pass

    with pytest.raises(ConfigError, match="start one with: gymcp serve MODEL"):
        asyncio.run(play())


def test_embeddings_that_stay_tied_are_not_reloaded(tmp_path: Path) -> None:
    """vLLM 0.32.0 would keep the old output layer, so the logprobs would belong to no version."""
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": true, "architectures": ["Gemma3ForCausalLM"]}')

    async def play() -> None:
        async with policy_on(Script(OPENING)) as policy:
            await policy.load_weights(tmp_path, "1")

    with pytest.raises(ConfigError, match="tie_word_embeddings=False"):
        asyncio.run(play())
