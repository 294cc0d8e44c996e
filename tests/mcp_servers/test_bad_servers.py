"""Servers that no agent can work with: one error, which names the server, the stage and its last words."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from gymcp.errors import GymcpError, IntegrityError, ProtocolError, ServerDied, ServerTimeout
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.connection import START_LIMIT
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.tools.hashes import combine_hashes, hash_tools
from gymcp.types import Tool, ToolCall

SERVER = """
import json, sys
print("I am starting", file=sys.stderr)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["method"] == "initialize":
        info = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}}
        answer = info | {"serverInfo": {"name": "bad", "version": "1"}}
    elif asked["method"] == "tools/list":
        answer = {"tools": json.loads(sys.argv[1])}
    elif asked["method"] == "tools/call":
        answer = {"content": [{"type": "text", "text": "said"}], "structuredContent": {"a": "a" * 40 + "!"}}
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
"""
OBJECT = {"type": "object"}


def tool(name: str, **schema: object) -> dict[str, object]:
    return {"name": name, "inputSchema": OBJECT | schema}


def spec(code: str, *words: str, timeout_s: float = 20.0, tools_sha256: str | None = None) -> ServerSpec:
    return ServerSpec(
        name="bad",
        argv=("python3", "-I", "-S", "-c", code, *words),
        wire="legacy",
        start_timeout_s=timeout_s,
        tools_sha256=tools_sha256,
    )


def start_and_list(server: ServerSpec, sandbox: Sandbox) -> tuple[Tool, ...]:
    async def run() -> tuple[Tool, ...]:
        async with open_session(server, sandbox, initial_state=None, seed=0) as session:
            return session.tools

    return asyncio.run(run())


def test_a_valid_list_is_accepted(bwrap: Sandbox) -> None:
    listed = start_and_list(spec(SERVER, json.dumps([tool("add", properties={"a": {"type": "integer"}})])), bwrap)
    assert [found.name for found in listed] == ["add"]


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ([], "server 'bad': list: it lists no tools; its last words: I am starting"),
        ([tool("add"), tool("add")], "server 'bad': list: it lists two tools named 'add'"),
        ([tool("")], "server 'bad': list: it lists a tool with the name ''"),
        (
            [tool("add", properties={"a": {"type": "wholenumber"}})],
            "server 'bad': list: tool 'add': its input schema is not valid JSON Schema: at properties/a/type",
        ),
        (
            [tool("add", properties={"pattern": {"type": "string", "pattern": "[a-z", "default": {"pattern": "("}}})],
            "server 'bad': list: tool 'add': its input schema is not valid JSON Schema: at properties/pattern/pattern: "
            "'[a-z' is not a 'regex': the class at 0 does not end; its last words: I am starting",
        ),
        (
            [tool("add", patternProperties={"^x(": {}})],
            "tool 'add': its input schema is not valid JSON Schema: at patternProperties: '^x(' is not a 'regex': ",
        ),
        (
            [tool("add"), tool("more", properties={"a": {"enum": [[]] * 30_000}})],
            "server 'bad': list: its input schemas hold 30007 values; at most 30000 are taken",
        ),
        ([tool("add", type="array")], "server 'bad': list: tools.0.inputSchema.type: Input should be 'object'"),
        ([{"name": "add"}], "server 'bad': list: tools.0.inputSchema: Field required"),
    ],
)
def test_a_bad_list_is_one_error(tools: list[object], said: str, bwrap: Sandbox) -> None:
    with pytest.raises(ProtocolError) as caught:
        start_and_list(spec(SERVER, json.dumps(tools)), bwrap)
    assert said in str(caught.value)


def doubling_schema(levels: int = 40) -> dict[str, object]:
    """Each reference leads to two of the next."""
    steps = {f"s{n}": {"allOf": [{"$ref": f"#/$defs/s{n + 1}"}] * 2} for n in range(levels)}
    return {"allOf": [{"$ref": "#/$defs/s0"}], "$defs": steps | {f"s{levels}": {"type": "object"}}}


@pytest.mark.parametrize("schema", [{"properties": {"a": {"pattern": "^(a+)+$"}}}, doubling_schema()])
def test_a_hostile_output_schema_costs_the_harness_nothing(schema: dict[str, object], bwrap: Sandbox) -> None:
    """Python's own matcher would take years over that answer, and no timeout would end it."""
    listed = json.dumps([{**tool("add"), "outputSchema": OBJECT | schema}])

    async def run() -> str:
        async with open_session(spec(SERVER, listed), bwrap, initial_state=None, seed=0) as session:
            return (await session.call_tool(ToolCall(id="c", name="add", arguments={}), {}, timeout_s=20)).content

    assert asyncio.run(run()) == "said"


def test_a_server_that_prints_before_its_handshake_is_named(bwrap: Sandbox) -> None:
    with pytest.raises(ProtocolError, match=r"server 'bad': handshake: a line on standard output is not a JSON-RPC"):
        start_and_list(spec("print('Welcome!')\n" + SERVER, "[]"), bwrap)


def test_a_server_that_dies_at_start_is_quoted(bwrap: Sandbox) -> None:
    with pytest.raises(ServerDied) as caught:
        start_and_list(spec("import sys; sys.exit('no API key was given')"), bwrap)
    assert str(caught.value) == (
        "server 'bad': start: the server ended (exit status 1); its last words: no API key was given"
    )


def test_the_last_words_of_a_server_are_its_last_lines(bwrap: Sandbox) -> None:
    noise = "for n in range(100): print('loading part', n, file=sys.stderr)"
    with pytest.raises(ServerDied) as caught:
        start_and_list(spec(f"import sys\n{noise}\nsys.exit('no API key was given')"), bwrap)
    said = str(caught.value)
    assert said.endswith("loading part 99\nno API key was given")
    assert re.search(r"its last words: loading part \d+\n", said), "no line is begun in its middle"
    log = re.search(r"; its log: (\S+); its last words: ", said)
    assert log is not None
    assert Path(log[1]).read_text().splitlines()[0] == "loading part 0"


def test_a_silent_server_is_given_up(bwrap: Sandbox) -> None:
    code = "import sys\nprint('still loading', file=sys.stderr)\nfor line in sys.stdin: pass"
    with pytest.raises(ServerTimeout) as caught:
        start_and_list(spec(code, timeout_s=5.0), bwrap)
    said = f"server 'bad': handshake: no answer within 5 s, {START_LIMIT}; its last words: still loading"
    assert str(caught.value) == said


def test_a_missing_command_is_named(bwrap: Sandbox) -> None:
    with pytest.raises(GymcpError, match=r"server 'bad': start: .*no-such-program"):
        start_and_list(ServerSpec(name="bad", argv=("/usr/bin/no-such-program",), wire="legacy"), bwrap)


def test_a_session_refuses_tools_that_are_not_locked(bwrap: Sandbox) -> None:
    listed = json.dumps([tool("add", properties={"a": {"type": "integer"}})])
    locked = combine_hashes(hash_tools(start_and_list(spec(SERVER, listed), bwrap)))
    start_and_list(spec(SERVER, listed, tools_sha256=locked), bwrap)
    drifted = listed.replace("integer", "number")
    with pytest.raises(IntegrityError, match=r"server 'bad': list: its tools are not the locked ones.*servers check"):
        start_and_list(spec(SERVER, drifted, tools_sha256=locked), bwrap)
