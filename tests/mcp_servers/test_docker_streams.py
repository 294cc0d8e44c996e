"""The two streams of a container, which share one connection: frames split anywhere, floods read at their share."""

from __future__ import annotations

import asyncio
import struct

import pytest

from gymcp.mcp_servers.sandbox.docker.process import SharedReading, StreamDemultiplexer
from gymcp.mcp_servers.sandbox.process_ending import StderrTail

TIMEOUT_S = 60.0


def make_frame(stream: int, content: bytes) -> bytes:
    return struct.pack(">BxxxL", stream, len(content)) + content


@pytest.mark.parametrize("size", [1, 3, 8, 1000])
def test_streams_are_separated_wherever_their_frames_are_split(size: int) -> None:
    wire = (
        make_frame(1, b"out ")
        + make_frame(2, b"error one, ")
        + make_frame(1, b"")
        + make_frame(1, b"more\n")
        + make_frame(2, b"two")
    )

    async def feed() -> tuple[bytes, bytes]:
        stdout = asyncio.StreamReader()
        stderr = StderrTail(5)
        streams = StreamDemultiplexer(stdout, stderr)
        for start in range(0, len(wire), size):
            streams.data_received(wire[start : start + size])
        streams.eof_received()
        assert stderr.ended.done()
        return await stdout.read(), bytes(stderr.content)

    assert asyncio.run(feed()) == (b"out more\n", b", two")


class Connection(asyncio.ReadTransport):
    """A connection that records when it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[bool] = []
        self.resumed = asyncio.Event()

    def pause_reading(self) -> None:
        self.reads.append(False)

    def resume_reading(self) -> None:
        self.reads.append(True)
        self.resumed.set()

    def is_closing(self) -> bool:
        return False


def test_a_flood_of_standard_error_is_read_no_faster_than_its_share() -> None:
    async def flood(frames: int, reads: int) -> list[bool]:
        connection = Connection()
        streams = StreamDemultiplexer(asyncio.StreamReader(), StderrTail(5))
        streams.connection_made(connection)
        for _ in range(reads):
            streams.data_received(make_frame(2, b"e") * frames)
            if connection.reads:
                break
        if connection.reads:
            async with asyncio.timeout(TIMEOUT_S):
                await connection.resumed.wait()
        return connection.reads

    assert asyncio.run(flood(8_000, reads=1)) == []
    assert asyncio.run(flood(1, reads=50_000)) == [False, True]


def test_a_connection_is_read_while_none_of_its_streams_is_paused() -> None:
    async def reads() -> list[bool]:
        connection, paused = Connection(), set[SharedReading]()
        stdout, stderr = SharedReading(connection, paused), SharedReading(connection, paused)
        stdout.pause_reading()
        stderr.pause_reading()
        stderr.resume_reading()
        assert True not in connection.reads
        assert (stdout.is_reading(), stderr.is_reading()) == (False, True)
        stdout.resume_reading()
        return connection.reads

    assert asyncio.run(reads()) == [False, False, True]
