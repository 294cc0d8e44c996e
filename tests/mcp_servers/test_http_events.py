"""The bridge to a server that speaks only HTTP: events that arrive in pieces, and how its port is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from gymcp.errors import ConfigError
from gymcp.mcp_servers.programs.http_bridge import ProtocolBreach, events
from gymcp.mcp_servers.spec import HttpPort, ServerSpec
from gymcp.mcp_servers.transports.http_bridge import bridge_launch

STREAM = b": hello\r\n\r\nid: 7\rretry: 5\r\ndata: one\ndata: two\n\nevent: message\ndata:three\n\ndata: never ended"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_the_same_wherever_a_stream_is_cut(size: int) -> None:
    def pieces() -> Iterator[bytes]:
        for start in range(0, len(STREAM), size):
            yield STREAM[start : start + size]

    assert list(events(pieces(), 1000)) == [
        {"": "hello"},
        {"id": "7", "retry": "5", "data": "one\ntwo"},
        {"event": "message", "data": "three"},
    ]


@pytest.mark.parametrize("stream", [b"data: " + b"a" * 100, b"data: a\n" * 20])
def test_an_event_without_an_end_is_a_breach(stream: bytes) -> None:
    with pytest.raises(ProtocolBreach, match="of more than 50 bytes"):
        list(events([stream], 50))


@pytest.mark.parametrize(
    ("text", "port"),
    [("3000", HttpPort(port=3000)), (":80/", HttpPort(port=80, path="/")), ("1/a/b", HttpPort(port=1, path="/a/b"))],
)
def test_a_port_is_parsed_as_in_a_url(text: str, port: HttpPort) -> None:
    assert HttpPort.parse(text) == port


@pytest.mark.parametrize("text", ["", "http", "0", "70000", "3000mcp", "3000/a b"])
def test_a_malformed_port_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected PORT or PORT/PATH"):
        HttpPort.parse(text)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"network": True}, "http with network=True"),
        ({"argv": (), "image": "a:1"}, "http without argv"),
        ({"http": HttpPort(port=0)}, "expected HttpPort"),
    ],
)
def test_a_contradictory_port_is_refused(change: dict[str, object], said: str) -> None:
    spec = ServerSpec(name="web", argv=("python3",), http=HttpPort(port=8765))
    with pytest.raises(ConfigError, match=said):
        bridge_launch(replace(spec, **change))  # type: ignore[arg-type]
