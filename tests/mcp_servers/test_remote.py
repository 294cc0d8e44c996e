"""Remote servers: live calls, their failures, and cassettes instead of them."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import subprocess
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from remote_servers import HANG_UP, TOKEN, ByHand, sdk_serving

from gymcp.errors import CassetteMiss, ConfigError, EnvInfraError, IntegrityError, ProtocolError
from gymcp.mcp_servers.native.runtime import CALL_LIMIT
from gymcp.mcp_servers.sandbox import Limits, get_sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.spec import FileState, HttpPort, ServerSpec
from gymcp.mcp_servers.transports.cassette import cassette_sha256, read_cassette
from gymcp.mcp_servers.transports.http_remote import fault_of_url
from gymcp.types import ToolCall, ToolResult

TIMEOUT_S = 60.0
NOWHERE = "http://127.0.0.1:9/mcp"
"""The port of the discard service, which nothing here offers."""
MANY_VALUES = b'{"jsonrpc":"2.0","id":1,"result":{"x":[' + b"1," * 120_000 + b"1]}}"


def inside(spec: ServerSpec, work: Callable[[ToolSession], Awaitable[None]], *, task: str = "t") -> None:
    async def main() -> None:
        sandbox = get_sandbox("none")
        async with (
            asyncio.timeout(TIMEOUT_S),
            open_session(spec, sandbox, initial_state=None, seed=0, task=task) as session,
        ):
            await work(session)

    asyncio.run(main())


async def call(session: ToolSession, name: str, timeout_s: float = 30, **arguments: object) -> ToolResult:
    return await session.call_tool(ToolCall(id="c", name=name), arguments, timeout_s=timeout_s)


async def nothing(session: ToolSession) -> None:
    """Body of a session that is expected not to open."""


def stateless(url: str, **more: Any) -> ServerSpec:
    return ServerSpec(name="far", url=url, state="stateless", **more)


def answers_of(spec: ServerSpec, *words: str, task: str = "t") -> list[str]:
    """Answers of `count` to each word, in one episode."""
    found: list[str] = []

    async def work(session: ToolSession) -> None:
        found.extend([(await call(session, "count", word=word)).content for word in words])

    inside(spec, work, task=task)
    return found


# --------------------------------------------------------------------------------------------------------------- live


@pytest.mark.parametrize("wire", ["auto", "legacy", "2026-07-28"])
@pytest.mark.parametrize(("json_response", "one_by_one"), [(True, False), (False, False), (True, True)])
def test_a_stateless_server_is_called_live_on_every_wire(wire: Any, json_response: bool, one_by_one: bool) -> None:
    with sdk_serving(json_response=json_response, stateless=one_by_one) as url:

        async def work(session: ToolSession) -> None:
            key = session.world_key
            assert [tool.name for tool in session.tools] == ["count", "whoami"]
            assert (await call(session, "count", word="a")).content == "a 1"
            assert (await call(session, "count", word=3)).is_error
            assert session.world_key == key

        inside(stateless(url, wire=wire), work)


def test_a_token_that_no_header_can_carry_is_one_error_without_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYMCP_TEST_TOKEN", "t\u00f6ken-of-many-letters")
    spec = stateless("http://127.0.0.1:1/", headers={"Authorization": "Bearer ${GYMCP_TEST_TOKEN}"})
    with pytest.raises(ConfigError, match=r"header 'Authorization': its value has the character U\+00F6") as refused:
        inside(spec, nothing)
    assert "ken-of" not in str(refused.value)


def test_a_url_that_is_malformed_once_it_is_filled_in_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYMCP_TEST_TOKEN", "a\x1bsecret")
    spec = stateless("http://127.0.0.1:1/${GYMCP_TEST_TOKEN}")
    with pytest.raises(ConfigError, match=r"server 'far': url '.*\$\{GYMCP_TEST_TOKEN\}'") as refused:
        inside(spec, nothing)
    assert "secret" not in str(refused.value)


def test_a_header_holds_the_value_of_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ByHand(lambda tool, arguments: server.headers["Authorization"])
    with server.serving() as url:
        spec = stateless(url, headers={"Authorization": "Bearer ${GYMCP_TEST_TOKEN}"})
        with pytest.raises(ConfigError, match="server 'far': environment variable 'GYMCP_TEST_TOKEN' is not set"):
            inside(spec, nothing)
        monkeypatch.setenv("GYMCP_TEST_TOKEN", TOKEN)

        async def work(session: ToolSession) -> None:
            assert (await call(session, "add")).content == "Bearer ${GYMCP_TEST_TOKEN}"

        inside(spec, work)
    assert server.headers["Authorization"] == f"Bearer {TOKEN}"


def test_an_unreachable_server_is_one_error() -> None:
    with pytest.raises(EnvInfraError, match=r"server 'far': handshake: 127.0.0.1: ConnectError: "):
        inside(stateless(NOWHERE), nothing)


def test_a_server_that_refuses_us_is_quoted() -> None:
    server = ByHand(lambda tool, arguments: "")
    server.broken = (401, "text/html", b"<p>who\nare you?</p>")
    with server.serving() as url, pytest.raises(EnvInfraError) as caught:
        inside(stateless(url), nothing)
    assert str(caught.value) == "server 'far': handshake: HTTP 401 Unauthorized: <p>who are you?</p>"


@pytest.mark.parametrize(
    ("said", "kind", "why"),
    [
        ((503, "text/plain", b"busy"), EnvInfraError, "HTTP 503 Service Unavailable: busy"),
        ((200, "application/json", b"{]"), ProtocolError, r"its answer is no message of MCP \(application/json\): {\]"),
        ((200, "application/json", b"[" * 90_000), ProtocolError, "its answer is no message of MCP"),
        ((200, "text/html", b"hello"), ProtocolError, r"its answer is no message of MCP \(text/html\): hello"),
        ((200, "application/json", b" " * 3_000_000), ProtocolError, "an answer of more than 1000000 bytes"),
        ((200, "application/json", MANY_VALUES), ProtocolError, "an answer that has more than 100000 values"),
        (
            (200, "text/event-stream", b': "\n\ndata: ' + MANY_VALUES + b"\n\n"),
            ProtocolError,
            "an answer that has more",
        ),
        ((200, "text/event-stream", b":" * 3_000_000), ProtocolError, "an answer of more than 1000000 bytes"),
    ],
)
def test_a_failure_of_http_loses_the_server_and_no_request_is_sent_twice(
    said: tuple[int, str, bytes], kind: type[EnvInfraError], why: str
) -> None:
    server = ByHand(lambda tool, arguments: said)

    async def work(session: ToolSession) -> None:
        with pytest.raises(kind, match=rf"server 'far': tool 'add': {why}"):
            await call(session, "add")
        with pytest.raises(EnvInfraError):
            await call(session, "add")

    with server.serving() as url:
        inside(stateless(url, limits=Limits(line_bytes=1_000_000)), work)
    assert server.calls == ["add"]


def test_a_compressed_answer_is_not_unpacked() -> None:
    server = ByHand(lambda tool, arguments: "3")
    server.encoding = "gzip"
    with server.serving() as url, pytest.raises(ProtocolError, match="its answer is compressed"):
        inside(stateless(url), nothing)
    assert server.headers["accept-encoding"] == "identity"


def test_a_server_that_hangs_up_is_lost_and_the_call_is_not_sent_again() -> None:
    server = ByHand(lambda tool, arguments: HANG_UP)

    async def work(session: ToolSession) -> None:
        with pytest.raises(EnvInfraError, match=r"server 'far': tool 'add': 127.0.0.1: RemoteProtocolError"):
            await call(session, "add")

    with server.serving() as url:
        inside(stateless(url), work)
    assert server.calls == ["add"]


@pytest.mark.parametrize("again", range(8), ids=str)  # its late answer meets the closing session only sometimes
def test_a_slow_call_is_an_observation_and_the_server_goes_on(again: int) -> None:
    asked_again = threading.Event()

    def answer(tool: str, arguments: dict[str, Any]) -> str:
        if arguments:
            assert asked_again.wait(TIMEOUT_S)
        else:
            asked_again.set()
        return "3"

    async def work(session: ToolSession) -> None:
        late = await call(session, "add", timeout_s=0.3, slowly=True)
        assert (late.is_error, late.content) == (True, f"tool 'add' did not answer within 0.3 s, {CALL_LIMIT}")
        assert (await call(session, "add")).content == "3"

    with ByHand(answer).serving() as url:
        inside(stateless(url), work)


def test_an_untrusted_certificate_is_refused(tmp_path: Path) -> None:
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "certificate")]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *names, *files],
        check=True,
        capture_output=True,
        timeout=TIMEOUT_S,
    )
    server = ByHand(lambda tool, arguments: "3")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    with server.serving(tls) as url:
        assert url.startswith("https://")
        with pytest.raises(EnvInfraError, match=r"server 'far': handshake: .*CERTIFICATE_VERIFY_FAILED"):
            inside(stateless(url), nothing)
    assert server.asked == []


# ------------------------------------------------------------------------------------------------------------- specs

URL = "https://example.org/mcp"


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        (ServerSpec(name="far", url=URL), "runs elsewhere, where no episode starts from a fresh state"),
        (ServerSpec(name="far", url=URL, state="declared"), "of a server elsewhere nothing can be read"),
        (ServerSpec(name="far", url=URL, state=FileState()), "of a server elsewhere nothing can be read"),
        (stateless("ftp://example.org"), "expected http(s)://HOST/PATH"),
        (stateless("https://user:word@example.org/"), "expected http(s)://HOST/PATH"),
        (stateless(URL, argv=("python3",)), "url with argv"),
        (stateless(URL, http=HttpPort(port=1)), "url with http"),
        (stateless(URL, recording=True), "recording without a cassette"),
        (ServerSpec(name="far", argv=("a",), headers={"A": "b"}), "headers without url"),
        (ServerSpec(name="far", argv=("a",), cassette=Path("a")), "cassette without url"),
    ],
)
def test_a_contradictory_remote_server_is_refused(spec: ServerSpec, fault: str) -> None:
    assert fault in (fault_of_url(spec) or "")
    with pytest.raises(ConfigError):
        inside(spec, nothing)


# ---------------------------------------------------------------------------------------------------------- cassettes


@pytest.mark.parametrize("wire", ["auto", "2026-07-28"])
def test_a_cassette_is_replayed_in_order_and_no_server_is_called(wire: Any, tmp_path: Path) -> None:
    """The server counts the calls of all clients, so two live episodes could not have the same answers."""
    spec = ServerSpec(name="far", url=NOWHERE, cassette=tmp_path / "far.jsonl", wire=wire)
    with sdk_serving() as url:
        live = replace(spec, url=url, recording=True)
        assert answers_of(live, "a", "a", "b", task="first") == ["a 1", "a 2", "b 3"]
        assert answers_of(live, "a", task="second") == ["a 4"]
    for _ in range(2):
        assert answers_of(spec, "b", "a", "a", task="first") == ["b 3", "a 1", "a 2"]
        assert answers_of(spec, "a", task="second") == ["a 4"]
    assert read_cassette(tmp_path / "far.jsonl").server_info["name"] == "counter"


@pytest.mark.parametrize(
    ("words", "task", "said"),
    [
        (("a", "c"), "first", '{"word": "c"} in task \'first\' is not on cassette'),
        (("a", "a"), "first", "asked 2 times and recorded 1; record it with: gymcp eval ENV --cassette record"),
        (("a",), "other", '{"word": "a"} in task \'other\' is not on cassette'),
    ],
)
def test_a_call_that_was_not_recorded_is_a_miss(words: tuple[str, ...], task: str, said: str, tmp_path: Path) -> None:
    spec = ServerSpec(name="far", url=NOWHERE, cassette=tmp_path / "far.jsonl")
    with sdk_serving() as url:
        answers_of(replace(spec, url=url, recording=True), "a", task="first")
    with pytest.raises(CassetteMiss) as caught:
        answers_of(spec, *words, task=task)
    assert str(caught.value).startswith("server 'far': tool 'count': ")
    assert said in str(caught.value)


def test_one_answer_of_a_stateless_server_serves_every_task_every_time(tmp_path: Path) -> None:
    spec = stateless(NOWHERE, cassette=tmp_path / "far.jsonl")
    server = ByHand(lambda tool, arguments: str(len(server.calls)))
    with server.serving() as url:

        async def work(session: ToolSession) -> None:
            assert [(await call(session, "add", b=1, a=2)).content for _ in range(2)] == ["1", "2"]

        inside(replace(spec, url=url, recording=True), work)

    async def again(session: ToolSession) -> None:
        assert [(await call(session, "add", a=2, b=1)).content for _ in range(3)] == ["1"] * 3
        with pytest.raises(CassetteMiss, match=r'tool \'add\': {"a": 3} is not on cassette'):
            await call(session, "add", a=3)

    inside(spec, again, task="another")


def test_errors_of_tools_are_replayed_and_lost_calls_are_not_recorded(tmp_path: Path) -> None:
    def answer(tool: str, arguments: dict[str, Any]) -> Any:
        if "lost" in arguments:
            return 503, "text/plain", b""
        error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": "no such city"}}
        return 400, "application/json", json.dumps(error).encode()

    spec = ServerSpec(name="far", url=NOWHERE, cassette=tmp_path / "far.jsonl")
    server = ByHand(answer)

    async def work(session: ToolSession) -> None:
        wrong = await call(session, "add", city="?")
        assert (wrong.is_error, wrong.content) == (True, "no such city")
        with pytest.raises(EnvInfraError):
            await call(session, "add", lost=True)

    with server.serving() as url:
        inside(replace(spec, url=url, recording=True), work)
    inside(spec, work)
    assert len(read_cassette(tmp_path / "far.jsonl").answers) == 1


def test_a_cassette_is_readable_and_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "far.jsonl"
    monkeypatch.setenv("GYMCP_TEST_TOKEN", TOKEN)
    monkeypatch.setenv("GYMCP_TEST_REGION", "a")  # no secret: it stays where it occurs by chance
    with sdk_serving() as url:
        headers = {"Authorization": "Bearer ${GYMCP_TEST_TOKEN}", "Region": "${GYMCP_TEST_REGION}"}
        spec = stateless(url, headers=headers, cassette=path, recording=True)

        async def work(session: ToolSession) -> None:
            assert (await call(session, "whoami")).content == "Bearer ${GYMCP_TEST_TOKEN}"

        inside(spec, work)
    assert TOKEN not in path.read_text()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert (rows[0]["cassette"], rows[0]["server"], rows[0]["url"]) == (1, "far", url)
    assert [row["tool"]["name"] for row in rows[1:3]] == ["count", "whoami"]
    assert (rows[3]["call"], rows[3]["arguments"]) == ("whoami", {})
    assert rows[3]["result"]["content"] == [{"type": "text", "text": "Bearer ${GYMCP_TEST_TOKEN}"}]
    assert len(rows) == 4
    before = cassette_sha256(path)
    with sdk_serving() as url:
        inside(replace(spec, url=url), work)
    assert [json.loads(line) for line in path.read_text().splitlines()][1:] == rows[1:]
    assert cassette_sha256(path) == before or url != rows[0]["url"]


def test_many_episodes_record_on_one_cassette_without_mixing(tmp_path: Path) -> None:
    path = tmp_path / "far.jsonl"

    async def main(url: str) -> None:
        async def one(number: int) -> None:
            spec = ServerSpec(name="far", url=url, cassette=path, recording=True)
            opened = open_session(spec, get_sandbox("none"), initial_state=None, seed=0, task=str(number))
            async with asyncio.timeout(TIMEOUT_S), opened as session:
                await call(session, "add", number=number)
                await call(session, "add", number=number)

        await asyncio.gather(*(one(number) for number in range(8)))

    with ByHand(lambda tool, arguments: str(arguments["number"])).serving() as url:
        asyncio.run(main(url))
    answers = read_cassette(path).answers
    assert sorted(key[0] or "" for key in answers) == [str(number) for number in range(8)]
    assert {len(found) for found in answers.values()} == {2}
    assert [entry.name for entry in tmp_path.iterdir()] == ["far.jsonl"]


def test_a_second_recording_adds_new_answers_and_reports_differing_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = ServerSpec(name="far", url=NOWHERE, cassette=tmp_path / "far.jsonl")
    with sdk_serving() as url:
        live = replace(spec, url=url, recording=True)
        assert answers_of(live, "a") == ["a 1"]
        with caplog.at_level(logging.WARNING):
            assert answers_of(live, "a", "b") == ["a 2", "b 3"]
    assert "server 'far': answered 1 calls in other words than on cassette" in caplog.text
    assert answers_of(spec, "a", "b") == ["a 1", "b 3"]


def test_tools_that_differ_from_the_cassette_are_refused(tmp_path: Path) -> None:
    server = ByHand(lambda tool, arguments: "3")
    spec = ServerSpec(name="far", url=NOWHERE, cassette=tmp_path / "far.jsonl", recording=True)
    with server.serving() as url:
        live = replace(spec, url=url)
        inside(live, nothing)
        server.tools = ["add", "subtract"]
        with pytest.raises(IntegrityError, match=r"its tools are not those of cassette '.*': subtract; to record"):
            inside(live, nothing)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "not found; record it with: gymcp eval ENV --cassette record"),
        ("", "lists no tools"),
        ("{}\n", "line 1: it has no 'cassette'"),
        ('{"cassette": 2}\n', "line 1: format 2; this gymcp reads format 1"),
        ('{"cassette": 1, "serverInfo": {}}\n{"tool": {}}\nnot json\n', "line 3: Expecting value"),
        ('{"cassette": 1, "serverInfo": {}}\n{"call": "a", "arguments": {}}\n', "line 2: it has no result"),
    ],
)
def test_a_malformed_cassette_is_one_error(text: str | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "far.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        inside(ServerSpec(name="far", url=NOWHERE, cassette=path), nothing)
    assert said in str(caught.value)
