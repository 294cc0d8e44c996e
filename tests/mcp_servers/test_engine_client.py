"""Requests to the Docker engine: no socket stays open, and none is asked without need. No engine takes part."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fake_engine import ANSWERS, Answer, FakeEngine, count_open_sockets, encode_chunks, encode_json

from gymcp.errors import ConfigError, SandboxUnavailable
from gymcp.mcp_servers import cleanup
from gymcp.mcp_servers.cleanup import find_leftovers
from gymcp.mcp_servers.sandbox import Launch
from gymcp.mcp_servers.sandbox.docker.backend import Docker
from gymcp.mcp_servers.sandbox.docker.container import discard, inspect_container, start
from gymcp.mcp_servers.sandbox.docker.engine_api import (
    EngineError,
    attach,
    check_progress,
    engine_info,
    find_containers,
    open_engine,
    record_use,
)
from gymcp.mcp_servers.sandbox.docker.images import build_dockerfile
from gymcp.mcp_servers.sandbox.docker.pool import Pool

LIMIT_S = 60.0
LAUNCH = Launch(argv=("serve",))
Serve = Callable[[dict[str, Answer]], FakeEngine]


@pytest.fixture
def engine_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts an engine that gives these answers, and a cache of the test's own."""
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    made: list[FakeEngine] = []

    def begin(answers: dict[str, Answer]) -> FakeEngine:
        made.append(FakeEngine(tmp_path / "docker.sock", answers))
        return made[-1]

    yield begin
    for engine in made:
        engine.close()


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """Keep everything that a failed request leaves to the garbage collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _build(folder: Path, say: Callable[[str], None] = lambda text: None) -> None:
    (folder / "context").mkdir()
    (folder / "context" / "Dockerfile").write_text("FROM gymcp-base\n")
    build_dockerfile(folder / "context" / "Dockerfile", say)


def _hold(content: bytes, released: threading.Event, asked: threading.Event | None = None) -> Callable[[], bytes]:
    """An answer that is given once it is released."""

    def answer() -> bytes:
        if asked is not None:
            asked.set()
        released.wait(LIMIT_S)
        return content

    return answer


BROKEN: dict[str, tuple[str, Answer, str]] = {
    "refused": ("GET /containers/abc/json", encode_json({"message": "no such container"}, "404 Not Found"), "no such"),
    "closed": ("GET /containers/abc/json", b"", "no engine answers at .* \\(Remote end closed"),
    "half an answer": ("GET /containers/abc/json", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{]", "timed out"),
    "not JSON": (
        "GET /containers/abc/json",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{]",
        "or is no Docker engine",
    ),
    "not an engine's error": (
        "GET /containers/abc/json",
        encode_json(["no"], "404 Not Found"),
        "or is no Docker engine",
    ),
    "not an engine's answer": ("GET /containers/abc/json", encode_json({}), "or is no Docker engine"),
    "no version": ("GET /version", encode_json({}), "or is no Docker engine"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_failed_request_is_one_line_and_leaves_no_open_socket(
    what: str, engine_with: Serve, no_garbage_collection: None
) -> None:
    request, answer, said = BROKEN[what]
    engine = engine_with({request: answer})
    with pytest.raises(EngineError, match=said) as caught, open_engine(timeout_s=0.5) as client:
        client.inspect_container("abc")["State"]
    assert "\n" not in str(caught.value)
    assert count_open_sockets(engine.path) == 0


def test_an_absent_engine_leaves_no_open_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_garbage_collection: None
) -> None:
    """The SDK does not close a socket that it cannot connect."""
    path = tmp_path / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    before = count_open_sockets(path)
    with pytest.raises(SandboxUnavailable, match="No such file or directory") as caught:
        engine_info()
    assert (count_open_sockets(path), caught.type) == (before, SandboxUnavailable)


def test_an_interrupted_build_leaves_no_open_socket(
    tmp_path: Path, engine_with: Serve, no_garbage_collection: None
) -> None:
    """The SDK does not close the connection of progress that is read in part; the error is the reader's own."""
    engine = engine_with({"POST /build": encode_chunks({"stream": "one"}, complete=False)})

    def interrupt(text: str) -> None:
        raise BrokenPipeError(text)

    with pytest.raises(BrokenPipeError, match="one") as caught:
        _build(tmp_path, interrupt)
    assert (count_open_sockets(engine.path), caught.type) == (0, BrokenPipeError)


def test_a_failed_build_leaves_no_open_socket(tmp_path: Path, engine_with: Serve, no_garbage_collection: None) -> None:
    progress = encode_chunks({"stream": "one"}, {"error": "step 2 failed"}, {"stream": "three"}, complete=False)
    engine = engine_with({"POST /build": progress})
    with pytest.raises(EngineError, match="step 2 failed") as caught:
        _build(tmp_path)
    assert (count_open_sockets(engine.path), caught.type) == (0, EngineError)


