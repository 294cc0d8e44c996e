"""The HTTP client: compressed, endless and malformed answers, reused connections, TLS and proxies."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from chat_server import Reply, chat_server
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from gymcp.agents.policies.http_client import PROBES, NoAnswer, Response, UnreadableAnswer, find_proxy, open_http_client
from gymcp.errors import ConfigError


def ask(reply: Reply, max_bytes: int = 1000) -> Response:
    async def run(url: str) -> Response:
        async with asyncio.timeout(30), open_http_client(url, {}) as client:
            return await client.request("POST", "", b"{}", max_bytes=max_bytes)

    with chat_server(lambda number, body: reply) as server:
        return asyncio.run(run(server.url))


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("gzip", gzip.compress(b"hello", mtime=0)), ("deflate", zlib.compress(b"hello")), ("x", b"hello")],
)
def test_a_compressed_answer_is_read_if_its_encoding_is_known(encoding: str, body: bytes) -> None:
    reply = Reply(body=body, headers={"content-encoding": encoding})
    if encoding == "x":
        with pytest.raises(UnreadableAnswer, match="its encoding is 'x'"):
            ask(reply)
    else:
        assert ask(reply).body == b"hello"


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_an_answer_longer_than_the_limit_is_refused(encoding: str) -> None:
    body = b"a" * 1001
    reply = Reply(body=gzip.compress(body) if encoding == "gzip" else body, headers={"content-encoding": encoding})
    with pytest.raises(UnreadableAnswer, match="longer than 1000 bytes"):
        ask(reply)


def test_requests_to_a_loopback_address_use_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nobody there

    async def run(url: str) -> list[int]:
        async with asyncio.timeout(30), open_http_client(url, {}) as client:
            return [(await client.request("POST", "", b"{}", max_bytes=100)).status for _ in range(3)]

    with chat_server(lambda number, body: Reply(status=200 + number)) as server:
        assert asyncio.run(run(server.url)) == [200, 201, 202]


def test_the_environment_names_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "proxy.invalid:3128")
    monkeypatch.setenv("no_proxy", "inside.invalid")
    assert find_proxy(httpx.URL("https://api.invalid/v1")) == httpx.URL("http://proxy.invalid:3128")
    assert find_proxy(httpx.URL("https://inside.invalid/v1")) is None
    assert find_proxy(httpx.URL("https://127.0.0.1/v1")) is None


@contextlib.asynccontextmanager
async def raw_server(*answers: bytes, asked: list[bytes]) -> AsyncIterator[int]:
    """The port of a server that sends these answers, one for each request's head, and closes after the last."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while len(asked) < len(answers):
                asked.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(answers[len(asked) - 1])
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


def ask_raw(answers: Sequence[bytes], times: int = 1) -> list[Response]:
    """The responses that the client reads from these bytes."""

    async def run() -> list[Response]:
        async with (
            asyncio.timeout(30),
            raw_server(*answers, asked=[]) as port,
            open_http_client(f"http://127.0.0.1:{port}/v1", {}) as client,
        ):
            return [await client.request("POST", "", max_bytes=100) for _ in range(times)]

    return asyncio.run(run())


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"content-length: 5\r\n\r\nhello",
        HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        HEAD + b"\r\nhello",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"content-length: 5\r\n\r\nhello",
    ],
    ids=["length", "chunks", "until the end", "1.0", "after a 100"],
)
def test_a_body_ends_as_its_head_says(answer: bytes) -> None:
    assert [found.body for found in ask_raw([answer])] == [b"hello"]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 2",
        HEAD + b"content-length: 9\r\n\r\nhello",
        HEAD + b"transfer-encoding: chunked\r\n\r\n9\r\nhello",
        b"SSH-2.0-x\r\n",
        HEAD + b"upgrade: x\r\nconnection: upgrade\r\ncontent-length: nine\r\n\r\n",
    ],
    ids=["nothing", "half a line", "half a body", "half a chunk", "no HTTP", "no length"],
)
def test_an_incomplete_answer_is_an_error(answer: bytes) -> None:
    with pytest.raises(NoAnswer):
        ask_raw([answer])


def test_an_endless_head_is_refused() -> None:
    with pytest.raises(UnreadableAnswer, match="longer than 100 bytes"):
        ask_raw([HEAD + b"x: " + b"y" * 1_000_000])


def test_a_connection_is_reused_unless_the_server_closes_it_or_sends_too_much() -> None:
    hello = HEAD + b"content-length: 5\r\n\r\nhello"
    for answer in (hello, hello.replace(b"OK\r\n", b"OK\r\nconnection: close\r\n"), hello + HEAD, hello + hello):
        assert [found.body for found in ask_raw([answer, hello, hello], times=3)] == [b"hello"] * 3


