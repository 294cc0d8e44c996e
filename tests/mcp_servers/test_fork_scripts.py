"""Third-party Python servers, imported once and forked: the same server, nothing carried over, or started instead."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest
from script_sessions import HARMLESS, Make, is_forked, make, run, session

from gymcp.envs.catalog import git, time
from gymcp.envs.spec import EnvSpec, load_env
from gymcp.envs.worlds.world import EpisodeSetup, open_world
from gymcp.errors import CannotFork, ServerDied
from gymcp.mcp_servers.forkserver.python_scripts import forkable_script
from gymcp.mcp_servers.forkserver.warm_sandbox import WarmSandbox, open_warm_sandbox
from gymcp.mcp_servers.packages.locked_server import describe_start, make_spec
from gymcp.mcp_servers.packages.lockfile import read_locked_server
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.snapshots.process_fork import fork_session
from gymcp.mcp_servers.spec import FileState
from gymcp.mcp_servers.workspaces.overlay import overlay_namespace

__all__ = ["make"]  # the fixture


def test_a_forked_script_runs_like_a_started_one(bwrap: Bubblewrap, make: Make) -> None:
    look = (
        "import os, sys; out = (sys.argv, sys.orig_argv[1:], sys.path, sys.flags, sys.executable, os.getcwd(), "
        "os.getpid(), sorted(os.environ.items()), os.listdir('/tmp'), main.__name__, main.__file__, __name__, sorted("
        "os.listdir('/proc/self/fd'))[:3], os.isatty(0), os.getsid(0) != 0, 'gymcp_script' in sys.path)"
    )

    async def look_in(sandbox: Sandbox) -> tuple[str, bool]:
        async with session(sandbox, make()) as opened:
            return await run(opened, look), is_forked(opened)

    async def both() -> tuple[tuple[str, bool], tuple[str, bool]]:
        async with open_warm_sandbox(bwrap) as warm:
            return await look_in(warm), await look_in(bwrap)

    (forked, was_forked), (started, was_not) = asyncio.run(both())
    assert forked == started
    assert (was_forked, was_not) == (True, False)


def test_nothing_of_an_episode_reaches_the_next(bwrap: Bubblewrap, make: Make) -> None:
    leave = (
        "import builtins, os, sys; seen.append('x'); extra.left = 'x'; main.left = 'x'; builtins.left = 'x'\n"
        "os.environ['LEFT'] = 'x'; sys.modules['left'] = sys\n"
        "for path in ('/tmp/left', '/workspace/left', '/dev/shm/left'): open(path, 'w').close()"
    )
    look = (
        "import builtins, os, sys\nout = (seen, *(hasattr(part, 'left') for part in (extra, main, builtins)), "
        "os.environ.get('LEFT'), 'left' in sys.modules, os.listdir('/tmp'), os.listdir('/workspace'), "
        "os.listdir('/dev/shm'))"
    )

    async def episodes() -> list[str]:
        async with open_warm_sandbox(bwrap) as warm:
            async with session(warm, make()) as opened:
                await run(opened, leave)
                async with session(warm, make()) as beside:
                    during = await run(beside, look)
                assert "['x'], True, True, True, 'x', True" in await run(opened, look)
            async with session(warm, make()) as opened:
                return [during, await run(opened, look)]

    assert asyncio.run(episodes()) == ["([], False, False, False, None, False, [], [], [])"] * 2


def test_siblings_and_the_fork_server_are_out_of_reach(bwrap: Bubblewrap, make: Make) -> None:
    reach = (
        "import ctypes, os, signal\nlibc = ctypes.CDLL(None, use_errno=True)\nsaid = []\n"
        "pids = sorted(int(name) for name in os.listdir('/proc') if name.isdigit())\n"
        "for pid in range(3, 400):\n"
        "    try: os.kill(pid, signal.SIGKILL)\n    except ProcessLookupError: pass\n    else: said.append(pid)\n"
        "os.kill(1, signal.SIGKILL)\n"  # the kernel keeps it from process 1
        "for call in (lambda: libc.unshare(0x10000000), lambda: libc.setns(0, 0), lambda: libc.mount(b'n', b'/tmp', "
        "b'tmpfs', 0, b''), lambda: libc.ptrace(16, 1, 0, 0), lambda: libc.syscall(429, 0, b'', 0, b'', 4)):\n"
        "    said.append((call(), ctypes.get_errno()))\n"
        "caps = [line.split()[1] for line in open('/proc/self/status') if line.startswith('Cap')]\n"
        "out = pids, said, set(caps), os.path.exists('/.proc/1')"
    )

    async def episodes() -> str:
        async with open_warm_sandbox(bwrap) as warm, session(warm, make()) as one, session(warm, make()) as other:
            found = await run(one, reach)
            assert await run(other, "out = seen") == "[]"
            async with session(warm, make()) as later:
                assert is_forked(later)
            return found

    denied = "(-1, 1)"
    assert asyncio.run(episodes()) == f"([1, 2], [{', '.join([denied] * 5)}], {{'0000000000000000'}}, False)"


def test_daemon_ends_with_its_episode(bwrap: Bubblewrap, make: Make) -> None:
    mark = f"daemon-of-{os.getpid()}"
    leave = (
        "import subprocess, sys; code = 'import signal; signal.pause()'\n"
        f"subprocess.Popen([sys.executable, '-c', code, {mark!r}], start_new_session=True)"
    )

    def alive() -> int:
        lines = (entry / "cmdline" for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return sum(mark.encode() in _read(line) for line in lines)

    async def episode() -> tuple[int, int]:
        async with open_warm_sandbox(bwrap) as warm:
            async with session(warm, make()) as opened:
                await run(opened, leave)
                for _ in range(1000):
                    if during := alive():
                        break
                    await asyncio.sleep(0.01)  # in the middle of its exec a process has no command line
            return during, alive()

    assert asyncio.run(episode()) == (1, 0)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended meanwhile
        return b""


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        ("def begin():\n    import sys; sys.exit('no config was given')\n", "no config was given"),
        ("def begin(): raise LookupError('nowhere')\n", "LookupError: nowhere"),
        ("def begin():\n    import os; os.abort()\n", "the server ended"),
    ],
)
def test_a_death_at_start_quotes_standard_error(bwrap: Bubblewrap, make: Make, begin: str, words: str) -> None:
    async def episode() -> None:
        async with open_warm_sandbox(bwrap) as warm, session(warm, make(begin)):
            pass

    with pytest.raises(ServerDied, match=words):
        asyncio.run(episode())


@pytest.mark.parametrize(
    ("imported", "said"),
    [
        (
            "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()\n",
            "started a thread",
        ),
        ("import subprocess; child = subprocess.Popen(['sleep', '60'])\n", "leaves a process running"),
        ("import os; kept = os.open('/dev/null', os.O_RDONLY)\n", "keeps 1 files open"),
        ("open('/tmp/cache', 'w').close()\n", "writes files to /tmp"),
        ("import mmap; kept = mmap.mmap(-1, 4096)\n", "shares memory (/dev/zero (deleted))"),
        ("import mmap; kept = mmap.mmap(-1, 4096, prot=mmap.PROT_READ)\n", "shares memory (/dev/zero (deleted))"),
        ("import multiprocessing; kept = multiprocessing.Lock()\n", "shares memory (/dev/shm/"),
        (
            "import ctypes, os\nfd = os.open('/tmp', os.O_TMPFILE | os.O_RDWR); os.write(fd, bytes(4096))\n"
            "ctypes.CDLL(None).mmap(None, ctypes.c_size_t(4096), 3, 1, fd, ctypes.c_long(0)); os.close(fd)\n",
            "shares memory (/tmp/",
        ),
        (
            "import subprocess\ndef begin(): pass\n"
            "subprocess.run(['sh', '-c', 'sleep 60 >/dev/null 2>&1 &'], check=True)\n",
            "leaves a process running",
        ),
        ("import os\nif os.getpid() == 1: raise OSError('not as the first process')\n", "not as the first process"),
    ],
)
def test_an_unforkable_program_is_started_with_a_warning(
    bwrap: Bubblewrap, make: Make, caplog: pytest.LogCaptureFixture, imported: str, said: str
) -> None:
    async def episodes() -> list[bool]:
        async with open_warm_sandbox(bwrap) as warm:
            found = []
            for _ in range(2):
                async with session(warm, make(imported + HARMLESS)) as opened:
                    found.append(is_forked(opened))
            return found

    assert asyncio.run(episodes()) == [False, False]
    assert caplog.text.count("every server is started anew instead") == 1
    assert said in caplog.text


def test_each_episode_has_its_own_workspace(bwrap: Bubblewrap, make: Make) -> None:
    spec = make(state=FileState())
    write = "open('/workspace/note', 'a').write('more'); open('/workspace/new', 'w').write('x')"

    async def episodes() -> tuple[list[bool], set[str], str]:
        async with open_warm_sandbox(bwrap) as warm:
            async with session(bwrap, spec, {"note": "text"}) as started, session(warm, spec, {"note": "text"}) as one:
                for opened in (started, one):
                    await opened.update()
                fresh = {started.world_key, one.world_key}
                for opened in (started, one):
                    await run(opened, write)
                    await opened.update()
                assert started.world_key == one.world_key
                assert one.world_key not in fresh
                forked = [is_forked(started), is_forked(one)]
            async with session(warm, spec, {"note": "text"}) as later:
                await later.update()
                return forked, {*fresh, later.world_key}, await run(later, "out = open('/workspace/note').read()")

    forked, keys, note = asyncio.run(episodes())
    assert (forked, len(keys), note) == ([False, overlay_namespace() is not None], 1, "text")


@pytest.mark.parametrize("catalog", [git.ENV, time.ENV], ids=["git", "time"])
def test_forked_and_started_servers_have_equal_worlds(bwrap: Bubblewrap, catalog: EnvSpec) -> None:
    env = load_env(catalog)
    task = env.suite.tasks[-1]

    async def play(sandbox: Sandbox) -> tuple[bool, list[str]]:
        async with open_world(EpisodeSetup(env=env, sandbox=sandbox, task=task, seed=1)) as world:
            said = [world.key, str(world.sessions[0].tools)]
            for call in task.gold[0].calls:
                assert isinstance(call.arguments, dict)
                result = await world.sessions[0].call_tool(call, call.arguments, timeout_s=30)
                await world.update()
                said += [result.content, world.key]
            return is_forked(world.sessions[0]), said

    async def plays() -> list[tuple[bool, list[str]]]:
        async with open_warm_sandbox(bwrap) as warm:
            return [await play(bwrap), await play(warm), await play(warm)]

    started, *forked = asyncio.run(plays())
    assert started[0] is False
    assert forked == [(True, started[1])] * 2


def test_copies_of_third_party_servers_are_refused(bwrap: Bubblewrap, make: Make) -> None:
    async def episode() -> str:
        async with open_warm_sandbox(bwrap) as warm, session(warm, make()) as opened:
            with pytest.raises(CannotFork, match="replay its calls"):
                await fork_session(opened, 2)
            return await run(opened, "out = 'on'")

    assert asyncio.run(episode()) == "on"


def test_nothing_is_left_when_the_sandbox_closes(bwrap: Bubblewrap, make: Make) -> None:
    spec = make(state=FileState())

    async def episodes() -> int:
        async with open_warm_sandbox(bwrap) as warm:
            async with session(warm, spec, {"note": "text"}), session(warm, spec, {"note": "text"}):
                pass
            assert isinstance(warm, WarmSandbox)
            return warm.fork_servers[0].process.pid

    def left() -> tuple[set[str], int]:
        namespace = overlay_namespace()
        mounts = Path(f"/proc/{namespace.pid}/mountinfo").read_text() if namespace else ""
        return set(os.listdir("/proc/self/fd")), mounts.count("world-")  # noqa: PTH208

    asyncio.run(episodes())  # caches of the process are filled
    before, _ = left()
    pid = asyncio.run(episodes())
    descriptors, worlds = left()
    assert descriptors <= before  # fewer: what other tests kept goes in its time
    assert worlds == 0
    assert not Path(f"/proc/{pid}").exists()


def test_servers_that_run_code_are_never_forked() -> None:
    server = read_locked_server(Path(git.__file__).with_name("servers.lock"), "git")
    assert make_spec(server).fork is not None
    assert make_spec(replace(server, runs_code=True)).fork is None
    assert make_spec(replace(server, forks=False)).fork is None
    assert describe_start(replace(server, runs_code=True)) == "a new process: it runs code of the model's"


@pytest.mark.parametrize(
    ("argv", "python", "script"),
    [
        (("/v/bin/python", "-s", "-B", "/v/bin/server", "-x"), ("/v/bin/python", "-s", "-B"), ("/v/bin/server", "-x")),
        (("python3", "-W", "error", "-m", "server", "a"), ("python3", "-W", "error"), ("-m", "server", "a")),
        (("python3", "-c", "import server"), None, None),
        (("/usr/bin/node", "server.js"), None, None),
        (("python3",), None, None),
    ],
)
def test_python_commands_with_a_file_or_module_can_be_forked(
    argv: tuple[str, ...], python: tuple[str, ...] | None, script: tuple[str, ...] | None
) -> None:
    found = forkable_script(argv)
    assert (found.python, found.script) == (python, script) if found else python is None


def test_a_package_that_forges_messages_ends_only_its_fork_server(bwrap: Bubblewrap, make: Make) -> None:
    """An imported package runs in the spawner, which holds the socket to the harness."""
    forge = (
        "import os, socket, threading\n"
        "def begin(): pass\n"
        "def forge():\n"
        "    for fd in range(3, 200):\n"
        "        try:\n"
        "            sock = socket.socket(fileno=os.dup(fd))\n"
        "            for text in (b'[', b'7', b'{\"message\": \"Started\", \"number\": 1}', "
        'b\'{"message": "Ended", "number": [], "status": 0}\', b\'{"message": "Loaded"}\'):\n'
        "                socket.send_fds(sock, [text], [0])\n"
        "        except OSError: pass\n"
        "if os.getpid() == 1: forge()\n"
    )

    async def episode() -> str:
        async with open_warm_sandbox(bwrap) as warm, session(warm, make(forge)) as opened:
            return await run(opened, "out = 'served'")

    assert asyncio.run(episode()) == "served"  # caches of the process are filled
    before = set(os.listdir("/proc/self/fd"))  # noqa: PTH208
    assert asyncio.run(episode()) == "served"
    assert set(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208