@pytest.mark.parametrize("refused", ["attach", "start"])
def test_a_refused_start_leaves_no_open_socket_and_no_container(
    refused: str, engine_with: Serve, no_garbage_collection: None
) -> None:
    answer = encode_json({"message": "cannot do that"}, "500 Internal Server Error")
    engine = engine_with({f"POST /containers/abc/{refused}": answer})
    with pytest.raises(EngineError, match="cannot do that") as caught:
        start(LAUNCH, init=False)
    assert (count_open_sockets(engine.path), caught.type) == (0, EngineError)
    assert engine.requests[-1] == "DELETE /containers/abc"


def test_the_streams_of_a_container_are_its_owners_to_close(engine_with: Serve, no_garbage_collection: None) -> None:
    engine = engine_with({})
    container = start(LAUNCH, init=False)
    assert inspect_container(container.id).running
    assert count_open_sockets(engine.path) == 1
    discard(container)
    assert count_open_sockets(engine.path) == 0


def test_an_engine_that_does_not_attach_is_given_up(engine_with: Serve, no_garbage_collection: None) -> None:
    """The SDK sets no time limit there."""
    released = threading.Event()
    engine = engine_with({"POST /containers/abc/attach": _hold(b"", released)})
    with pytest.raises(EngineError, match="timed out") as caught, open_engine(timeout_s=0.2) as client:
        attach(client, "abc")
    assert (count_open_sockets(engine.path), caught.type) == (0, EngineError)
    released.set()


@pytest.mark.parametrize(
    "held",
    [
        "POST /containers/create",
        "POST /containers/abc/attach",
        "POST /containers/abc/start",
        "GET /containers/abc/json",
    ],
)
def test_a_start_that_is_cancelled_in_a_request_leaves_no_open_socket(
    held: str, engine_with: Serve, no_garbage_collection: None
) -> None:
    asked, released = threading.Event(), threading.Event()
    engine = engine_with({held: _hold(ANSWERS[held], released, asked)})
    pool = Pool(size=0)

    async def run() -> None:
        async with Docker(pool=pool).start(LAUNCH):
            pass

    async def cancel() -> None:
        async with asyncio.timeout(LIMIT_S):
            task = asyncio.create_task(run())
            await asyncio.to_thread(asked.wait, LIMIT_S)
            task.cancel()
            await asyncio.sleep(0)
            released.set()
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(cancel())
    pool.close()
    assert engine.requests[-1] == "DELETE /containers/abc"
    assert count_open_sockets(engine.path) == 0


def test_progress_ends_at_the_first_error() -> None:
    assert list(check_progress([{"stream": "one"}, {"status": "two"}])) == [{"stream": "one"}, {"status": "two"}]
    with pytest.raises(EngineError, match=r"docker: no space left$"):
        list(check_progress([{"error": " no space left\n"}, {"stream": "later"}]))


def test_leftovers_ask_an_engine_only_if_it_was_used(engine_with: Serve) -> None:
    engine = engine_with({})
    find_leftovers()
    assert engine.requests == []
    find_leftovers(ask_engine=True)
    assert engine.requests == ["GET /version", "GET /containers/json"]
    discard(start(LAUNCH, init=False))
    engine.requests.clear()
    find_leftovers()
    assert engine.requests == ["GET /containers/json"]


@pytest.mark.parametrize("hangs", ["GET /version", "GET /containers/json"])
def test_an_engine_that_hangs_is_not_waited_for(
    hangs: str, engine_with: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither before the first container, nor, beyond a limit, afterwards."""
    released = threading.Event()
    engine = engine_with({hangs: _hold(b"", released)})
    find_leftovers()
    assert engine.requests == []
    record_use()
    monkeypatch.setattr(cleanup, "_REMOVE_TIMEOUT_S", 0.2)
    assert "container" not in [found.kind for found in find_leftovers()]
    assert engine.requests[-1] == hangs
    with pytest.raises(EngineError, match="timed out"):
        find_containers("gymcp.owner", timeout_s=0.2)
    released.set()


def test_the_client_works_with_an_unwritable_cache(engine_with: Serve, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    engine_with({})
    discard(start(LAUNCH, init=False))
    find_leftovers()


def test_a_docker_config_that_is_not_read_is_one_line(engine_with: Serve, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[1]")
    engine_with({})
    with pytest.raises((ConfigError, SandboxUnavailable), match=r"config\.json") as caught:
        engine_info()
    assert "\n" not in str(caught.value)