def test_the_kernel_asks_whether_a_silent_peer_is_there() -> None:
    empty = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"

    async def read_options() -> dict[str, int]:
        # the second answer is never asked for, so the connection stays open
        async with (
            raw_server(empty, empty, asked=[]) as port,
            open_http_client(f"http://127.0.0.1:{port}", {}) as client,
        ):
            await client.request("GET", "/", max_bytes=0)
            (connection,) = client._connections
            used = connection.transport.get_extra_info("socket")
            options = {name: used.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in PROBES}
            return options | {"on": used.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)}

    assert asyncio.run(read_options()) == {**PROBES, "on": 1}


def through_proxy(monkeypatch: pytest.MonkeyPatch, address: str, answer: bytes) -> tuple[list[bytes], str]:
    """The requests that the proxy got, and the body of the answer or the error."""

    async def run() -> tuple[list[bytes], str]:
        asked: list[bytes] = []
        async with asyncio.timeout(30), raw_server(answer, asked=asked) as port:
            for scheme in ("http", "https"):
                monkeypatch.setenv(f"{scheme}_proxy", f"http://ann:pw@127.0.0.1:{port}")
            async with open_http_client(address, {}) as client:
                try:
                    return asked, (await client.request("POST", "", max_bytes=100)).body.decode()
                except NoAnswer as error:
                    return asked, str(error)

    return asyncio.run(run())


def test_a_proxy_gets_the_whole_address_or_a_request_for_a_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    hello = HEAD + b"content-length: 5\r\n\r\nhello"
    (asked,), said = through_proxy(monkeypatch, "http://api.invalid/v1", hello)
    assert asked.startswith(b"POST http://api.invalid/v1 HTTP/1.1\r\nhost: api.invalid\r\n")
    assert b"proxy-authorization: Basic YW5uOnB3" in asked
    assert said == "hello"
    (asked,), said = through_proxy(monkeypatch, "https://api.invalid/v1", b"HTTP/1.1 407 Who\r\n\r\n")
    assert asked.startswith(b"CONNECT api.invalid:443 HTTP/1.1\r\nhost: api.invalid:443\r\nproxy-authorization: B")
    assert said == "the proxy 127.0.0.1 refuses a connection: status 407"


def certificate(host: str, folder: Path) -> Path:
    """A file with a key and a self-signed certificate."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "pem").write_bytes(private + signed.public_bytes(Encoding.PEM))
    return folder / "pem"


@pytest.mark.parametrize("host", ["localhost", "api.invalid"], ids=["direct", "through a tunnel"])
def test_https_accepts_only_the_host_that_the_certificate_names(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = certificate(host, tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(trusted)
    tunnels: list[bytes] = []

    async def secret(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if host != "localhost":
            tunnels.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 Yes\r\n\r\n")
            await writer.start_tls(context)
        for _ in range(2):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD + b"content-length: 5\r\n\r\nhello")
        writer.close()

    async def run() -> list[bytes]:
        direct = context if host == "localhost" else None
        async with asyncio.timeout(30), await asyncio.start_server(secret, "localhost", 0, ssl=direct) as server:
            port = server.sockets[0].getsockname()[1]
            monkeypatch.setenv("https_proxy", f"http://localhost:{port}")
            async with open_http_client(f"https://{host}:{port}/v1", {}) as client:
                return [(await client.request("POST", "", max_bytes=100)).body for _ in range(2)]

    assert asyncio.run(run()) == [b"hello", b"hello"]
    assert len(tunnels) == (host != "localhost")
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(NoAnswer, match="certificate verify failed"):
        asyncio.run(run())


def test_an_address_without_a_server_is_a_clear_error() -> None:
    async def run() -> None:
        async with raw_server(asked=[]) as port:
            pass
        async with open_http_client(f"http://127.0.0.1:{port}/v1", {}) as client:
            await client.request("POST", "", max_bytes=100)

    with pytest.raises(NoAnswer, match="the connection was refused: nothing listens"):
        asyncio.run(run())


@pytest.mark.parametrize("value", ["Bearer k\u00e9y", "Bearer a\r\nX-Other: b", "Bearer a\x00", "Bearer \udcff"])
def test_an_invalid_header_is_one_error_without_its_value(value: str) -> None:
    async def open_them() -> None:
        async with open_http_client("http://127.0.0.1:1", {"authorization": value}):
            pass

    with pytest.raises(ConfigError, match=r"header 'authorization': its value has .* at position \d") as refused:
        asyncio.run(open_them())
    assert value.removeprefix("Bearer ") not in str(refused.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/\x1b", "http://[::1", "http://a:b/", "http://\ud800.invalid/"])
def test_an_invalid_address_is_one_error(url: str) -> None:
    async def open_it() -> None:
        async with open_http_client(url, {}):
            pass

    with pytest.raises(ConfigError, match=r"^address 'http"):
        asyncio.run(open_it())
