"""A harness that plays the attempts on start paths, one path after the other, with an honest episode beside them.

Arguments: the start paths with commas between them, a folder of its own, the token, a set-id program or a dash. It
prints one JSON object, start path -> what was said there. A process of its own, so that it can be played as an ordinary
user too; one for several paths, because it takes seconds to start.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, TextIO

import inside_files
import inside_kernel
import inside_mounts
import inside_network
import inside_processes
from expected import DATABASES, ENDLESS, GREED, LIES, LISTS, REPLIES, WORLDS
from inside import ATTEMPTS, Given
from naive import naive_client, naive_list, naive_reply, naive_world, naively_left_daemon
from rogue_greed import HELD_S
from start_paths import NEW_WIRE, START_PATHS, UNCONFINED, StartPath, Wire
from surroundings import surroundings

from gymcp.errors import GymcpError
from gymcp.mcp_servers.forkserver.warm_sandbox import WarmSandbox
from gymcp.mcp_servers.sandbox import Limits, Mount, Sandbox
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.spec import DigestLimits, FileState, ServerSpec
from gymcp.types import Json, ToolCall

SET_ID = PurePosixPath("/srv/set-id")
PLAYED = (inside_files, inside_mounts, inside_kernel, inside_network, inside_processes)
"""Imported for their entries in the table."""
CALL_S = 120.0
AT_ONCE = 6
FLOODS = 3
"""Servers that make the attempts of REPLIES, each its part."""
AMPLE = Limits(memory_mb=4_000, processes=1_000, disk_mb=2_000_000, open_files=10_000)
"""For controls: they stop by themselves."""
SMALL = DigestLimits(total_bytes=400_000_000, entries=10_000, depth=64, seconds=3.0)
SHORT = replace(SMALL, seconds=0.5)
ASK_AGAIN_S = 0.3
"""Seconds between two calls of the honest episode."""
Said = list[Any]


class Play:
    """Settings and targets of one run of all attempts."""

    def __init__(self, path: StartPath, sandbox: Sandbox, given: Given, set_id: Path | None) -> None:
        self.path, self.sandbox, self.given = path, sandbox, given
        self.control = path is UNCONFINED
        self.user = "user" if os.getuid() else "root"
        self.mounts = (Mount(source=set_id, target=SET_ID),) if set_id is not None else ()
        given["set_id"] = str(set_id if self.control else SET_ID)
        self.at_once = asyncio.Semaphore(AT_ONCE)

    @contextlib.asynccontextmanager
    async def session(self, spec: ServerSpec, state: Json = None) -> AsyncIterator[ToolSession]:
        async with self.path.session(spec, self.sandbox, state) as session:
            yield session

    async def each(self, names: Any, act: Callable[[str], Awaitable[Said]]) -> dict[str, Said]:
        """Each with a session of its own."""

        async def one(name: str) -> tuple[str, Said]:
            async with self.at_once:
                return name, await act(name)

        return dict(await asyncio.gather(*(one(name) for name in names)))

    async def in_turn(
        self, names: Any, spec: ServerSpec, state: Json, act: Callable[[ToolSession, str], Awaitable[tuple[str, bool]]]
    ) -> dict[str, Said]:
        """Play one after the other on one server, and on a new one if it was lost: `act` returns True if it was not."""
        found: dict[str, Said] = {}
        waiting = list(names)
        while waiting:
            async with self.at_once, self.session(spec, state) as session:
                alive = True
                while waiting and alive:
                    name = waiting.pop(0)
                    said, alive = await act(session, name)
                    found[name] = ["control" if self.control else "own session", said]
        return found

    def select(self, names: Iterable[str], wire: Wire) -> list[str]:
        """The attempts that are made on this path as this user."""
        if wire == NEW_WIRE:
            return [name for name in names if self.path.plays_on_new_wire(name)]
        return [name for name in names if self.path.plays(name, self.user)]


async def ask_tool(session: ToolSession, tool: str, **arguments: Json) -> str:
    """The answer to a call, or the harness's error."""
    try:
        result = await session.call_tool(ToolCall(id="c", name=tool), arguments, timeout_s=CALL_S)
    except GymcpError as error:
        return f"{type(error).__name__}: {error}"
    return f"{'failed' if result.is_error else 'result'}: {result.content}"


