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
            "import mmap, os; os.register_at_fork(before=lambda: self._kept.append(mmap.mmap(-1, 4096)))",
            "memory that its copies would share",
        ),
        ("import os; os.chmod('/tmp', 0)", "has closed /tmp to itself"),
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


MAKE_FILES = """
import os
for folder in ("/tmp", "/workspace", "/dev/shm"):
    os.mkdir(f"{folder}/below")
    os.chdir(f"{folder}/below")
    for name in ("b", "c", "a"):
        open(name, "w").write(name)
    os.link("a", "../a2")
    os.link("a", "a3")
    os.symlink("../a2", "link")
    os.mkfifo("fifo")
    os.mknod("socket", 0o140600)
    with open("sparse", "wb") as file:
        file.seek(1_000_000)
        file.write(b"x")
        file.truncate(2_000_000)
    for path in ("b", "."):
        try: os.setxattr(path, "user.note", b"kept")
        except OSError: pass  # this kernel has none here
    os.chmod("c", 0)
    os.mkdir("closed")
    open("closed/inside", "w").write("text")
    os.chmod("closed", 0)
    os.chmod(".", 0o1750)
    os.utime("b", (1, 2))
    os.utime(".", (3, 4))
"""
LIST_FILES = """
import os
out = [os.getcwd()]
for top in ("/tmp", "/workspace", "/dev/shm"):
    for folder, names, files in os.walk(top):
        for name in (".", *names, *files):
            at = os.lstat(path := f"{folder}/{name}")
            kept = (os.listxattr(path, follow_symlinks=False), at.st_mode, at.st_nlink, at.st_size, at.st_blocks)
            out.append((path, *kept, at.st_mtime_ns, os.listdir(path) if path.endswith("below") else None))
    out.append(open(f"{top}/below/sparse", "rb").read().count(b"x"))
    open(f"{top}/a2", "a").write("more")
    out.append(open(f"{top}/below/a3").read())
    os.chmod(f"{top}/below/closed", 0o700)
    out.append(open(f"{top}/below/closed/inside").read())
"""


def test_a_copy_has_its_originals_files_with_all_that_a_tool_can_see(bwrap: Bubblewrap) -> None:
    async def episode() -> tuple[str, str]:
        async with open_warm_sandbox(bwrap) as warm, open_code_runner(warm) as opened:
            await run(opened, MAKE_FILES)
            (copy,) = await fork_session(opened, 1)
            async with copy.open() as branch:
                return await run(opened, LIST_FILES), await run(branch, LIST_FILES)

    original, copied = asyncio.run(episode())
    assert copied == original
    assert "amore" in original
    assert "('/workspace/below/fifo', [], 4516, 1, 0, 0, " in original


def test_a_copy_has_its_originals_files_as_they_were_when_it_was_made(bwrap: Bubblewrap) -> None:
    """The original goes on at once, and the copy does not see what it does."""
    write = "for number in range(3000): open(f'/tmp/{number}', 'w').write('TEXT')"
    look = "import os; out = len(os.listdir('/tmp')), {open(f'/tmp/{name}').read() for name in os.listdir('/tmp')}"

    async def episode() -> str:
        async with open_warm_sandbox(bwrap) as warm, open_code_runner(warm) as opened:
            await run(opened, write.replace("TEXT", "before"))
            (copy,) = await fork_session(opened, 1)
            await run(opened, write.replace("TEXT", "after"))
            async with copy.open() as branch:
                return await run(branch, look)

    assert asyncio.run(episode()) == "(3000, {'before'})"


def test_started_server_cannot_be_copied(bwrap: Bubblewrap) -> None:
    async def episode() -> None:
        async with open_code_runner(bwrap, STARTED) as opened:
            await fork_session(opened, 1)

    with pytest.raises(CannotFork, match="replay"):
        asyncio.run(episode())
