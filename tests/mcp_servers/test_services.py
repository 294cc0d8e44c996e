"""Services beside a server: started before it, in its sandbox; their files are in the state; they end with it."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from gymcp.errors import ConfigError, ServerDied
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.packages.locked_server import describe_start, to_install_request
from gymcp.mcp_servers.packages.lockfile import LockedServer
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.mcp_servers.services import Service
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.snapshots.server_snapshot import snapshot_files
from gymcp.mcp_servers.spec import FileState, ServerSpec
from gymcp.mcp_servers.transports.http_remote import check_remotes
from gymcp.mcp_servers.transports.service_launch import fault_of_services
from gymcp.types import ToolCall, ToolResult

PORT = 8765
PROGRAM = f"""
import http.server, sys

count = 0

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global count
        if self.path == "/end":
            sys.stdout.write("out of disk\\n")
            sys.stdout.flush()
            __import__("os")._exit(5)
        count += 1
        with open("count.txt", "w") as file:
            file.write(str(count))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(count).encode())

server = http.server.HTTPServer(("127.0.0.1", {PORT}), Handler)
print("listening", flush=True)
server.serve_forever()
"""
COUNTER = Service(name="counter", argv=("python3", "-c", PROGRAM), ready=f"tcp:{PORT}", ready_timeout_s=60)
QUIET = Service(name="quiet", argv=("sleep", "600"), ready="file:never", ready_timeout_s=0.5)


class Front:
    """A server whose tools ask the service."""

    def get(self, path: str) -> str:
        """Answer of the service."""
        with urllib.request.urlopen(f"http://127.0.0.1:8765/{path}", timeout=20) as answer:
            return str(answer.read().decode())


def server_with(*services: Service, **changes: object) -> ServerSpec:
    return replace(native_server("front", Front), services=services, **changes)  # type: ignore[arg-type]


def play(spec: ServerSpec, sandbox: Sandbox, *works: Callable[[ToolSession], Awaitable[None]]) -> None:
    """Open a session for each of the works, all at once."""

    async def one(work: Callable[[ToolSession], Awaitable[None]]) -> None:
        async with open_session(spec, sandbox, initial_state=None, seed=0) as session:
            await work(session)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(one(work))

    asyncio.run(main())


async def get(session: ToolSession, path: str = "") -> ToolResult:
    arguments = {"path": path}
    return await session.call_tool(ToolCall(id="call_1", name="get", arguments=arguments), arguments, timeout_s=30)


def failure(spec: ServerSpec, sandbox: Sandbox, work: Callable[[ToolSession], Awaitable[object]] | None = None) -> str:
    async def main() -> None:
        async with open_session(spec, sandbox, initial_state=None, seed=0) as session:
            if work is not None:
                await work(session)

    with pytest.raises(ServerDied) as caught:
        asyncio.run(main())
    return str(caught.value)


def test_a_service_is_ready_before_its_server_and_its_files_are_in_the_state(bwrap: Sandbox) -> None:
    spec = server_with(COUNTER, state=FileState())

    async def work(session: ToolSession) -> None:
        assert (await get(session)).content == "1"
        await session.update()
        assert (await session.state())[1]["files"] == {"count.txt": {"type": "file", "mode": "644", "text": "1"}}
        assert await snapshot_files(session, None) is None  # the service's memory is in no file

    play(spec, bwrap, work, work)  # each has a loopback of its own, so both use the same port


def test_services_run_in_containers(engine: None) -> None:
    async def work(session: ToolSession) -> None:
        assert (await get(session)).content == "1"
        await session.update()
        assert "count.txt" in (await session.state())[1]["files"]

    play(server_with(COUNTER, state=FileState()), get_sandbox("docker"), work)


@pytest.mark.parametrize(
    ("service", "words"),
    [
        (QUIET, "service 'quiet' did not become ready within 0.5 s (file:never) and said nothing"),
        (
            replace(QUIET, argv=("sh", "-c", "echo no disk; exit 3")),
            "service 'quiet' ended (exit status 3) before it was ready: no disk",
        ),
        (replace(QUIET, argv=("nope",)), "service 'quiet' cannot be started: nope: No such file or directory"),
    ],
)
def test_a_service_that_does_not_become_ready_is_named(service: Service, words: str, bwrap: Sandbox) -> None:
    said = failure(server_with(service), bwrap)
    assert said.startswith("server 'front': setup: the server ended (exit status 71); its last words: ")
    assert said.endswith(words)


def test_the_end_of_a_service_ends_the_server_and_is_no_answer_of_a_tool(bwrap: Sandbox) -> None:
    first = Service(name="first", argv=("sh", "-c", "echo x > made; exec sleep 600"), ready="file:made")
    second = Service(name="second", argv=("sh", "-c", "cat made; exec sleep 600"), ready="command:grep -q x made")
    said = failure(server_with(first, second, COUNTER), bwrap, lambda session: get(session, "end"))
    assert said.startswith("server 'front': tool 'get': the server ended (exit status 137); its ")
    assert "last words: " in said
    # the call's own traceback may come before or after it
    assert "\nservice 'counter' ended (exit status 5) while the server was running: listening | out of disk" in said


def test_services_without_a_sandbox_are_refused() -> None:
    with pytest.raises(ConfigError, match="has services, which need a loopback of its own; --sandbox none has only"):
        check_remotes([server_with(COUNTER)], get_sandbox("none"))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (server_with(*[QUIET] * 9), "9 services; the most is 8"),
        (server_with(QUIET, QUIET), "two services are named 'quiet'"),
        (server_with(QUIET, network=True), "services with network=True"),
        (replace(native_server("front", Front, start="fork"), services=(QUIET,)), "services with a forked server"),
        (ServerSpec(name="far", url="https://mcp.example.com", services=(QUIET,)), "a server that runs elsewhere"),
        (ServerSpec(name="packed", image="x", services=(QUIET,)), "services without argv"),
        (ServerSpec(name="s", argv=("x",), services=["redis"]), "its services must be a tuple of gymcp"),  # type: ignore[arg-type]
    ],
)
def test_a_server_that_cannot_have_services_is_refused(spec: ServerSpec, words: str) -> None:
    assert words in (fault_of_services(spec) or "")


@pytest.mark.parametrize(
    ("line", "ready", "seconds", "words"),
    [
        ("", "tcp:1", 1, "service: an empty command"),
        ("redis 'x", "tcp:1", 1, "No closing quotation"),
        ("redis", "udp:1", 1, "service 'redis': no ready check 'udp:1'; have tcp:PORT, file:PATH, command:LINE"),
        ("redis", "tcp:0", 1, "service 'redis': no ready check 'tcp:0'"),
        ("redis", "file:", 1, "service 'redis': no ready check 'file:'"),
        ("redis", "command:'", 1, "No closing quotation"),
        ("redis", "tcp:1", 0, "service 'redis': ready_timeout_s is 0, not within 600 s"),
        ("redis", "tcp:1", float("nan"), "ready_timeout_s is nan"),
        ("'a b'", "tcp:1", 1, "service 'a b': its name must be made of letters"),
    ],
)
def test_an_invalid_service_is_refused(line: str, ready: str, seconds: float, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Service.parse(line, ready, seconds)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("redis-server --port 1", "redis-server"),
        ("python db.py", "db"),
        ("/usr/bin/sh -c x", "sh"),
        ("python -m a", "a"),
    ],
)
def test_a_service_is_named_after_its_program(line: str, name: str) -> None:
    assert Service.parse(line, "tcp:1").name == name


def test_a_locked_service_is_started_again_as_it_was_locked() -> None:
    service = Service.parse("redis-server --port 1", "tcp:1")
    far = LockedServer(
        name="notes",
        runtime="image",
        package="notes",
        version="1",
        command=("docker", "run", "-i", "--rm", "notes:1"),
        services=(service,),
    )
    assert to_install_request(far).services == (service,)
    assert describe_start(far) == "a process started ahead"
