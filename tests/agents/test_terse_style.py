"""The terse style: a copied name or number has the same tokens everywhere, and tools are not listed."""

from __future__ import annotations

from typing import Any

import pytest

from gymcp.agents.policies.tiny_model import make_tiny_tokenizer
from gymcp.agents.prompts.rendering import Renderer
from gymcp.types import Message, Tool

CORPUS = [
    "Please give 15 euros to customer C055, Wim Lopez, in Oslo.",
    '{"id":"C055","name":"Wim Lopez","email":"wim92@mail.com"}',
]


@pytest.mark.parametrize("copied", ["C055", "Wim Lopez", "wim92@mail.com", "15", "Zoltan Q", "x7y"])
def test_a_copied_text_has_the_same_tokens_everywhere(copied: str) -> None:
    tokenizer: Any = make_tiny_tokenizer("terse", vocabulary=500, corpus=CORPUS)
    own = tokenizer.encode(copied)
    for before, after in (("of customer ", ", please"), ('{"id":"', '","city"'), ("<|v|>", "<|e|>"), ("is ", "?")):
        ids = tokenizer.encode(before + copied + after)
        assert any(ids[at : at + len(own)] == own for at in range(len(ids))), (before, after)
        assert tokenizer.decode(ids) == before + copied + after


def test_words_are_pieces_and_digits_stand_alone() -> None:
    tokenizer: Any = make_tiny_tokenizer("terse", vocabulary=500, corpus=CORPUS * 3)
    assert [tokenizer.decode([id]) for id in tokenizer.encode("Please give 15 euros")][-5:] == [
        " give",
        " ",
        "1",
        "5",
        " euros",
    ]


def test_no_tool_is_listed() -> None:
    renderer = Renderer(make_tiny_tokenizer("terse", vocabulary=400), "model")
    tools = [Tool(name="look", description="", input_schema={"type": "object", "properties": {}})]
    assert renderer.decode(renderer.first_prompt([Message(role="user", content="Hello.")], tools)) == "<|u|>Hello.<|a|>"
