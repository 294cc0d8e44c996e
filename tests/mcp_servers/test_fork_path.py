"""Servers of a fork server: the same answers as started ones, nothing carried over, clean ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from code_runner import CodeRunner, Threaded
from fork_sessions import FORKED, STARTED, open_code_runner, process_of, write
from session_calls import run

from gymcp.errors import ServerDied
from gymcp.mcp_servers.forkserver.process import ForkedProcess
from gymcp.mcp_servers.forkserver.warm_sandbox import WarmSandbox, open_warm_sandbox
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import Launch, Limits, Sandbox
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.snapshots.process_fork import fork_session
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import ToolCall


def test_forked_server_answers_as_a_started_one(bwrap: Bubblewrap) -> None:
    async def record(sandbox: Sandbox, spec: ServerSpec) -> list[object]:
        async with open_code_runner(sandbox, spec) as opened:
            first = opened.world_key
            look = "import os, sys; out = os.getcwd(), os.getpid(), sorted(os.environ.items()), sys.path, sys.argv"
            return [first, await write(opened, "a"), opened.world_key, opened.tools, await run(opened, look)]

    async def both() -> tuple[list[object], list[object]]:
        async with open_warm_sandbox(bwrap) as warm:
            return await record(warm, FORKED), await record(bwrap, STARTED)

    one, other = asyncio.run(both())
    assert one == other


def test_nothing_of_an_episode_reaches_the_next(bwrap: Bubblewrap) -> None:
    leave = (
        "import os, sys; seen.append('x'); os.environ['LEFT'] = 'x'; sys.modules['left'] = sys\n"
        "for path in ('/tmp/left', '/workspace/left', '/dev/shm/left'): open(path, 'w').close()"
    )
    look = (
        "import os, sys\nout = (seen, os.environ.get('LEFT'), 'left' in sys.modules, os.listdir('/tmp'), "
        "os.listdir('/workspace'), os.listdir('/dev/shm'), self.note)"
    )

    async def episodes() -> tuple[str, str]:
        async with open_warm_sandbox(bwrap) as warm:
            async with open_code_runner(warm) as opened:
                await run(opened, leave)
                async with open_code_runner(warm) as beside:
                    during = await run(beside, look)
            async with open_code_runner(warm) as opened:
                return during, await run(opened, look)

    assert asyncio.run(episodes()) == ("([], None, False, [], [], [], 'first')",) * 2


def test_killed_server_takes_only_its_own_episode(bwrap: Bubblewrap) -> None:
    async def episodes() -> str:
        async with open_warm_sandbox(bwrap) as warm, open_code_runner(warm) as one, open_code_runner(warm) as other:
            os.kill(process_of(one).pid, signal.SIGKILL)
            assert await process_of(one).wait() == -signal.SIGKILL
            with pytest.raises(ServerDied, match="the server ended"):
                await write(one, "x")
            async with open_code_runner(warm) as later:
                assert await write(later, "y") == "y"
            return await write(other, "z")

    assert asyncio.run(episodes()) == "z"


def test_server_that_leaves_by_itself_has_died(bwrap: Bubblewrap) -> None:
    async def episode() -> None:
        async with open_warm_sandbox(bwrap) as warm, open_code_runner(warm) as opened:
            await run(opened, "import os; os._exit(7)")

    with pytest.raises(ServerDied, match="exit status 7"):
        asyncio.run(episode())


def test_server_that_leaves_children_behind_has_died_too(bwrap: Bubblewrap) -> None:
    async def episode() -> None:
        async with open_warm_sandbox(bwrap) as warm, open_code_runner(warm) as opened:
            await run(opened, "import os, signal\nif os.fork() == 0: signal.pause()\nos._exit(5)")

    with pytest.raises(ServerDied, match="exit status 5"):
        asyncio.run(episode())


def test_killed_template_ends_its_episodes_and_is_replaced(bwrap: Bubblewrap) -> None:
    async def episodes() -> str:
        async with open_warm_sandbox(bwrap) as warm:
            assert isinstance(warm, WarmSandbox)
            async with open_code_runner(warm) as opened:
                fork_server = warm.fork_servers[0]
                os.kill(fork_server.process.pid, signal.SIGKILL)
                await asyncio.gather(fork_server.gone.wait(), process_of(opened).wait())
                with pytest.raises(ServerDied):
                    await write(opened, "x")
            async with open_code_runner(warm) as opened:
                assert warm.fork_servers[0] is not fork_server
                return await write(opened, "y")

    assert asyncio.run(episodes()) == "y"


def test_more_servers_live_than_one_servers_memory_would_hold(bwrap: Bubblewrap) -> None:
    """A server takes about a megabyte in the cgroup of its fork server before it joins its own."""
    count = 64

    async def live() -> list[str]:
        spec = replace(FORKED, limits=Limits(memory_mb=40))
        async with open_warm_sandbox(bwrap) as warm, contextlib.AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(open_code_runner(warm, spec)) for _ in range(count)]
            assert all(isinstance(server.process, ForkedProcess) for server in servers)
            return [await write(server, "a") for server in servers]

    assert len(asyncio.run(live())) == count


@pytest.mark.parametrize(
    ("limits", "code", "said"),
    [
        (Limits(memory_mb=80), "import signal; kept = bytearray(b'x') * 300_000_000; signal.pause()", "memory"),
        (
            Limits(processes=5),
            "import os, signal\nfor _ in range(20):\n    if os.fork() == 0: signal.pause()\nsignal.pause()",
            "processes",
        ),
    ],
)
def test_limits_hold_for_each_server(limited: Bubblewrap, limits: Limits, code: str, said: str) -> None:
    spec = native_server("code_runner", CodeRunner, start="fork", limits=limits)

    async def episodes() -> str:
        async with (
            open_warm_sandbox(limited) as warm,
            open_code_runner(warm, spec) as greedy,
            open_code_runner(warm, spec) as beside,
        ):
            call = greedy.call_tool(ToolCall(id="", name="run", arguments={}), {"code": code}, timeout_s=20)
            (ended,) = await asyncio.gather(call, return_exceptions=True)
            # the server gets an error and lives if the kernel refuses a fork
            assert "BlockingIOError" in str(ended) or (isinstance(ended, ServerDied) and said in str(ended)), ended
            return await write(beside, "unharmed")

    assert asyncio.run(episodes()) == "unharmed"


def test_program_with_threads_is_started_instead(bwrap: Bubblewrap, caplog: pytest.LogCaptureFixture) -> None:
    spec = replace(native_server("threaded", Threaded, start="fork"), start_timeout_s=20.0)

    async def episode() -> bool:
        async with open_warm_sandbox(bwrap) as warm, open_session(spec, warm, initial_state=None, seed=0) as opened:
            return isinstance(opened.process, ForkedProcess)

    assert asyncio.run(episode()) is False
    assert "started a thread when it was imported" in caplog.text


@pytest.mark.parametrize("shared", ["network", "workspace"])
def test_a_program_with_a_shared_network_or_folder_is_started_instead(
    bwrap: Bubblewrap, shared: str, tmp_path: Path
) -> None:
    launch = Launch(argv=FORKED.argv, env=FORKED.env, mounts=FORKED.mounts, fork=FORKED.fork)
    other = replace(launch, network=True) if shared == "network" else replace(launch, workspace=tmp_path)

    async def starts() -> list[bool]:
        async with open_warm_sandbox(bwrap) as warm, warm.start(launch) as one, warm.start(other) as two:
            return [isinstance(process, ForkedProcess) for process in (one, two)]

    assert asyncio.run(starts()) == [True, False]


HARNESS = """
import asyncio, sys
sys.path[:0] = {folders!r}
from fork_sessions import open_code_runner, process_of
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.snapshots.process_fork import fork_session
async def main():
    async with open_warm_sandbox(Bubblewrap()) as warm, open_code_runner(warm) as opened:
        copies = await fork_session(opened, 2)
        own = process_of(opened).pid, warm.fork_servers[0].process.pid
        print(*own, *(copy._process.pid for copy in copies), flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


def test_killed_harness_leaves_no_process() -> None:
    script = HARNESS.format(folders=[str(folder) for folder in Path(__file__).parents[:2]])
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as harness:
        assert harness.stdout is not None
        handles = [os.pidfd_open(int(pid)) for pid in harness.stdout.readline().split()]
        harness.kill()
        for handle in handles:
            assert select.select([handle], [], [], 20.0)[0], "still there"
            os.close(handle)
    assert len(handles) == 4


IN_FLIGHT = """
import os, socket
null = os.open('/dev/null', os.O_RDONLY)
count = 0
try:
    while count < 5000:
        pair = socket.socketpair(); self._kept.append(pair)
        socket.send_fds(pair[0], [b'x'], [null] * 250)
        count += 250
except OSError as error:
    count = count, error.strerror
os.close(null)
out = count
"""


def test_descriptors_in_flight_keep_no_other_server_from_starting(bwrap: Bubblewrap) -> None:
    """The kernel counts descriptors in flight by user, and lets a process send while they are fewer than its limit.

    Control: a process with the limit of a server can send none meanwhile, and neither could a fork server with it.
    """

    async def episodes() -> tuple[str, str, str]:
        async with open_warm_sandbox(bwrap) as warm, open_code_runner(warm) as greedy:
            said = await run(greedy, IN_FLIGHT)
            async with open_code_runner(warm) as beside:
                (copy,) = await fork_session(beside, 1)
                async with copy.open() as branch:
                    return said, await write(branch, "unharmed"), await run(branch, IN_FLIGHT)

    full = "Too many references: cannot splice"
    assert asyncio.run(episodes()) == (f"(1250, '{full}')", "unharmed", f"(0, '{full}')")


def test_a_servers_open_files_are_its_own_limit(bwrap: Bubblewrap) -> None:
    spec = native_server("code_runner", CodeRunner, start="fork", limits=Limits(open_files=99))

    async def episode() -> str:
        async with open_warm_sandbox(bwrap) as warm, open_code_runner(warm, spec) as opened:
            return await run(opened, "import resource; out = resource.getrlimit(resource.RLIMIT_NOFILE)")

    assert asyncio.run(episode()) == "(99, 99)"


def test_no_descriptor_is_left_open(bwrap: Bubblewrap) -> None:
    async def episodes() -> None:
        async with open_warm_sandbox(bwrap) as warm, open_code_runner(warm) as opened:
            first, *_ = await fork_session(opened, 3)
            async with first.open():
                pass

    asyncio.run(episodes())  # caches of the process are filled
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    asyncio.run(episodes())
    assert set(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208 - fewer: what other tests kept goes in its time


def test_an_interrupted_start_is_no_failure(bwrap: Bubblewrap, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start interrupted while it connects closed a descriptor twice; its episode counted as the harness's failure."""
    connect = asyncio.BaseEventLoop.connect_read_pipe

    async def interrupt(loop: asyncio.BaseEventLoop, protocol_factory: Any, pipe: Any) -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return await connect(loop, protocol_factory, pipe)

    async def start(warm: Sandbox) -> None:
        async with open_code_runner(warm):
            pass

    async def interrupted_start() -> None:
        async with open_warm_sandbox(bwrap) as warm:
            await start(warm)
            with monkeypatch.context() as patches:
                patches.setattr(asyncio.BaseEventLoop, "connect_read_pipe", interrupt)
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.create_task(start(warm))
            await start(warm)

    asyncio.run(interrupted_start())
