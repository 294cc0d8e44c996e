"""A policy on a machine that dies or falls silent: never a late answer, which would be graded as the agent's fault."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

import pytest

from gymcp.errors import ConfigError, NodeLost, PolicyInfraError
from gymcp.scale import reopened_policy
from gymcp.scale.reopened_policy import PolicyNode, ReopenedPolicy
from gymcp.types import Sampled, Sampling

ANSWER = Sampled(prompt_ids=(1,), ids=(2,), logprobs=(0.0,), versions=(("", 0, 1),))
LIMIT_S = 0.5
WAIT_S = 20.0


class FakeNode:
    """A node that lives; or one that is dead, or parked: then nothing in it goes on, though its connection stands."""

    def __init__(self, name: str, *, is_dead: bool = False, is_parked: bool = False, answers_after: int = 0) -> None:
        """`answers_after`: number of pings before it answers a sample."""
        self.name = name
        self.has_ended = False
        self._is_dead, self._is_parked = is_dead, is_parked
        self._pings_left = answers_after
        self._may_answer = asyncio.Event()
        if not is_parked and not answers_after:
            self._may_answer.set()

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        if self._is_dead:
            raise NodeLost("its worker has died")
        await self._may_answer.wait()
        return ANSWER

    async def ping(self, timeout_s: float) -> None:
        if self._is_parked:
            await asyncio.sleep(timeout_s)
            raise NodeLost("no answer to a ping")
        self._pings_left -= 1
        if not self._pings_left:
            self._may_answer.set()

    async def close(self) -> None:
        self.end()

    def end(self) -> None:
        self.has_ended = True


@pytest.fixture(autouse=True)
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silence that ends before the limit of a test's samples."""
    monkeypatch.setattr(reopened_policy, "MIN_SILENT_S", 0.01)
    monkeypatch.setattr(reopened_policy, "SILENT_S", 0.02)


def sample_on(*nodes: FakeNode | None, count: int = 3, limit_s: float = WAIT_S) -> list[Sampled | BaseException]:
    """Answers of samples at a time, by a policy that is opened on one node after the other; None: an opening fails."""
    waiting = list(nodes)

    async def open_node() -> PolicyNode:
        node = waiting.pop(0) if waiting else None
        if node is None:
            raise ConfigError("no node of the cluster has what the plan's policy asks for")
        return node

    return asyncio.run(run_samples(open_node, count, limit_s))


async def run_samples(
    open_node: Callable[[], Coroutine[None, None, PolicyNode]], count: int, limit_s: float
) -> list[Sampled | BaseException]:
    policy = ReopenedPolicy("policy 'tiny'", open_node, limit_s)
    await policy.open()
    async with asyncio.timeout(WAIT_S):
        samples = (policy.sample((1,), Sampling()) for _ in range(count))
        return await asyncio.gather(*samples, return_exceptions=True)


@pytest.mark.parametrize("lost", [FakeNode("a", is_dead=True), FakeNode("a", is_parked=True)], ids=["dead", "parked"])
def test_samples_of_a_lost_node_are_drawn_again_on_another(lost: FakeNode) -> None:
    other = FakeNode("b")
    assert sample_on(lost, other) == [ANSWER] * 3
    assert (lost.has_ended, other.has_ended) == (True, False)


def test_a_node_that_answers_pings_may_take_its_time() -> None:
    node = FakeNode("a", answers_after=3)
    assert sample_on(node) == [ANSWER] * 3
    assert not node.has_ended


def test_without_another_node_a_sample_is_a_failure_of_the_policy() -> None:
    found = sample_on(FakeNode("a", is_parked=True))
    assert [type(each) for each in found] == [PolicyInfraError] * 3
    assert str(found[0]) == "policy 'tiny': its node is lost, and the model is open on no other one"


def test_a_policy_is_opened_only_so_often() -> None:
    nodes = [FakeNode(str(number), is_dead=True) for number in range(4)]
    (found,) = sample_on(*nodes, count=1)
    assert isinstance(found, PolicyInfraError)
    assert [node.has_ended for node in nodes] == [True, True, True, False]


def test_an_opening_that_fails_is_one_of_the_tries() -> None:
    assert sample_on(FakeNode("a", is_dead=True), None, FakeNode("c")) == [ANSWER] * 3
    never = FakeNode("d")
    found = sample_on(FakeNode("a", is_dead=True), None, None, never)
    assert [str(each) for each in found] == [
        "policy 'tiny': its node is lost, and the model is open on no other one"
    ] * 3


def test_while_the_policy_is_being_opened_a_sample_is_answered_before_its_limit() -> None:
    waiting = [FakeNode("a", is_parked=True)]

    async def open_node() -> PolicyNode:
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop(0)

    async def run() -> list[Sampled | BaseException]:
        async with asyncio.timeout(LIMIT_S):
            return await run_samples(open_node, 3, LIMIT_S)

    found = asyncio.run(run())
    assert [str(each) for each in found] == [
        "policy 'tiny': its node is lost, and the model is still being opened again"
    ] * 3


def test_a_sample_that_is_drawn_again_is_answered_before_its_limit_too() -> None:
    found = sample_on(FakeNode("a", is_parked=True), FakeNode("b", answers_after=10**9), limit_s=LIMIT_S)
    assert [type(each) for each in found] == [PolicyInfraError] * 3
    assert str(found[0]) == "policy 'tiny': its node was lost, and the other one had too little time"
