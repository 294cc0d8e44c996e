"""The native runtime line by line, also with messages that the SDK would never send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runtime_wire import ENVELOPE, Wire, json_values

from gymcp.mcp_servers.native.runtime import (
    MAX_DEPTH,
    MAX_LINE_BYTES,
    RESULT_STATE_KEY,
    STATE_KEY,
    STATE_WITHIN_KEY,
    canonical_json,
    state_key,
)


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
def test_unknown_methods_are_not_found(wire: Wire, method: str) -> None:
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


def test_a_small_state_comes_with_the_result_if_asked_for(wire: Wire) -> None:
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
        (b"x" * (MAX_LINE_BYTES + 100), -32700),
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
def test_messages_that_expect_no_answer_get_none(lasting_wire: Wire, line: bytes) -> None:
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
def test_arguments_that_json_cannot_return_are_an_error_result(lasting_wire: Wire, value: bytes, reason: str) -> None:
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


def test_the_server_ends_when_its_output_is_closed(tree: Path) -> None:
    wire = Wire(tree)
    assert wire.process.stdout is not None
    wire.process.stdout.close()
    wire.send(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    assert wire.process.wait(timeout=60) == 0
    assert wire.process.stdin is not None
    wire.process.stdin.close()


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
