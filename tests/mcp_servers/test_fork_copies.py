"""Live copies of forked servers: independent, of the same state, refused with a reason if they would share anything."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import pytest
from fork_sessions import STARTED, open_code_runner, process_of, write
from session_calls import run

from gymcp.errors import CannotFork, ServerDied
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.snapshots.process_fork import fork_session


def test_copies_go_on_independently_from_the_same_state(bwrap: Bubblewrap) -> None:
    draw = "import random; out = random.random(), random.getrandbits(64), list({'a', 'b', 'c'}), open('/tmp/f').read()"

    async def tree() -> None:
        async with open_warm_sandbox(bwrap) as warm, open_code_runner(warm) as opened:
            await write(opened, "shared")
            await run(opened, "import random; random.seed(3); open('/tmp/f', 'w').write('text'); self._kept.append(3)")
            copies = await fork_session(opened, 3)
            async with contextlib.AsyncExitStack() as stack:
                branches = [await stack.enter_async_context(copy.open()) for copy in copies]
                assert {branch.world_key for branch in branches} == {opened.world_key}
                assert {str(await branch.state()) for branch in branches} == {str(await opened.state())}
                everyone = [opened, *branches]
                assert len({await run(one, draw) for one in everyone}) == 1
                assert {await run(one, "out = self._kept") for one in everyone} == {"[3]"}
                for number, one in enumerate(everyone):
                    await write(one, f"note {number}")
                    await run(one, f"open('/tmp/f', 'w').write('{number}')")
                notes = [await run(one, "out = self.note, open('/tmp/f').read()") for one in everyone]
                assert notes == [f"('note {number}', '{number}')" for number in range(4)]

    asyncio.run(tree())


def test_copies_outlive_their_origin_and_can_be_copied(bwrap: Bubblewrap) -> None:
    async def tree() -> list[str]:
        async with open_warm_sandbox(bwrap) as warm:
            async with open_code_runner(warm) as opened:
                first, second = await fork_session(opened, 2)
            await second.discard()
            async with first.open() as branch:
                await write(branch, "deeper")
                (third,) = await fork_session(branch, 1)
            async with third.open() as branch:
                return [await run(branch, "out = self.note"), branch.world_key]

    note, key = asyncio.run(tree())
    assert note == "deeper"
    assert len(key) == 64


def test_a_killed_copy_ends_no_other_server(bwrap: Bubblewrap) -> None:
    async def tree() -> list[str]:
        async with open_warm_sandbox(bwrap) as warm, open_code_runner(warm) as opened:
            first, second = await fork_session(opened, 2)
            async with first.open() as one, second.open() as two:
                os.kill(process_of(one).pid, signal.SIGKILL)
                await process_of(one).wait()
                with pytest.raises(ServerDied):
                    await write(one, "x")
                return [await write(two, "two"), await write(opened, "origin")]

    assert asyncio.run(tree()) == ["two", "origin"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("self._kept.append(open('/tmp/f', 'w'))", "open files"),
        ("import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()", "2 threads"),
        ("import mmap; self._kept.append(mmap.mmap(-1, 4096))", "memory that its copies would share"),
        (
            "import mmap\nwith open('/workspace/f', 'wb+') as file:\n"
            "    file.write(b'x'); file.flush(); self._kept.append(mmap.mmap(file.fileno(), 1))",
            "memory that its copies would share \\(/workspace/f\\)",
        ),
        (
            "import mmap\nwith open('/tmp/f', 'wb') as file: file.write(b'x')\n"
            "with open('/tmp/f', 'rb') as file: self._kept.append(mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ))",
            "memory that its copies would share \\(/tmp/f\\)",
        ),
    ],
)
def test_an_uncopyable_server_says_why_and_goes_on(bwrap: Bubblewrap, code: str, said: str) -> None:
    async def episode() -> str:
        async with open_warm_sandbox(bwrap) as warm, open_code_runner(warm) as opened:
            await run(opened, code)
            with pytest.raises(CannotFork, match=said):
                await fork_session(opened, 2)
            return await write(opened, "on")

    assert asyncio.run(episode()) == "on"


def test_started_server_cannot_be_copied(bwrap: Bubblewrap) -> None:
    async def episode() -> None:
        async with open_code_runner(bwrap, STARTED) as opened:
            await fork_session(opened, 1)

    with pytest.raises(CannotFork, match="replay"):
        asyncio.run(episode())
