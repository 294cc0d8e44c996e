"""Conversations in exports: the same bytes as in exports that were written before."""

from __future__ import annotations

import hashlib
import json

import pytest
from records import HOSTILE, PAID, SPOKEN

from gymcp.exchange.conversation import messages_of
from gymcp.types import Trajectory


def test_the_prompt_ends_before_the_action_of_its_last_step() -> None:
    hello = {"role": "user", "content": "Hello", "tool_calls": None, "tool_call_id": None}
    answer = {"role": "assistant", "content": "Hello to you.", "tool_calls": None, "tool_call_id": None}
    assert messages_of(SPOKEN.steps) == ([hello], [answer])
    for first in range(len(PAID.steps)):
        before, after = messages_of(PAID.steps, first)
        assert [*before, *after] == [*messages_of(PAID.steps)[0], *messages_of(PAID.steps)[1]]
        assert sum(message["role"] == "assistant" for message in before) == first
        assert after[0]["role"] == "assistant"


@pytest.mark.parametrize(
    ("episode", "digest"), [(PAID, "0e9ca8287109b0c6"), (HOSTILE, "ab978b95e86e197e")], ids=["paid", "hostile"]
)
def test_conversations_have_the_bytes_of_earlier_exports(episode: Trajectory, digest: str) -> None:
    text = json.dumps([messages_of(episode.steps, first) for first in range(len(episode.steps))])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest
