"""Answers of token models: the room in the context, usage and price, and the judge that asks one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gymcp.agents.policies.chat_adapter import as_chat
from gymcp.agents.policies.judge_adapter import as_judge
from gymcp.agents.policies.models import MIN_ANSWER_TOKENS, TokenModel
from gymcp.agents.policies.prices import Price
from gymcp.agents.policies.tiny_model import make_tiny_tokenizer
from gymcp.agents.prompts.rendering import Renderer
from gymcp.agents.tool_calls.formats import compact
from gymcp.errors import AnswerTimeout, PromptTooLong
from gymcp.types import Message, ModelUsage, Sampled, Sampling

QUESTION = (Message(role="user", content="Is Bob paid?"),)


class Yes:
    """A policy that always answers "Yes" and ends its turn; it records the sampling settings."""

    def __init__(self, tokenizer: Any) -> None:
        self._ids = (*tokenizer.encode("Yes"), tokenizer.eos_token_id)
        self.samplings: list[Sampling] = []

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        self.samplings.append(sampling)
        count = len(self._ids)
        return Sampled(
            prompt_ids=tuple(prompt_ids), ids=self._ids, logprobs=(0.0,) * count, versions=(("0", 0, count),)
        )


def make_model(context: int) -> tuple[TokenModel, Yes]:
    tokenizer = make_tiny_tokenizer("compact", vocabulary=400)
    policy = Yes(tokenizer)
    model = TokenModel(
        name="tiny",
        policy=policy,
        renderer=Renderer(tokenizer, "tiny"),
        parse_calls=compact,
        context=context,
        price=Price(prompt=1, completion=100),
    )
    return model, policy


def test_an_answer_has_its_text_and_its_cost() -> None:
    model, _ = make_model(1000)
    answer = asyncio.run(model.generate([5] * 10, Sampling()))
    count = len(answer.sampled.ids)
    assert answer.text == "Yes"
    assert answer.usage == ModelUsage(
        model="tiny", prompt_tokens=10, completion_tokens=count, cost=(10 + 100 * count) / 1_000_000
    )


@pytest.mark.parametrize(("prompt", "max_tokens"), [(900, 60), (950, 50), (1000 - MIN_ANSWER_TOKENS, 32)])
def test_an_answer_is_not_longer_than_the_room_in_the_context(prompt: int, max_tokens: int) -> None:
    model, policy = make_model(1000)
    asyncio.run(model.generate([5] * prompt, Sampling(max_tokens=60, seed=3)))
    assert policy.samplings == [Sampling(max_tokens=max_tokens, seed=3)]


def test_an_answer_that_takes_longer_than_the_model_may_is_late() -> None:
    class Slow:
        async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
            await asyncio.sleep(60)
            raise AssertionError

    model = replace(make_model(1000)[0], policy=Slow(), timeout_s=0.01)
    with pytest.raises(AnswerTimeout, match=r"model 'tiny': no answer within 0\.01 s"):
        asyncio.run(model.generate([5], Sampling()))


def test_a_prompt_that_leaves_no_room_is_refused_before_the_policy_is_asked() -> None:
    model, policy = make_model(1000)
    with pytest.raises(PromptTooLong, match="969 tokens, and no room for an answer among 1000"):
        asyncio.run(model.generate([5] * 969, Sampling()))
    assert policy.samplings == []


def test_a_judge_over_a_token_model_answers_or_refuses_a_question_that_is_too_long() -> None:
    text, usage = asyncio.run(as_judge(make_model(1000)[0]).ask(QUESTION, Sampling()))
    assert text == "Yes"
    assert usage is not None
    assert usage.completion_tokens > 0
    with pytest.raises(PromptTooLong):
        asyncio.run(as_judge(make_model(MIN_ANSWER_TOKENS)[0]).ask(QUESTION, Sampling()))


def test_a_chat_over_a_token_model_answers_or_refuses_a_conversation_that_is_too_long() -> None:
    decision = asyncio.run(as_chat(make_model(1000)[0]).chat(QUESTION, (), Sampling()))
    assert decision.action.text == "Yes"
    with pytest.raises(PromptTooLong):
        asyncio.run(as_chat(make_model(MIN_ANSWER_TOKENS)[0]).chat(QUESTION, (), Sampling()))
