"""A budget holds for the requests of a program that come at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gymcp.agents.endpoint.http_server import RequestRefused
from gymcp.agents.policies.models import ChatModel
from gymcp.agents.programs.exchange import Exchange
from gymcp.agents.programs.requests import ModelRequest
from gymcp.agents.programs.settings import ProgramSettings
from gymcp.agents.strategies.budgets import Budget
from gymcp.types import Action, Decision, GiveUp, Message, ModelUsage, Sampling, Tool

REQUEST = ModelRequest(messages=(Message(role="user", content="a"),), tools=())


class Slow:
    """A chat policy whose answers take all tokens that they may have, and wait for each other."""

    def __init__(self) -> None:
        self.max_tokens: list[int] = []
        self.most_at_once = self._at_once = 0

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        self.max_tokens.append(sampling.max_tokens)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        for _ in range(10):
            await asyncio.sleep(0)
        self._at_once -= 1
        spent = ModelUsage(model="m", completion_tokens=sampling.max_tokens, cost=1.0)
        return Decision(action=Action(text="b"), spent=spent)


def ask_at_once(count: int, budget: Budget) -> tuple[Slow, int, Exchange]:
    """Ask `count` times at once; the policy, the number of requests that were refused, and the exchange."""
    policy = Slow()
    settings = ProgramSettings(argv=("true",), sampling=Sampling(max_tokens=100), budget=budget)

    async def main() -> tuple[Slow, int, Exchange]:
        exchange = Exchange(ChatModel(name="m", policy=policy), settings, seed=1)
        asked = [exchange.ask_model(REQUEST, "m") for _ in range(count)]
        ended = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
        refused = [each for each in ended if isinstance(each, RequestRefused)]
        assert {each.status for each in refused} <= {429}
        assert len([each for each in ended if isinstance(each, BaseException)]) == len(refused)
        return policy, len(refused), exchange

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("budget", "given"),
    [
        pytest.param(Budget(turns=3, tokens=None, cost=None), [100, 100, 100], id="answers"),
        pytest.param(Budget(turns=None, tokens=250, cost=None), [100, 100, 50], id="tokens"),
        pytest.param(Budget(turns=None, tokens=None, cost=2.0), [100, 100], id="money"),
    ],
)
def test_ten_requests_at_once_spend_no_more_than_the_budget(budget: Budget, given: list[int]) -> None:
    policy, refused, exchange = ask_at_once(10, budget)
    assert (policy.max_tokens, refused) == (given, 10 - len(given))
    assert isinstance(exchange.events.get_nowait(), GiveUp)


def test_requests_within_the_budget_are_answered_at_once() -> None:
    policy, refused, exchange = ask_at_once(10, Budget(turns=10, tokens=1000, cost=None))
    assert (policy.most_at_once, refused, exchange.events.empty()) == (10, 0, True)
