"""Servers that speak only streamable HTTP: real ones and bad ones, on a loopback of their sandbox's own."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from session_calls import call, nothing

from gymcp.envs import EnvSpec, load_env
from gymcp.envs.episodes.episode import open_episode
from gymcp.errors import ConfigError, EnvInfraError, ProtocolError, ServerDied, ServerTimeout
from gymcp.mcp_servers.forkserver.warm_sandbox import WarmSandbox, open_warm_sandbox
from gymcp.mcp_servers.native.runtime import CALL_LIMIT
from gymcp.mcp_servers.packages.locked_server import locked_server
from gymcp.mcp_servers.sandbox import Limits, Mount, Sandbox, get_sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.spec import FileState, HttpPort, ServerSpec
from gymcp.mcp_servers.transports.http_bridge import bridge_launch
from gymcp.types import Action, Score, Suite, Task, ToolCall

LOCK = Path(__file__).parents[2] / "envs" / "catalog" / "servers.lock"
PORT = 8765
TIMEOUT_S = 60.0

# A server by hand: sessions, answers as JSON or as events, and one tool for each way to misbehave.
SERVER = """
import http.server, json, os, socket, sys, time

PORT, STYLE = int(sys.argv[1]), sys.argv[2]
TOOLS = "count host_port refuse garbage deep hang die big large forget resumed ask".split()
print("hello on standard output", flush=True)
numbers, held = [], []

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words): pass

    def answer(self, status, kind, body, **headers):
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        last = self.headers.get("Last-Event-ID")
        if last is None:
            return self.answer(405, "text/plain", b"no stream")
        said = {"jsonrpc": "2.0", "id": int(last), "result": text("again from " + last)}
        self.answer(200, "text/event-stream", b"data: " + json.dumps(said).encode() + b"\\n\\n")

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method, headers = asked.get("method"), {}
        if STYLE == "sick":
            return self.answer(500, "text/plain", b"out of\\norder")
        if method == "server/discover":
            return self.answer(404, "text/plain", b"")
        if method != "initialize" and self.headers.get("Mcp-Session-Id") != "one":
            return self.answer(400, "text/plain", b"which session?")
        if "id" not in asked or not method:
            return self.answer(202, "text/plain", b"")
        if method == "initialize":
            version = asked["params"]["protocolVersion"]
            result = {"protocolVersion": version, "capabilities": {"tools": {}}}
            result["serverInfo"], headers = {"name": "by hand", "version": "1"}, {"Mcp_Session_Id": "one"}
        elif method == "tools/list":
            result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
        else:
            result = getattr(self, asked["params"]["name"])(asked)
            if result is None:
                return
        said = {"jsonrpc": "2.0", "id": asked["id"], "result": result}
        if STYLE == "json":
            return self.answer(200, "application/json", json.dumps(said, indent=1).encode(), **headers)
        lines = json.dumps(said, indent=1).splitlines()
        body = ": a comment\\r\\nevent: message\\r\\n" + "".join("data: %s\\r\\n" % line for line in lines) + "\\r\\n"
        self.answer(200, "text/event-stream; charset=utf-8", body.encode(), **headers)

    def count(self, asked):
        numbers.append(1)
        with open("count.txt", "w") as file:
            file.write(str(len(numbers)))
        return text(str(len(numbers)))

    def host_port(self, asked):
        try:
            socket.create_connection(("127.0.0.1", asked["params"]["arguments"]["port"]), 2).close()
        except OSError as error:
            return text(type(error).__name__)
        return text("reached")

    def refuse(self, asked): self.answer(500, "text/html", b"<h1>no</h1>")
    def garbage(self, asked): self.answer(200, "application/json", b"{]")
    def deep(self, asked): self.answer(200, "application/json", b"[" * 200000)
    def hang(self, asked):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b": still there\\n\\n")
        self.wfile.flush()
        while not self.rfile.closed and self.connection.recv(1):
            pass
    def die(self, asked):
        print("going down", file=sys.stderr, flush=True)
        os._exit(3)
    def large(self, asked): return text("x" * 2_000_000)
    def big(self, asked):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(100_000_000))
        self.end_headers()
        for _ in range(100):
            self.wfile.write(b"a" * 1_000_000)
    def forget(self, asked): self.answer(404, "text/plain", b"no such session")
    def resumed(self, asked):
        self.answer(200, "text/event-stream", b"id: %d\\nretry: 10\\ndata:\\n\\n" % asked["id"])
    def ask(self, asked):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        question = {"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": {}}
        said = {"jsonrpc": "2.0", "id": asked["id"], "result": text("asked")}
        for message in (question, said):
            self.wfile.write(b"data: " + json.dumps(message).encode() + b"\\n\\n")
        self.close_connection = True

def text(words): return {"content": [{"type": "text", "text": words}]}

if STYLE == "silent":
    print("I listen elsewhere", file=sys.stderr, flush=True)
    PORT += 1