async def and_then(session: ToolSession, said: str) -> str:
    """The outcome, with that of an honest call if the server is still there."""
    if said.startswith(("result", "failed")):
        return f"{said}; then: {await ask_tool(session, 'echo', text='honest')}"
    return said


# ----------------------------------------------------------------------------------------------- what is played inside


async def play_inside(play: Play) -> dict[str, Said]:
    spec = play.path.rogue(mounts=play.mounts)
    given = {**play.given, "name": f"attempt-{play.given['token']}"}
    given["walks_all"] = play.path.plays_all(play.user)
    can = [name for name, what in ATTEMPTS.items() if not play.control or what.control in ("any", play.user)]
    names = [name for name in can if name != "signal_everyone"]
    async with play.session(spec) as session:
        answer = await ask_tool(session, "play", names=names, given=given)
        found: dict[str, Said] = json.loads(answer.removeprefix("result: "))
        found["signal_everyone"] = await _signal_everyone(session, given)
    return found


async def _signal_everyone(session: ToolSession, given: Given) -> Said:
    """Sent to everyone is only what the harness receives. One run at a time: a control reaches the others, too."""
    with _lock_file() as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        got: list[int] = []
        signal.signal(signal.SIGURG, lambda *_: got.append(1))
        answer = await ask_tool(session, "play", names=["signal_everyone"], given=given)
        await asyncio.sleep(0)
        signal.signal(signal.SIGURG, signal.SIG_DFL)
    achieved, said = json.loads(answer.removeprefix("result: "))["signal_everyone"]
    return [achieved if not achieved else bool(got), f"{said}; the harness received {len(got)}"]


def _lock_file() -> TextIO:
    """A file that every run on the machine can open, to lock it."""
    return Path(__file__).open()


# ------------------------------------------------------------------------------------------ what needs its own session


async def play_greed(play: Play) -> dict[str, Said]:
    daemon = f"d-{play.given['token'][:12]}"

    def make_arguments(name: str) -> dict[str, Json]:
        return {
            "name": f"{play.given['token']}-{name}",
            # the watchdog ends these, and looks later on a busy machine; the others need less time
            "hold_s": 0.0 if play.control else 30.0,
            "spun_s": 0.25 if play.control else 12.0,
            "folder": f"/dev/shm/{play.given['token']}" if play.control else "inodes",
            "daemon": daemon,
        }

    async def one(name: str) -> Said:
        if name == "leave_a_daemon" and play.control:
            return ["control", await naively_left_daemon(daemon, HELD_S)]
        spec = play.path.rogue(limits=AMPLE if play.control else GREED[name].limits)
        if GREED[name].on_disk and play.path.has_worlds:
            spec = replace(spec, state=FileState(limits=SMALL))
        async with play.session(spec, {} if isinstance(spec.state, FileState) else None) as session:
            said = await ask_tool(session, "rogue_greed", act=name, **make_arguments(name))
            before = name == "leave_a_daemon" and bool(processes_named(daemon))
        if name == "leave_a_daemon":
            said += f"; alive before the end: {before}, after: {bool(processes_named(daemon))}"
        return ["control" if play.control else "own session", said]

    async def act(session: ToolSession, name: str) -> tuple[str, bool]:
        said = await ask_tool(session, "rogue_greed", act=name, **make_arguments(name))
        if name == "flood_of_errors":
            said = await and_then(session, said)
        return said, said.startswith("result")

    # the bombs come last: forks that were refused count as long as the server lives
    shared = [name for name in reversed(GREED) if GREED[name].gives_back]
    spec = play.path.rogue(limits=AMPLE if play.control else GREED[shared[0]].limits)
    each, in_turn = await asyncio.gather(
        play.each([name for name in GREED if name not in shared], one), play.in_turn(shared, spec, None, act)
    )
    return each | in_turn


