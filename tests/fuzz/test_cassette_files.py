"""Cassettes with random content: read as they are and written as they were read, or refused in one line; each call that
they answer ends in an observation or a typed error."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from gymcp.errors import ConfigError, GymcpError
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.transports.cassette import Cassette, add_to_cassette, read_cassette
from gymcp.types import Json, ToolCall, ToolResult

HEAD: dict[str, Json] = {"cassette": 1, "server": "far", "url": "http://far.invalid/mcp", "serverInfo": {"name": "far"}}
TOOL: dict[str, Json] = {"tool": {"name": "count", "inputSchema": {"type": "object"}}}
CALL: dict[str, Json] = {"task": "t", "call": "count", "arguments": {}, "result": {"content": []}}
WORDS = (*HEAD, *TOOL, *CALL, "error", "isError", "structuredContent", "type", "text", "name", "inputSchema", "code")
texts = st.sampled_from(WORDS) | st.text(st.characters(codec=None), max_size=8)
plain = st.none() | st.booleans() | st.integers(-3, 8) | st.integers() | st.floats() | texts
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=4), max_leaves=8
)
rows = st.builds(lambda row, change: {**row, **change}, st.sampled_from((TOOL, CALL)), st.dictionaries(texts, values))
blocks = st.fixed_dictionaries({"type": st.sampled_from(("text", "image", "x")), "text": texts | st.integers()})
results = st.dictionaries(texts, values, max_size=3) | st.fixed_dictionaries(
    {"content": st.lists(blocks, max_size=3) | values, "isError": values}
)


def spec_of(path: Path) -> ServerSpec:
    return ServerSpec(name="far", url="http://far.invalid/mcp", cassette=path)


def read(content: bytes) -> Cassette | None:
    """The cassette, which is equal when it has been written anew; None if it is refused in one line."""
    with tempfile.TemporaryDirectory(prefix="gymcp-fuzz-") as folder:
        file = Path(folder) / "far.jsonl"
        file.write_bytes(content)
        try:
            cassette = read_cassette(file)
        except ConfigError as error:
            assert str(error).startswith(f"cassette '{file}': ")  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
            return None
        other = Path(folder) / "other.jsonl"
        add_to_cassette(spec_of(other), cassette, None)
        again = read_cassette(other)
        assert json.dumps(again.tools) == json.dumps(cassette.tools)
        assert list(again.answers) == list(cassette.answers)
        return cassette


def lines(content: Sequence[Json]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in content).encode()


@given(st.dictionaries(st.sampled_from(list(HEAD)), values), st.lists(rows | values, max_size=4))
def test_cassettes_of_any_shape(change: dict[str, Json], content: list[Json]) -> None:
    read(lines([{**HEAD, **change}, TOOL, *content]))


@given(st.binary(max_size=200))
@example(b"[" * 10_000)
@example(b'{"cassette": 1, "serverInfo": {}}\n{"tool": ' + b"[" * 10_000)
def test_cassettes_of_any_bytes(content: bytes) -> None:
    read(content)
    read(lines([HEAD, TOOL]) + content)


@given(st.lists(results, min_size=1, max_size=4))
def test_an_answer_of_any_shape_is_an_observation_or_a_typed_error(answers: list[dict[str, Json]]) -> None:
    content = lines([HEAD, TOOL, *({**CALL, "result": answer} for answer in answers)])

    async def play(file: Path) -> list[ToolResult]:
        async with open_session(spec_of(file), get_sandbox("none"), initial_state=None, seed=0, task="t") as session:
            call = ToolCall(id="", name="count", arguments={})
            return [await session.call_tool(call, {}, timeout_s=20) for _ in answers]

    with tempfile.TemporaryDirectory(prefix="gymcp-fuzz-") as folder:
        file = Path(folder) / "far.jsonl"
        file.write_bytes(content)
        try:
            assert len(asyncio.run(play(file))) == len(answers)
        except GymcpError as error:
            assert "server 'far'" in str(error)  # noqa: PT017
