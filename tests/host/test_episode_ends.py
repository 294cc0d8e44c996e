"""Ends of a hosted episode that its agent or several clients cause, with a harness that only waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gymcp.host import episode as module
from gymcp.host.episode import HostedEpisode
from gymcp.outcome import Outcome
from gymcp.types import Action, GiveUp, Observation

NOTHING: Any = SimpleNamespace(env=None, agent_s=None, task=None)
TORN_DOWN = "torn down"


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[HostedEpisode], Awaitable[None]]], list[Any]]:
    """A function that applies another to a live episode, and returns what its harness has seen until it was over."""
    seen: list[Any] = []

    async def rollout(env: Any, sandbox: Any, make_agent: Any, *_: Any, **__: Any) -> Any:
        try:
            while not seen or isinstance(seen[-1], Action):
                seen.append(await make_agent(None, 0).act(Observation(messages=(), tools=())))
        finally:
            await asyncio.sleep(0.05)
            seen.append(TORN_DOWN)
        raise asyncio.CancelledError  # there is nothing to record

    async def main(use: Callable[[HostedEpisode], Awaitable[None]]) -> None:
        episode = HostedEpisode(NOTHING, NOTHING, "bank")
        episode.begin(NOTHING, timeout_s=60)
        assert await episode.wait_until_open()
        await use(episode)
        await asyncio.wait_for(episode.wait(), 60)

    def run(use: Callable[[HostedEpisode], Awaitable[None]]) -> list[Any]:
        asyncio.run(main(use))
        return seen

    monkeypatch.setattr(module, "rollout", rollout)
    return run


def test_an_idle_episode_to_which_no_agent_came_has_no_score(live: Any) -> None:
    async def use(episode: HostedEpisode) -> None:
        for token in ("", "of-the-host"):
            with episode.attend(token):
                pass
        await episode.expire("silence")
        assert episode.is_over

    assert live(use) == [TORN_DOWN]


@pytest.mark.parametrize("way", ["token", "call", "say"])
def test_an_agent_that_came_loses_no_score_by_its_silence(live: Any, way: str) -> None:
    """Also if the client's token was heard after the agent's, and where the client passes everything on."""

    async def use(episode: HostedEpisode) -> None:
        if way == "token":
            with episode.attend(episode.token):
                pass
        else:
            asking = episode.call_tool("balance", {}) if way == "call" else episode.say("Hello.")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asking, 0.01)  # its client does not wait for the answer
        with episode.attend("of-the-host"):
            pass
        await episode.expire("silence")
        await episode.expire("silence")

    *actions, end, torn_down = live(use)
    assert all(isinstance(action, Action) for action in actions)
    assert (end, torn_down) == (GiveUp(outcome=Outcome.BUDGET_EXHAUSTED, reason="silence"), TORN_DOWN)


def test_a_second_cancellation_does_not_interrupt_the_first(live: Any) -> None:
    """Two clients abort at once, or one does while the host is ended."""

    async def use(episode: HostedEpisode) -> None:
        first = asyncio.create_task(episode.cancel("first"))
        await asyncio.sleep(0.01)
        await asyncio.gather(first, episode.cancel("second"))

    assert live(use) == [TORN_DOWN]