def processes_named(name: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and (folder / "comm").read_text().strip() == name:
                found.append(int(folder.name))
    return found


async def play_replies(play: Play, wire: Wire = "legacy") -> dict[str, Said]:
    if play.control:
        return {name: ["control", await naive_reply(name)] for name in REPLIES}

    async def act(session: ToolSession, name: str) -> tuple[str, bool]:
        await ask_tool(session, "echo", text="before")
        said = await and_then(session, await ask_tool(session, "rogue_replies", act=name))
        return said, said.endswith("then: result: honest")

    # floods wait for their share of the loop: servers beside each other do not wait for each other
    spec, names = play.path.rogue(limits=Limits(line_bytes=4_000_000), wire=wire), play.select(REPLIES, wire)
    parts = [play.in_turn(names[first::FLOODS], spec, None, act) for first in range(FLOODS)]
    return {name: said for part in await asyncio.gather(*parts) for name, said in part.items()}


async def play_lists(play: Play, wire: Wire = "legacy") -> dict[str, Said]:
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{}")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/schema.json"
    async with server:

        async def one(name: str) -> Said:
            if play.control:
                return ["control", await naive_list(name, address, asked)]
            try:
                spec = play.path.rogue(env={"ROGUE_LIST": name, "ROGUE_ADDRESS": address}, wire=wire)
                async with play.session(spec) as session:
                    (tool,) = session.tools
                    about = " ".join(
                        filter(None, [tool.description, *(str(p.get("description", "")) for p in _properties(tool))])
                    )
                    await ask_tool(session, tool.name, text="a" * 40 + "!")
                    return ["own session", f"tools: {f'{tool.name} {about}'.strip()}; asked for: {len(asked)}"]
            except GymcpError as error:
                return ["own session", f"{type(error).__name__}: {error}"]

        return await play.each(play.select(LISTS, wire), one)


def _properties(tool: Any) -> list[dict[str, Any]]:
    return list(tool.input_schema.get("properties", {}).values())


async def play_lies(play: Play) -> dict[str, Said]:
    """The harness's word against the server's: unconfined it would be the server's."""

    async def one(name: str) -> Said:
        if play.control:
            async with naive_client(ROGUE_LIE=name) as (client, _):
                setup = (await client.ask("gymcp/setup", {"initialState": {}, "seed": 0}))["result"]
                return ["control", f"it says {setup['stateKey']}, {setup.get('toolsKey')}, whatever the truth is"]
        try:
            spec = replace(play.path.rogue(env={"ROGUE_LIE": name}), state="declared")
            async with play.session(spec, {}) as session:
                key, _ = await session.state()
                return ["own session", f"taken: {key}"]
        except GymcpError as error:
            return ["own session", f"{type(error).__name__}: {error}"]

    return await play.each(LIES, one)


async def play_worlds(play: Play) -> dict[str, Said]:
    """Crafted files for the digester."""
    if not play.path.has_worlds:
        return {}

    async def act(session: ToolSession, name: str) -> tuple[str, bool]:
        made = await ask_tool(session, "rogue_files", act=name, **_places(play.given))
        if made not in ("result: made", "result: racing"):
            return made, False
        told = await _judge_world(play, session)
        await ask_tool(session, "rogue_files", act="clear")
        return told, not ("memory:" in told or "helper" in told)

    found: dict[str, Said] = {}
    for state, names in (
        (FileState(limits=SMALL), [name for name in WORLDS if name not in DATABASES]),
        (FileState(kind="sqlite", path="db", limits=SMALL), [name for name in DATABASES if name != ENDLESS]),
        (FileState(kind="sqlite", path="db", limits=SHORT), [ENDLESS]),
    ):
        spec = replace(play.path.rogue(limits=Limits(memory_mb=1_000, disk_mb=2_000)), state=state)
        found |= await play.in_turn(names, spec, {}, act)
    return found


async def _judge_world(play: Play, session: ToolSession) -> str:
    """The harness's verdict on the present world."""
    assert session.workspace is not None
    if play.control:
        return await naive_world(session.workspace.folder, play.given["token"])
    told = await _read_key(session, play.given["token"])
    raised = session.workspace.upper_folder / "raised"
    if raised.exists() and raised.stat().st_uid == os.getuid() and raised.stat().st_mode & 0o6000:
        return "left a set-id file of the harness's user"
    return told


def _places(given: Given) -> dict[str, Json]:
    return {"secret": given["secret"], "secret_database": given["secret_database"]}


async def _read_key(session: ToolSession, token: str) -> str:
    try:
        for _ in range(3):
            await session.update()
            key, state = await session.state()
            if token in json.dumps(state):
                return "the state has the token in it"
    except GymcpError as error:
        return f"{type(error).__name__}: {error}"
    return f"key {key}"


# ----------------------------------------------------------------------------------------------------- beside all that


async def honest_episode(play: Play, done: asyncio.Event) -> int:
    """Ask again and again until the others are done. Fails if an answer is not its own."""
    count = 0
    async with play.session(play.path.rogue()) as session:
        while not done.is_set():
            count += 1
            said = await ask_tool(session, "echo", text=f"honest {count}")
            if said != f"result: honest {count}":
                raise AssertionError(f"the honest episode was answered: {said}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), ASK_AGAIN_S)
    return count


async def play_all(path: StartPath, folder: Path, token: str, set_id: Path | None) -> dict[str, Any]:
    async with surroundings(token, folder) as given, path.opened() as sandbox:
        play = Play(path, sandbox, given, set_id)
        done = asyncio.Event()
        honest = asyncio.create_task(honest_episode(play, done))
        found: dict[str, Said] = {}
        on_new_wire: dict[str, Said] = {}
        number = ""
        try:
            async with play.session(path.rogue(token)) as other:
                await ask_tool(other, "settle", token=token)
                given["other_pid"] = other.process.pid
                found |= await play_inside(play)
            if not (play.control and play.user == "root"):  # root can do all that an ordinary user can
                parts = (play_greed, play_replies, play_lists, play_lies, play_worlds)
                for told in await asyncio.gather(*(part(play) for part in parts)):
                    found |= told
            if path.has_new_wire:
                on_new_wire = await play_replies(play, NEW_WIRE) | await play_lists(play, NEW_WIRE)
                async with play.session(path.rogue(wire=NEW_WIRE)) as other:
                    number = await ask_tool(other, "number")
        finally:
            done.set()
            answers = await honest
        said: dict[str, Any] = {"attempts": found, "on_new_wire": on_new_wire, "number_on_new_wire": number}
        return {**said, "honest_answers": answers, **_describe_forks(sandbox)}


def _describe_forks(sandbox: Sandbox) -> dict[str, Any]:
    """Number of servers' templates, and the programs that were started although they could have been forked.

    The digest helper has one on every path, and is what may read all.
    """
    if not isinstance(sandbox, WarmSandbox):
        return {"templates": 0, "refused": []}
    servers = [key for key in sandbox._fork_servers if "reads_all=True" not in key]
    return {"templates": len(servers), "refused": list(sandbox.refused.values())}


def main() -> None:
    names, place, token, set_id = sys.argv[1:]
    found = {}
    for name in names.split(","):
        folder = Path(place, name)
        folder.mkdir()
        path = UNCONFINED if name == "none" else START_PATHS[name]
        found[name] = asyncio.run(play_all(path, folder, token, None if set_id == "-" else Path(set_id)))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
