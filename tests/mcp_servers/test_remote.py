"""Remote servers: live calls, their failures, and specs that contradict themselves."""

from __future__ import annotations

import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from remote_servers import HANG_UP, TOKEN, ByHand, sdk_serving
from remote_sessions import NOWHERE, TIMEOUT_S, inside, stateless
from session_calls import call, nothing

from gymcp.errors import ConfigError, EnvInfraError, ProtocolError
from gymcp.mcp_servers.native.runtime import CALL_LIMIT
from gymcp.mcp_servers.sandbox import Limits
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.spec import FileState, HttpPort, ServerSpec
from gymcp.mcp_servers.transports.http_remote import fault_of_url

MANY_VALUES = b'{"jsonrpc":"2.0","id":1,"result":{"x":[' + b"1," * 120_000 + b"1]}}"


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