http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
"""


def by_hand(style: str = "json") -> ServerSpec:
    return ServerSpec(
        name="web",
        argv=("python3", "-I", "-S", "-c", SERVER, str(PORT), style),
        http=HttpPort(port=PORT),
    )


def inside(spec: ServerSpec, sandbox: Sandbox, work: Callable[[ToolSession], Awaitable[None]]) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(TIMEOUT_S),
            open_session(spec, sandbox, initial_state=None, seed=0) as session,
        ):
            await work(session)

    asyncio.run(main())


@pytest.fixture(params=["bwrap", "docker"])
def sandbox(request: pytest.FixtureRequest, bwrap: Sandbox) -> Sandbox:
    if request.param == "bwrap":
        return bwrap
    request.getfixturevalue("engine")
    return get_sandbox("docker")


@pytest.mark.parametrize("style", ["json", "events"])
def test_a_hand_written_http_server_works_like_any_other(style: str, sandbox: Sandbox) -> None:
    async def work(session: ToolSession) -> None:
        assert len(session.tools) == 12
        assert [(await call(session, "count")).content for _ in range(3)] == ["1", "2", "3"]

    inside(by_hand(style), sandbox, work)


def test_each_server_has_its_own_loopback(sandbox: Sandbox) -> None:
    """Two servers on one port number count for themselves, and neither reaches what listens on the host's loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        async def work(session: ToolSession) -> None:
            async with open_session(by_hand(), sandbox, initial_state=None, seed=0) as other:
                assert (await call(session, "count")).content == "1"
                assert (await call(other, "count")).content == "1"
                assert (await call(session, "count")).content == "2"
                assert (await call(other, "host_port", port=port)).content == "ConnectionRefusedError"
                assert (await call(other, "host_port", port=PORT)).content == "reached"

        inside(by_hand(), sandbox, work)


def test_without_a_sandbox_a_server_has_no_loopback_of_its_own() -> None:
    with pytest.raises(ConfigError, match="none: a server that speaks HTTP needs a loopback of its own"):
        inside(by_hand(), get_sandbox("none"), nothing)


def test_a_server_without_a_port_may_not_open_internet_sockets(bwrap: Sandbox) -> None:
    code = "import socket; socket.socket(socket.AF_INET)"
    spec = ServerSpec(name="plain", argv=("python3", "-I", "-S", "-c", code))
    with pytest.raises(ServerDied, match="Address family not supported"):
        inside(spec, bwrap, nothing)


def processes() -> set[int]:
    return {int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()}


def test_an_http_server_can_have_files_as_state_and_be_prestarted(
    bwrap: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    spec = replace(by_hand(), warm_pool_size=1)

    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), open_warm_sandbox(bwrap) as warm:
            assert isinstance(warm, WarmSandbox)
            seen: set[int] = set()
            for number in range(3):
                await warm.wait_until_full()
                running = processes()
                async with open_session(spec, warm, initial_state=None, seed=0) as session:
                    assert (await call(session, "count")).content == "1"
                    assert number < 2 or session.process.pid in running  # started ahead once two were taken
                    seen.add(session.process.pid)
            assert len(seen) == 3
        assert "no spare" not in caplog.text
        with_files = replace(spec, state=FileState())
        async with open_session(with_files, bwrap, initial_state={"files": {}}, seed=0) as session:
            await session.update()
            before = session.world_key
            await call(session, "count")
            await session.update()
            assert session.world_key != before
            assert list((await session.state())[1]["files"]) == ["count.txt"]

    asyncio.run(main())


def test_the_bridge_answers_a_ping_and_rejects_malformed_lines(bwrap: Sandbox) -> None:
    lines = (b"{]", b"[1]", b'{"headers": {}, "message": 1}', b'{"jsonrpc": "2.0", "id": "a", "method": "ping"}')

    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), bwrap.start(bridge_launch(by_hand())) as process:
            process.stdin.write(b"".join(line + b"\n" for line in lines))
            *refused, pong = [json.loads(await process.stdout.readline()) for _ in lines]
            assert [answer["error"]["code"] for answer in refused] == [-32600] * 3
            assert pong == {"jsonrpc": "2.0", "id": "a", "result": {}}

    asyncio.run(main())


def test_a_live_episode_is_copied_with_its_files(bwrap: Sandbox) -> None:
    """The copies have servers of their own, which count anew: only files are copied."""
    spec = EnvSpec(
        name="web",
        servers=(replace(by_hand(), state=FileState()),),
        suite=Suite(name="web", version="1", tasks=(Task(id="t", prompts=("Count.",), initial_state={"files": {}}),)),
        grade=lambda task, trajectory, state: Score(value=1.0),
    )
    count = Action(tool_calls=(ToolCall(id="c", name="count"),))

    async def main() -> None:
        env = load_env(spec)
        async with asyncio.timeout(TIMEOUT_S), open_episode(env, bwrap, env.suite.tasks[0], seed=0) as episode:
            await episode.step(count)
            async with episode.fork(2) as forks:
                assert [fork.world_key for fork in forks] == [episode.world_key] * 2
                await forks[0].step(replace(count, tool_calls=(replace(count.tool_calls[0], id="d"),)))
                assert forks[0].world_key == episode.world_key

    asyncio.run(main())


