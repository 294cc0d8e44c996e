"""Stop texts of a program: its answer ends before them, its tokens are all that were drawn."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from generate_policy import load
from spelled_policy import Spelled

from gymcp.agents.policies.tiny_model import TinySize, make_tiny_model
from gymcp.agents.programs.contexts import Contexts
from gymcp.agents.programs.requests import ModelRequest, cut_at_stop
from gymcp.agents.tool_calls.parsing import CallIds
from gymcp.types import Message, Sampling


@pytest.mark.parametrize(
    ("text", "stops", "cut"),
    [
        ("I look. Observation: x", ("Observation:", "End"), ("I look. ", "Observation:")),
        ("a END b STOP", ("STOP", "END"), ("a ", "END")),
        ("I look.", ("Observation:", ""), ("I look.", "")),
        ("STOP", ("STOP",), ("", "STOP")),
    ],
)
def test_a_text_is_cut_before_its_first_stop_text(text: str, stops: tuple[str, ...], cut: tuple[str, str]) -> None:
    assert cut_at_stop(text, stops) == cut


def test_an_answer_ends_before_the_stop_text_and_its_context_goes_on(tmp_path: Path) -> None:
    """As OpenAI's and Anthropic's endpoints give it; the program sends back what it was given."""
    tiny = load(make_tiny_model(tmp_path, "qwen", size=TinySize(hidden=64, layers=2)))
    policy = Spelled(tiny, ["I look. Observation:", "Done."])
    contexts = Contexts(replace(tiny, policy=policy), CallIds())
    asked = Message(role="user", content="Pay Bob.")

    async def ask() -> None:
        first, stop = await contexts.answer(ModelRequest(messages=(asked,), stop=("Observation:",)), Sampling())
        assert (first.action.text, stop) == ("I look.", "Observation:")
        assert first.sampled is not None
        told = (asked, first.action.to_message(), Message(role="user", content="Go on."))
        second, stop = await contexts.answer(ModelRequest(messages=told), Sampling())
        assert (second.action.text, stop, second.context) == ("Done.", "", first.context)
        whole = first.sampled.prompt_ids + first.sampled.ids
        assert second.sampled is not None
        assert second.sampled.prompt_ids[: len(whole)] == whole
        assert "Observation:" in tiny.renderer.decode(first.sampled.ids)

    asyncio.run(ask())
