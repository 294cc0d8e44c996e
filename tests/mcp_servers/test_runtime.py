"""The native runtime, as the sandbox sees it: alone, isolated, spoken to by the real SDK and by hand."""

from __future__ import annotations

import ast
import asyncio
import enum
import json
import math
import os
import shutil
import subprocess
import sys
import typing
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, TypeVar

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp import Client, MCPError, StdioServerParameters
from mcp.types import CallToolResult

import gymcp.mcp_servers.runtime
from gymcp.mcp_servers.runtime import (
    MAX_DEPTH,
    MAX_LINE,
    RESULT_STATE_KEY,
    STATE_KEY,
    STATE_WITHIN_KEY,
    Server,
    canonical_json,
    check_schema,
    class_server,
    find_violation,
    parameters_schema,
    schema_of,
    state_key,
)

T = TypeVar("T")
RUNTIME = Path(gymcp.mcp_servers.runtime.__file__)
MODES: list[Literal["auto", "legacy", "2026-07-28"]] = ["auto", "legacy", "2026-07-28"]
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a sandbox mounts: the runtime and one program, in folders without `__init__.py`."""
    root = tmp_path_factory.mktemp("mounted")
    programs = root / "gymcp" / "mcp_servers" / "programs"
    programs.mkdir(parents=True)
    shutil.copy(RUNTIME, programs.parent)
    shutil.copy(Path(__file__).parent / "programs_fixture" / "notes.py", programs)
    return root


def isolated(root: Path) -> list[str]:
    code = f"import sys; sys.path.insert(0, {str(root)!r}); import gymcp.mcp_servers.programs.notes"
    return [sys.executable, "-I", "-S", "-c", code]


def talk(root: Path, mode: Any, steps: Callable[[Client], Awaitable[T]]) -> T:
    async def session() -> T:
        command, *args = isolated(root)
        async with Client(StdioServerParameters(command=command, args=args), mode=mode, read_timeout_seconds=20) as c:
            return await steps(c)

    return asyncio.run(session())


def text_of(result: CallToolResult) -> str:
    return "".join(getattr(part, "text", "") for part in result.content)


class Wire:
    """The server process, spoken to line by line."""

    def __init__(self, root: Path) -> None:
        self.process = subprocess.Popen(
            isolated(root), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.asked = 0

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, method: str, **params: Any) -> Any:
        """The result, or the error object."""
        self.asked += 1
        self.send(json.dumps({"jsonrpc": "2.0", "id": self.asked, "method": method, "params": params}).encode())
        answer = self.receive()
        assert answer["id"] == self.asked
        return answer.get("result", answer.get("error"))

    def call(self, name: str, **arguments: Any) -> Any:
        return self.ask("tools/call", name=name, arguments=arguments)

    def close(self) -> int:
        """The exit status after stdin ended."""
        with self.process:
            self.process.communicate()
        return self.process.returncode


@pytest.fixture
def wire(tree: Path) -> Iterator[Wire]:
    wire = Wire(tree)
    yield wire
    assert wire.close() == 0


@pytest.fixture(scope="module")
def lasting_wire(tree: Path) -> Iterator[Wire]:
    """One process for many examples."""
    wire = Wire(tree)
    yield wire
    assert wire.close() == 0


# ------------------------------------------------------------------------------------------------ spoken to by the SDK


@pytest.mark.parametrize("mode", MODES)
def test_the_sdk_lists_the_tools(tree: Path, mode: str) -> None:
    tools = talk(tree, mode, lambda client: client.list_tools()).tools
    put = tools[0]
    assert [tool.name for tool in tools][:4] == ["put", "get", "keys", "sizes"]
    assert (put.title, put.description) == ("Put a note", "Write a note.\n\nIt replaces what was there.")
    assert put.input_schema == {
        "type": "object",
        "properties": {
            "key": {"type": "string", "minLength": 1, "description": "What to find it by, later."},
            "text": {"type": "string", "description": "The note."},
        },
        "required": ["key", "text"],
        "additionalProperties": False,
    }
    assert put.annotations is not None
    assert put.annotations.model_dump(by_alias=True, exclude_none=True) == {
        "destructiveHint": True,
        "idempotentHint": True,
    }
    assert put.output_schema is None
    assert tools[2].output_schema == {
        "type": "object",
        "properties": {"result": {"type": "array", "items": {"type": "string"}}},
        "required": ["result"],
        "additionalProperties": False,
    }


CALLS: list[tuple[str, dict[str, Any], str, bool, Any]] = [
    ("put", {"key": "a", "text": "ünï 🎈 \u2028 漢"}, "", False, None),
    ("get", {"key": "a"}, "ünï 🎈 \u2028 漢", False, None),
    ("get", {"key": "a", "limit": 3}, "ünï", False, None),
    ("keys", {}, '["a"]', False, {"result": ["a"]}),
    ("sizes", {"unit": "bytes"}, '{"a": 18}', False, {"a": 18}),
    ("echo", {"value": {"n": [1, None, True]}}, '{"n": [1, null, true]}', False, {"result": {"n": [1, None, True]}}),
    ("echo", {"value": None}, "null", False, {"result": None}),
    ("get", {"key": "b"}, "no note 'b'; have ['a']", True, None),
    ("absent", {"key": "b"}, "Unknown tool: absent", True, None),
    (
        "get",
        {"key": "a", "limit": "3"},
        "Invalid arguments for tool 'get': $.limit: expected integer, got string \"3\"",
        True,
        None,
    ),
    ("get", {"limit": 3}, "Invalid arguments for tool 'get': $.key: required, but missing", True, None),
    (
        "get",
        {"key": "a", "max": 3},
        "Invalid arguments for tool 'get': $.max: unknown name, expected one of: key, limit",
        True,
        None,
    ),
    (
        "put",
        {"key": "", "text": ""},
        "Invalid arguments for tool 'put': $.key: expected at least 1 characters, got string \"\"",
        True,
        None,
    ),
    (
        "sizes",
        {"unit": "furlongs"},
        'Invalid arguments for tool \'sizes\': $.unit: expected one of ["characters", "bytes"], got string "furlongs"',
        True,
        None,
    ),
    ("put_and_fail", {"key": "k"}, "KeyError: 'k'", True, None),
    ("open_file", {"path": "/nonexistent/path"}, "FileNotFoundError: No such file or directory", True, None),
    ("leave", {}, "SystemExit: 3", True, None),
    (
        "lie",
        {},
        "Tool 'lie' returned something else than it declares: $.result: expected integer, got string \"not a number\"",
        True,
        None,
    ),
    ("noisy", {}, "stdin has ''", False, None),
]


@pytest.mark.parametrize("mode", MODES)
def test_calls_are_answered_alike_in_every_protocol(tree: Path, mode: str) -> None:
    async def steps(client: Client) -> list[tuple[str, bool | None, Any, Any]]:
        await client.list_tools()  # from here on the SDK checks structured content against the output schemas
        results = [await client.call_tool(name, arguments) for name, arguments, *_ in CALLS]
        return [(text_of(r), r.is_error, r.structured_content, (r.meta or {})[STATE_KEY]) for r in results]

    noted = {"a": "ünï 🎈 \u2028 漢"}
    half = {**noted, "k": "half done"}
    after = {"put": noted, "get": noted, "keys": noted, "sizes": noted, "echo": noted, "absent": noted}
    expected = [(text, is_error, extra, state_key(after.get(name, half))) for name, _, text, is_error, extra in CALLS]
    assert talk(tree, mode, steps) == expected


@pytest.mark.parametrize("mode", MODES)
def test_ten_megabytes_arrive(tree: Path, mode: str) -> None:
    text = "é" * 5_000_000
    result = talk(tree, mode, lambda client: client.call_tool("size", {"text": text}))
    assert result.structured_content == {"result": 5_000_000}


@pytest.mark.parametrize("mode", MODES)
def test_a_call_given_up_by_the_client_does_not_disturb_the_next(tree: Path, tmp_path: Path, mode: str) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    async def steps(client: Client) -> tuple[int, str]:
        with pytest.raises(MCPError) as gave_up:
            await client.call_tool("open_file", {"path": str(fifo)}, read_timeout_seconds=0.2)
        await asyncio.to_thread(fifo.write_text, "too late")
        return gave_up.value.code, text_of(await client.call_tool("keys"))

    assert talk(tree, mode, steps) == (-32001, "[]")


def test_auto_mode_finds_the_modern_protocol_and_the_instructions(tree: Path) -> None:
    async def steps(client: Client) -> tuple[Any, ...]:
        info = client.server_info
        return client.protocol_version, client.instructions, info and (info.name, info.version)

    assert talk(tree, "auto", steps) == ("2026-07-28", "Keep notes.", ("notes", "1.2"))
    assert talk(tree, "legacy", steps) == ("2025-11-25", "Keep notes.", ("notes", "1.2"))


# ---------------------------------------------------------------------------------------------------- spoken to by hand


@pytest.mark.parametrize(
    ("wanted", "given_version"),
    [("2024-11-05",) * 2, ("2025-03-26",) * 2, ("2025-06-18",) * 2, ("2025-11-25",) * 2, ("1999-01-01", "2025-11-25")],
)
def test_the_handshake_agrees_on_a_version(wire: Wire, wanted: str, given_version: str) -> None:
    assert wire.ask("initialize", protocolVersion=wanted, capabilities={}, clientInfo={}) == {
        "protocolVersion": given_version,
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": {"name": "notes", "version": "1.2"},
        "instructions": "Keep notes.",
    }


def test_modern_results_are_complete_and_lists_say_how_long_they_last(wire: Wire) -> None:
    stamp = {"io.modelcontextprotocol/serverInfo": {"name": "notes", "version": "1.2"}}
    assert wire.ask("server/discover", _meta=ENVELOPE) == {
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {}},
        "instructions": "Keep notes.",
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": stamp,
    }
    listed = wire.ask("tools/list", _meta=ENVELOPE)
    assert listed.pop("tools") == wire.ask("tools/list")["tools"]
    assert listed == {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "_meta": stamp}
    assert wire.ask("ping") == {}


def test_a_broken_envelope_is_refused_with_the_codes_of_the_sdk(wire: Wire) -> None:
    version, capabilities = ENVELOPE
    assert wire.ask("tools/list", _meta={**ENVELOPE, version: "2030-01-01"}) == {
        "code": -32022,
        "message": "Unsupported protocol version",
        "data": {"supported": ["2026-07-28"], "requested": "2030-01-01"},
    }
    assert wire.ask("tools/list", _meta={**ENVELOPE, version: 3})["code"] == -32602
    missing = wire.ask("tools/list", _meta={version: "2026-07-28"})
    assert (missing["code"], capabilities in missing["message"]) == (-32602, True)
    assert wire.ask("server/discover")["code"] == -32601  # that is how a handshake server answers the probe


@pytest.mark.parametrize("method", ["resources/list", "prompts/list", "completion/complete", "gymcp/tools", "nonsense"])
def test_what_is_not_offered_is_not_found(wire: Wire, method: str) -> None:
    expected = {"code": -32601, "message": "Method not found", "data": method}
    assert wire.ask(method) == wire.ask(method, _meta=ENVELOPE) == expected


def test_setup_happens_once_and_the_state_follows_every_call(wire: Wire) -> None:
    def result(state: dict[str, Any]) -> dict[str, Any]:
        return {"stateKey": state_key(state), "state": state}

    start = {"a": "x", "seed": 7}
    assert wire.ask("gymcp/setup", initialState={"a": "x"}, seed=7)["stateKey"] == state_key(start)
    assert wire.ask("gymcp/state") == result(start)
    assert wire.call("get", key="a")["_meta"] == {STATE_KEY: state_key(start)}
    assert wire.call("put", key="b", text="y")["_meta"] == {STATE_KEY: state_key({**start, "b": "y"})}
    failed = {**start, "b": "y", "c": "half done"}
    assert wire.call("put_and_fail", key="c")["_meta"] == {STATE_KEY: state_key(failed)}
    again = wire.ask("gymcp/setup", initialState={}, seed=7)
    assert again == {"code": -32603, "message": "setup was called before; a process serves one episode"}
    modern = wire.ask("gymcp/state", _meta=ENVELOPE)
    assert (modern["state"], modern["resultType"]) == (failed, "complete")


def test_a_small_state_comes_with_the_result_where_it_is_asked_for(wire: Wire) -> None:
    wire.ask("gymcp/setup", initialState={"a": "x"}, seed=7)
    state = {"a": "x", "seed": 7}
    size = len(canonical_json(state))
    for within, brought in ((size, {RESULT_STATE_KEY: state}), (size - 1, {}), ("all", {}), (True, {})):
        meta = {STATE_WITHIN_KEY: within}
        answer = wire.ask("tools/call", name="get", arguments={"key": "a"}, _meta=meta)
        assert answer["_meta"] == {STATE_KEY: state_key(state), **brought}


def test_a_failed_setup_says_why_and_cannot_be_repeated(wire: Wire) -> None:
    message = "setup failed: ValueError: the initial state maps keys to notes"
    assert wire.ask("gymcp/setup", initialState=[], seed=1) == {"code": -32603, "message": message}
    assert wire.ask("gymcp/setup", initialState={}, seed=1)["code"] == -32603
    assert wire.ask("gymcp/setup", initialState={}, seed="1")["code"] == -32602


def test_the_harness_methods_are_out_of_the_agents_reach(wire: Wire) -> None:
    assert not [tool for tool in wire.ask("tools/list")["tools"] if "gymcp" in tool["name"]]
    for method in ("gymcp/setup", "gymcp/state"):
        answer = wire.call(method, initialState={}, seed=1)
        assert (answer["isError"], answer["content"][0]["text"]) == (True, f"Unknown tool: {method}")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"garbage", -32700),
        (b"\xff\xfe", -32700),
        (b"\xef\xbb\xbf{}", -32700),
        (b"[" * 200_000, -32700),
        (b'{"a":' * 200_000, -32700),
        (b"x" * (MAX_LINE + 100), -32700),
        (b"[]", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
        (b"null", -32600),
        (b'{"jsonrpc":"2.0"}', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":1}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"keys","arguments":[]}}', -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"initialize"}', -32602),
    ],
    ids=lambda value: str(value)[:60],
)
def test_misuse_of_the_protocol_is_answered_with_its_code(lasting_wire: Wire, line: bytes, code: int) -> None:
    lasting_wire.send(line)
    assert lasting_wire.receive()["error"]["code"] == code
    assert lasting_wire.ask("ping") == {}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"  \t",
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}',
        b'{"jsonrpc":"2.0","method":"notifications/nonsense","params":[]}',
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":""}}',
    ],
)
def test_what_expects_no_answer_gets_none(lasting_wire: Wire, line: bytes) -> None:
    lasting_wire.send(line)
    assert lasting_wire.ask("ping") == {}  # its answer is the next line


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), f"nested more than {MAX_DEPTH} levels deep"),
        (b"[" * 400 + b"]" * 400, f"nested more than {MAX_DEPTH} levels deep"),
        (b"NaN", "a number is NaN or too large"),
        (b"-Infinity", "a number is NaN or too large"),
        (b"1e999", "a number is NaN or too large"),
        (b"9" * 5000, "a number is NaN or too large"),
        (b'"\\ud800"', "a string has a lone surrogate, which is not Unicode text"),
        (b'{"\\udfff": 1}', "a string has a lone surrogate, which is not Unicode text"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_arguments_that_could_not_come_back_are_an_error_result(lasting_wire: Wire, value: bytes, reason: str) -> None:
    lasting_wire.send(
        b'{"jsonrpc":"2.0","id":0,"method":"tools/call","params":{"name":"echo","arguments":{"value":' + value + b"}}}"
    )
    result = lasting_wire.receive()["result"]
    assert (result["isError"], result["content"][0]["text"]) == (
        True,
        f"Invalid arguments for tool 'echo': {reason}",
    )


def test_the_deepest_arguments_allowed_come_back(lasting_wire: Wire) -> None:
    value: Any = []
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert lasting_wire.call("echo", value=value)["structuredContent"] == {"result": value}


def test_the_server_ends_when_nobody_listens(tree: Path) -> None:
    wire = Wire(tree)
    assert wire.process.stdout is not None
    wire.process.stdout.close()
    wire.send(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    assert wire.process.wait(timeout=10) == 0
    assert wire.process.stdin is not None
    wire.process.stdin.close()


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(-5, 5).map(lambda x: round(x, 1))
    | st.text("abé", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
near_requests = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | json_values,
        "id": st.just("x") | json_values,
        "method": st.sampled_from(["ping", "tools/list", "tools/call", "initialize", "gymcp/state"]) | json_values,
        "params": st.fixed_dictionaries(
            {},
            optional={
                "name": st.sampled_from(["put", "get", "keys", "echo"]) | json_values,
                "arguments": json_values,
                "_meta": st.just(ENVELOPE) | json_values,
            },
        )
        | json_values,
    },
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=60) | near_requests.map(lambda r: json.dumps(r).encode()), max_size=5))
def test_no_line_ends_the_server(lasting_wire: Wire, lines: list[bytes]) -> None:
    for line in lines:
        lasting_wire.send(line)
    lasting_wire.send(b'{"jsonrpc":"2.0","id":"still there?","method":"ping"}')
    while (answer := lasting_wire.receive()).get("id") != "still there?":
        assert answer.keys() in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"})
    assert answer["result"] == {}


# ------------------------------------------------------------------------------------------------- schemas of functions


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(TypedDict):
    x: int
    label: typing.NotRequired[str]


class Partial(TypedDict, total=False):
    x: Annotated[int, "how far"]


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Any, {}),
        (list, {"type": "array"}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (dict, {"type": "object"}),
        (dict[str, Any], {"type": "object"}),
        (
            dict[str, list[str]],
            {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
        ),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (
            tuple[int, str],
            {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2},
        ),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (typing.Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (typing.Union[int, str], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),  # noqa: UP007
        (typing.List[int], {"type": "array", "items": {"type": "integer"}}),  # noqa: UP006
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal["a", 1], {"enum": ["a", 1]}),
        (Annotated[int, "how many", {"minimum": 1}], {"type": "integer", "description": "how many", "minimum": 1}),
        (Colour, {"type": "string", "enum": ["red", "blue"]}),
        (
            Point,
            {
                "type": "object",
                "properties": {"x": {"type": "integer"}, "label": {"type": "string"}},
                "required": ["x"],
                "additionalProperties": False,
            },
        ),
        (
            Partial,
            {
                "type": "object",
                "properties": {"x": {"type": "integer", "description": "how far"}},
                "additionalProperties": False,
            },
        ),
    ],
    ids=str,
)
def test_annotations_have_schemas(hint: Any, schema: dict[str, Any]) -> None:
    assert schema_of(hint) == schema
    jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("hint", [bytes, set[int], dict[int, str], object, typing.Callable], ids=str)
def test_an_annotation_without_a_schema_is_refused(hint: Any) -> None:
    with pytest.raises(TypeError, match="no JSON Schema"):
        schema_of(hint)


def test_parameters_carry_defaults_and_what_the_docstring_says() -> None:
    def find(where: str, /, what: str) -> None: ...
    def many(*what: str) -> None: ...
    def book(seat: str, *, nights: int = 2, colour: Colour = Colour.RED, hook: Any = object) -> None:
        """Book.

        Args:
            seat: Which: window
                or aisle.
            nights (int, optional): How long.

        Returns:
            nights: not a parameter here.
        """

    assert parameters_schema(book) == {
        "type": "object",
        "properties": {
            "seat": {"type": "string", "description": "Which: window or aisle."},
            "nights": {"type": "integer", "description": "How long.", "default": 2},
            "colour": {"type": "string", "enum": ["red", "blue"], "default": "red"},
            "hook": {},
        },
        "required": ["seat"],
        "additionalProperties": False,
    }
    for fn in (find, many, len):
        with pytest.raises(TypeError, match="named parameters only"):
            parameters_schema(fn)


def ask(server: Server, method: str, **params: Any) -> Any:
    """The answer of a server in this process."""
    line = server.handle(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode())
    assert line is not None
    return {"result": None, "error": None, **json.loads(line)}


def test_an_explicit_schema_is_taken_as_it_is() -> None:
    server = Server("s")
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}}
    server.add_tool(lambda **arguments: arguments, name="all", description="All.", input_schema=schema)
    assert ask(server, "tools/list")["result"] == {
        "tools": [{"name": "all", "description": "All.", "inputSchema": schema}]
    }
    called = ask(server, "tools/call", name="all", arguments={"a": 1, "b": [1.5]})
    assert called["result"] == {"content": [{"type": "text", "text": '{"a": 1, "b": [1.5]}'}], "isError": False}
    assert ask(server, "tools/call", name="all", arguments={"a": True})["result"]["isError"]


def test_a_server_without_setup_or_state_says_so() -> None:
    server = Server("s")
    server.add_tool(lambda: "fine", name="t")
    assert ask(server, "gymcp/setup", initialState=None, seed=0)["error"]["code"] == -32601
    assert ask(server, "gymcp/state")["error"]["code"] == -32601
    assert "_meta" not in ask(server, "tools/call", name="t")["result"]
    server.setup(lambda initial_state, seed: None)
    assert ask(server, "gymcp/setup", initialState=None, seed=0)["result"]["stateKey"] is None


def test_a_state_that_is_not_json_is_the_servers_failure_not_the_tools() -> None:
    server = Server("s")
    server.state(lambda: {"x": math.nan})
    server.add_tool(lambda: "fine", name="t")
    assert ask(server, "tools/call", name="t")["error"]["code"] == -32603


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"name": "a b"}, ValueError, "a name has"),
        ({"name": "taken"}, ValueError, "there is one already"),
        ({"colour": "red"}, TypeError, "unknown options"),
        ({"input_schema": {"type": "string"}}, ValueError, "must say"),
        (
            {"input_schema": {"type": "object", "items": {"type": ["dict", "null"]}}},
            ValueError,
            "types dict are unknown",
        ),
        ({"input_schema": {"type": "object", "not": {}}}, ValueError, "'x'.*not are not supported"),
        ({"input_schema": {"type": "object", "properties": {"a": {"pattern": "("}}}}, ValueError, "pattern"),
        ({"input_schema": {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}}, ValueError, "leads nowhere"),
        ({"input_schema": {"type": "object", "allOf": [{"$ref": "http://x/y"}]}}, ValueError, "leads nowhere"),
    ],
)
def test_a_tool_that_could_not_be_served_is_refused(options: Any, error: type[Exception], match: str) -> None:
    server = Server("s")
    server.add_tool(lambda: None, name="taken")
    with pytest.raises(error, match=match):
        server.add_tool(lambda: None, **{"name": "x", **options})


def test_half_a_character_in_a_result_costs_one_character_not_the_answer() -> None:
    server = Server("s")
    server.add_tool(lambda: "a\ud800b", name="t")
    assert ask(server, "tools/call", name="t")["result"]["content"] == [{"type": "text", "text": "a?b"}]


def test_an_exception_that_cannot_be_printed_is_an_error_result_too() -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def fail() -> None:
        raise Unspeakable

    server = Server("s")
    server.add_tool(fail)
    result = ask(server, "tools/call", name="fail")["result"]
    assert result == {"content": [{"type": "text", "text": "Unspeakable"}], "isError": True}


class Account:
    """A world in one class."""

    def __init__(self, balance: int = 0) -> None:
        self.balance = balance
        self.orders: dict[int, str] = {}
        self._secret = object()

    def deposit(self, amount: int) -> dict[str, int]:
        """Pay in.

        Args:
            amount: How much.
        """
        self.balance += amount
        return {"balance": self.balance}

    def order(self, what: str) -> int:
        self.orders[len(self.orders)] = what
        return len(self.orders)

    def _internal(self) -> None: ...


def test_a_class_is_a_server() -> None:
    server = class_server(Account)
    deposit, order = ask(server, "tools/list")["result"]["tools"]
    assert (deposit["name"], deposit["description"], order["name"]) == ("deposit", "Pay in.", "order")
    assert deposit["inputSchema"]["properties"] == {"amount": {"type": "integer", "description": "How much."}}
    assert ask(server, "gymcp/state")["result"]["state"] == {"balance": 0, "orders": {}}
    ask(server, "gymcp/setup", initialState={"balance": 5}, seed=0)
    called = ask(server, "tools/call", name="deposit", arguments={"amount": 2})["result"]
    assert called["structuredContent"] == {"balance": 7}
    ask(server, "tools/call", name="order", arguments={"what": "tea"})
    assert ask(server, "gymcp/state")["result"] == {
        "stateKey": state_key({"balance": 7, "orders": {"0": "tea"}}),
        "state": {"balance": 7, "orders": {"0": "tea"}},
    }
    refused = ask(class_server(Account), "gymcp/setup", initialState={"blance": 5}, seed=0)["error"]
    assert (refused["code"], "blance" in refused["message"]) == (-32603, True)


# ----------------------------------------------------------------------------------------- checking against the schemas

numbers = st.integers(-3, 3) | st.sampled_from([0.5, 1.0, -2.5])
sizes = st.integers(0, 3)
kinds = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])
schemas = st.recursive(
    st.booleans()
    | st.fixed_dictionaries(
        {},
        optional={
            "type": kinds | st.lists(kinds, min_size=1, max_size=3, unique=True),
            "enum": st.lists(json_values, min_size=1, max_size=3),
            "minimum": numbers,
            "exclusiveMaximum": numbers,
            "minLength": sizes,
            "maxItems": sizes,
        },
    )
    | st.fixed_dictionaries(
        {},
        optional={
            "const": json_values,
            "maximum": numbers,
            "exclusiveMinimum": numbers,
            "maxLength": sizes,
            "minItems": sizes,
            "pattern": st.sampled_from(["a", "^b", "a.?$", "^[ab]*$"]),
            "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            "additionalProperties": inner,
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=3),
            "oneOf": st.lists(inner, min_size=1, max_size=3),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "$ref": st.just("#/$defs/a~1b"),
        },
    ),
    max_leaves=6,
)


@settings(max_examples=1000, deadline=None)
@given(schemas, st.booleans() | st.fixed_dictionaries({"type": kinds}), json_values)
def test_the_check_agrees_with_the_jsonschema_package(schema: Any, defined: Any, value: Any) -> None:
    whole = {"allOf": [schema], "$defs": {"a/b": defined}}
    check_schema(whole)
    assert (find_violation(value, whole) is None) == jsonschema.Draft202012Validator(whole).is_valid(value)


@pytest.mark.parametrize(
    ("keyword", "fits", "breaks"),
    [
        ("minimum", [2, 2.0, "x"], [1, 1.9]),
        ("maximum", [2, 2.0, "x"], [3, 2.1]),
        ("exclusiveMinimum", [3, 2.1, "x"], [2, 2.0]),
        ("exclusiveMaximum", [1, 1.9, "x"], [2, 2.0]),
        ("minLength", ["éé", [1]], ["é", ""]),
        ("maxLength", ["éé", [1, 2, 3]], ["ééé"]),
        ("minItems", [[1, 2], "x"], [[1], []]),
        ("maxItems", [[1, 2], "xxx"], [[1, 2, 3]]),
    ],
)
def test_a_limit_of_two(keyword: str, fits: list[Any], breaks: list[Any]) -> None:
    assert [find_violation(value, {keyword: 2}) for value in fits] == [None] * len(fits)
    assert all(find_violation(value, {keyword: 2}) for value in breaks)


@pytest.mark.parametrize(
    ("schema", "value", "violation"),
    [
        ({"type": "integer"}, 1.0, None),
        ({"type": "number"}, 1, None),
        ({"type": "integer"}, True, "$: expected integer, got boolean true"),
        ({"type": "number"}, False, "$: expected number, got boolean false"),
        ({"type": "integer"}, "1", '$: expected integer, got string "1"'),
        ({"type": ["string", "null"]}, [1, 2], "$: expected string or null, got array of 2"),
        ({"enum": [1]}, True, "$: expected one of [1], got boolean true"),
        ({"const": [1]}, [True], "$: expected [1], got array of 1"),
        ({"items": {"properties": {"a": {"maximum": 1}}}}, [{}, {"a": 2}], "$[1].a: expected at most 1, got integer 2"),
        (
            {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "x",
            '$: expected integer, got string "x"; or $: expected null, got string "x"',
        ),
        ({"oneOf": [{}, {}]}, None, "$: expected exactly one of 2 alternatives to hold (2 do), got null"),
        ({"type": "integer"}, {"a": 1}, '$: expected integer, got object with ["a"]'),
        ({"pattern": "^(a+)+$"}, "a" * 20_000, "$: expected at most 10000 characters, because a pattern applies"),
    ],
    ids=str,
)
def test_a_violation_says_where_what_and_what_instead(schema: Any, value: Any, violation: str | None) -> None:
    found = find_violation(value, schema)
    assert found == violation or (violation and found and found.startswith(violation))


def test_a_schema_may_refer_to_itself_but_not_for_ever() -> None:
    chain = {"properties": {"next": {"$ref": "#"}, "value": {"type": "integer"}}, "required": ["value"]}
    assert find_violation({"value": 1, "next": {"value": 2}}, chain) is None
    assert find_violation({"value": 1, "next": {}}, chain) == "$.next.value: required, but missing"
    assert find_violation(1, {"$ref": "#"}) == "$: nested too deeply to check"


# -------------------------------------------------------------------------------------------- canonical state, the file


def test_canonical_json_is_sorted_dense_and_unescaped() -> None:
    assert canonical_json({"b": [1, 1.0, None, True], "a": "ü"}) == '{"a":"ü","b":[1,1.0,null,true]}'
    assert canonical_json({10: 0, 9: (0,)}) == canonical_json({"9": [0], "10": 0}) == '{"10":0,"9":[0]}'
    assert state_key({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    for bad in (math.nan, math.inf, "\ud800"):
        with pytest.raises(ValueError, match=r"JSON|surrogate"):
            state_key({"x": bad})
    with pytest.raises(TypeError, match="set"):
        canonical_json({1, 2})


@given(json_values)
def test_a_value_and_its_round_trip_have_one_key(value: Any) -> None:
    assert state_key(json.loads(canonical_json(value))) == state_key(value)


def test_the_runtime_imports_only_the_standard_library_and_parses_as_python_3_9() -> None:
    module = ast.parse(RUNTIME.read_text(), feature_version=(3, 9))
    imported = {
        name.split(".")[0]
        for node in ast.walk(module)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert imported <= sys.stdlib_module_names | {"_sha2", "_sha256"}
    assert not imported & {"asyncio", "inspect", "dataclasses", "logging"}


def test_a_plain_server_starts_without_the_slow_modules(tree: Path) -> None:
    code = (
        f"from __future__ import annotations; import sys; sys.path.insert(0, {str(tree)!r})\n"
        "from gymcp.mcp_servers.runtime import class_server\n"
        "class Notes:\n"
        "    def get(self, key: str, limit: int = 10) -> str: 'Read a note.'\n"
        "server = class_server(Notes)\n"
        """server.handle(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "get"}}')\n"""
        "slow = {'asyncio', 'inspect', 'dataclasses', 'logging', 'ast', 'socket', 'json', 're', 'typing', 'enum', "
        "'collections', 'functools', 'contextlib'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    )
)
def test_canonical_json_is_what_the_json_module_writes(value: object) -> None:
    plain = json.loads(json.dumps(value))
    assert canonical_json(value) == json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
