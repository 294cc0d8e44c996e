"""An agent over a model with random weights that uses tools: some of its answers, whatever they say, are calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gymcp.agents import ReactSettings, TokenModel, react
from gymcp.agents.tool_calls.formats import ParsedAnswer, ParsedCall
from gymcp.protocols import AgentFactory
from gymcp.types import Tool


def call_sometimes(model: TokenModel, settings: ReactSettings) -> AgentFactory:
    """`react`, for the bank, that calls a tool if an answer has an odd number of characters."""
    return react(replace(model, parse_calls=_read_answer), settings)


def _read_answer(text: str, tools: Sequence[Tool]) -> ParsedAnswer:
    if len(text) % 2:
        return ParsedAnswer(text="", calls=(ParsedCall(name="balance", arguments={"owner": "ann"}),))
    return ParsedAnswer(text=text)