def test_a_failed_call_is_an_observation_and_the_server_goes_on(bwrap: Sandbox) -> None:
    async def work(session: ToolSession) -> None:
        refused = await call(session, "refuse")
        assert (refused.is_error, refused.content) == (True, "HTTP 500 Internal Server Error: <h1>no</h1>")
        late = await call(session, "hang", timeout_s=0.3)
        assert (late.is_error, late.content) == (True, f"tool 'hang' did not answer within 0.3 s, {CALL_LIMIT}")
        large = await call(session, "large")
        assert (large.is_error, large.content) == (True, "its answer is longer than any message may be")
        assert (await call(session, "resumed")).content.startswith("again from ")
        assert (await call(session, "ask")).content == "asked"
        assert (await call(session, "count")).content == "1"

    inside(replace(by_hand(), limits=Limits(line_bytes=1_000_000)), bwrap, work)


@pytest.mark.parametrize(
    ("tool", "kind", "said"),
    [
        ("die", ServerDied, "server 'web': tool 'die': the server ended (exit status 3); its last words: hello"),
        ("garbage", ProtocolError, "server 'web': tool 'garbage': tools/call: a message is not JSON"),
        ("deep", ProtocolError, "server 'web': tool 'deep': tools/call: a message is nested too deep"),
        ("big", ProtocolError, "server 'web': tool 'big': tools/call: an answer of more than 4000000 bytes"),
        ("forget", ServerDied, "server 'web': tool 'forget': the server has forgotten its session (HTTP 404)"),
    ],
)
def test_a_server_that_breaks_is_lost_with_one_error(
    tool: str, kind: type[EnvInfraError], said: str, bwrap: Sandbox
) -> None:
    async def work(session: ToolSession) -> None:
        with pytest.raises(EnvInfraError) as caught:
            await call(session, tool)
        assert (type(caught.value), said in str(caught.value)) == (kind, True), caught.value
        with pytest.raises(EnvInfraError):
            await call(session, "count")

    inside(replace(by_hand(), limits=Limits(line_bytes=1_000_000)), bwrap, work)


def test_a_server_that_opens_another_port_is_told_apart_from_one_that_dies(bwrap: Sandbox) -> None:
    with pytest.raises(ServerTimeout) as caught:
        inside(replace(by_hand("silent"), start_timeout_s=10.0), bwrap, nothing)
    assert f"server 'web': handshake: the server did not open port {PORT} within 8 s; its last" in str(caught.value)
    assert str(caught.value).endswith("I listen elsewhere")
    spec = replace(by_hand(), argv=("python3", "-c", "import sys; sys.exit('no API key')"))
    with pytest.raises(ServerDied) as died:
        inside(spec, bwrap, nothing)
    assert str(died.value) == "server 'web': start: the server ended (exit status 1); its last words: no API key"


def test_a_server_that_answers_500_is_quoted(bwrap: Sandbox) -> None:
    with pytest.raises(EnvInfraError) as caught:
        inside(by_hand("sick"), bwrap, nothing)
    assert "server 'web': handshake: HTTP 500 Internal Server Error: out of\norder" in str(caught.value)


# ------------------------------------------------------------------------------------------------------- real servers

SDK_SERVER = """
import sys
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("sdk", log_level="ERROR")
seen = []

@server.tool()
def note(text: str) -> str:
    seen.append(text)
    return f"{len(seen)} notes"

@server.tool()
async def ask(ctx: Context) -> str:
    return str(await ctx.session.list_roots())

json_response, stateless = (word == "True" for word in sys.argv[1:])
server.run("streamable-http", host="127.0.0.1", port=8000, json_response=json_response, stateless_http=stateless)
"""


@pytest.mark.parametrize(
    ("wire", "json_response", "stateless"),
    [("legacy", False, False), ("auto", True, False), ("2026-07-28", False, True)],
)
def test_servers_of_the_sdk_in_every_style(
    wire: str, json_response: bool, stateless: bool, bwrap: Sandbox, tmp_path: Path
) -> None:
    """The SDK is the one that the locked server `time` was installed with."""
    (tmp_path / "server.py").write_text(SDK_SERVER)
    tmp_path.chmod(0o755)  # under root, servers are another user
    time = locked_server("time", lock=LOCK)
    spec = replace(
        time,
        argv=("/srv/server/venv/bin/python", "-s", "-B", "/srv/sdk/server.py", str(json_response), str(stateless)),
        mounts=(*time.mounts, Mount(source=tmp_path, target=PurePosixPath("/srv/sdk"))),
        http=HttpPort(port=8000),
        wire=wire,  # type: ignore[arg-type]
        tools_sha256=None,
    )

    async def work(session: ToolSession) -> None:
        assert [tool.name for tool in session.tools] == ["note", "ask"]
        assert [(await call(session, "note", text="a")).content for _ in range(2)] == ["1 notes", "2 notes"]
        assert (await call(session, "note", text=3)).is_error
        assert (await call(session, "ask")).is_error

    inside(spec, bwrap, work)
