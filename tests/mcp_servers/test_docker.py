"""The docker sandbox beyond containment: one episode per container, images, leftovers, missing engines."""

from __future__ import annotations

import asyncio
import os
import platform
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from gymcp.errors import ConfigError, SandboxUnavailable
from gymcp.mcp_servers.cleanup import find_leftovers, remove_leftovers
from gymcp.mcp_servers.sandbox import Launch, Limits, Mount, check_images, get_sandbox
from gymcp.mcp_servers.sandbox.docker import process
from gymcp.mcp_servers.sandbox.docker.backend import Docker
from gymcp.mcp_servers.sandbox.docker.container import Container, State, parse_own_cgroup
from gymcp.mcp_servers.sandbox.docker.engine_api import OWNER_LABEL, find_containers, kill, open_engine, remove
from gymcp.mcp_servers.sandbox.docker.images import build_dockerfile, image_name
from gymcp.mcp_servers.sandbox.docker.pool import Pool
from gymcp.mcp_servers.sandbox.docker.process import ContainerProcess
from gymcp.mcp_servers.sandbox.rootfs import NOBODY
from gymcp.mcp_servers.sandbox.seccomp import docker_profile
from gymcp.mcp_servers.spec import FileState
from gymcp.mcp_servers.workspaces.digester import open_digester
from gymcp.mcp_servers.workspaces.workspace import Workspace
from gymcp.process_owner import owner
from gymcp.types import Json

TIMEOUT_S = 60.0
# Answers each line with the files that earlier lines left behind: none in a new container.
REMEMBERS = """
import os, sys
for line in sys.stdin:
    print(os.path.exists("/tmp/left"), flush=True)
    open("/tmp/left", "w").close()
"""
LAUNCH = Launch(argv=("python3", "-I", "-S", "-c", REMEMBERS))


@pytest.fixture
def pool(engine: None) -> Iterator[Pool]:
    made = Pool(size=2)
    yield made
    made.close()


V1 = ("pids", "memory", "cpuacct")


async def _episode(sandbox: Docker) -> tuple[str, bytes]:
    """(id of the container, its one answer)."""
    async with asyncio.timeout(TIMEOUT_S), sandbox.start(LAUNCH) as process:
        assert isinstance(process, ContainerProcess)
        process.stdin.write(b"\n")
        return process.container_id, await process.stdout.readline()


def _mine() -> set[str]:
    """Containers of this process, with warm ones that other tests have left in its own pool, which expire later."""
    return {found["Id"] for found in find_containers(f"{OWNER_LABEL}={owner()}")}


def test_no_container_serves_two_episodes(pool: Pool) -> None:
    async def many() -> list[tuple[str, bytes]]:
        sandbox = Docker(pool=pool)
        one_by_one = [await _episode(sandbox) for _ in range(4)]
        return one_by_one + await asyncio.gather(*(_episode(sandbox) for _ in range(6)))

    found = asyncio.run(many())
    assert len({container for container, _ in found}) == 10
    assert {answer for _, answer in found} == {b"False\n"}


def test_warm_containers_wait_ready_and_end_with_the_pool(pool: Pool) -> None:
    async def two_at_once() -> None:
        await asyncio.gather(_episode(Docker(pool=pool)), _episode(Docker(pool=pool)))

    before = _mine()
    asyncio.run(two_at_once())
    pool.wait_until_filled()
    spares = _mine() - before
    assert 1 <= len(spares) <= 2
    container, _ = asyncio.run(_episode(Docker(pool=pool)))
    assert container in spares
    pool.close()
    assert _mine() <= before


def test_warm_containers_that_have_ended_are_not_handed_out(pool: Pool) -> None:
    before = _mine()
    for _ in range(2):
        asyncio.run(_episode(Docker(pool=pool)))
    pool.wait_until_filled()
    for spare in _mine() - before:
        kill(spare)
    assert asyncio.run(_episode(Docker(pool=pool)))[1] == b"False\n"


def test_a_server_has_the_engines_own_limits(pool: Pool) -> None:
    async def inspect() -> dict[str, Any]:
        launch = replace(LAUNCH, limits=Limits(memory_mb=300, processes=10, disk_mb=5, open_files=99))
        async with asyncio.timeout(TIMEOUT_S), Docker(pool=pool).start(launch) as process:
            assert isinstance(process, ContainerProcess)
            with open_engine() as client:
                found: dict[str, Any] = client.inspect_container(process.container_id)
            return found

    found = asyncio.run(inspect())
    host = found["HostConfig"]
    assert {name: host[name] for name in ("NetworkMode", "ReadonlyRootfs", "CapDrop", "SecurityOpt", "IpcMode")} == {
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges", f"seccomp={docker_profile(platform.machine())}"],
        "IpcMode": "private",
    }
    assert (host["Memory"], host["MemorySwap"]) == (300_000_000, 300_000_000)
    assert host["PidsLimit"] in (10, 11)  # 11 with the engine's init process, if it has one
    assert not host["Privileged"]
    assert found["Config"]["User"] == "65534:65534"
    assert found["Config"]["Labels"][OWNER_LABEL] == owner()


def test_a_cancelled_start_leaves_no_container(pool: Pool) -> None:
    async def cancel(turns: int) -> None:
        task = asyncio.create_task(_episode(Docker(pool=pool)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    before = _mine()
    for turns in range(4):
        asyncio.run(cancel(turns))
    pool.close()
    assert _mine() <= before


HARNESS = """
import asyncio, sys
from gymcp.mcp_servers.sandbox import Launch, get_sandbox
from gymcp.mcp_servers.sandbox.docker.pool import pool

async def serve():
    async with get_sandbox("docker").start(Launch(argv=("sleep", "600"))) as process:
        print(process.container_id, pool().reaper_pid, flush=True)
        await process.wait()

asyncio.run(serve())
"""


def test_a_container_of_a_killed_harness_is_found_and_removed(engine: None) -> None:
    with subprocess.Popen([sys.executable, "-c", HARNESS], stdout=subprocess.PIPE, text=True) as harness:
        assert harness.stdout is not None
        container, reaper = harness.stdout.readline().split()
        assert container not in [found.name for found in find_leftovers()]  # its owner lives
        os.kill(int(reaper), signal.SIGKILL)
        harness.kill()
    left = [found for found in find_leftovers() if found.name == container]
    # none if a command of another test, which looks for leftovers when it starts, was quicker
    assert [(found.kind, found.owner.split("-")[0]) for found in left] in ([], [("container", str(harness.pid))])
    remove_leftovers(left)
    assert container not in [found["Id"] for found in find_containers(OWNER_LABEL)]


def test_the_reaper_removes_the_containers_of_a_killed_harness(engine: None) -> None:
    with subprocess.Popen([sys.executable, "-c", HARNESS], stdout=subprocess.PIPE, text=True) as harness:
        assert harness.stdout is not None
        container, reaper = harness.stdout.readline().split()
        handle = os.pidfd_open(int(reaper))
        harness.kill()
    assert select.select([handle], [], [], TIMEOUT_S)[0]  # its work is done
    os.close(handle)
    assert container not in [found["Id"] for found in find_containers(OWNER_LABEL)]


DOCKERFILE = """
FROM gymcp-base
COPY server.py /srv/server.py
CMD ["python3", "-I", "-S", "/srv/server.py"]
"""


def test_a_server_from_a_dockerfile_runs_its_own_command(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "server.py").write_text(f"print({str(tmp_path)!r})")  # new content: an image that does not exist yet
    dockerfile = tmp_path / "Dockerfile"
    with pytest.raises(SandboxUnavailable, match=f"gymcp sandbox build {dockerfile}"):
        check_images(Docker(pool=pool), [dockerfile])
    build_dockerfile(dockerfile, lambda text: None)
    check_images(Docker(pool=pool), [dockerfile])

    async def output() -> bytes:
        async with asyncio.timeout(TIMEOUT_S), Docker(pool=pool).start(Launch(argv=(), image=dockerfile)) as process:
            return await process.stdout.read()

    try:
        assert asyncio.run(output()) == f"{tmp_path}\n".encode()
    finally:
        with open_engine() as client:
            client.remove_image(image_name(dockerfile))


def test_the_error_for_a_missing_image_has_the_command_to_run(pool: Pool) -> None:
    async def start() -> None:
        async with Docker(pool=pool).start(Launch(argv=(), image="no-such-image:1")):
            pass

    with pytest.raises(SandboxUnavailable, match="docker pull no-such-image:1"):
        asyncio.run(start())


def test_servers_from_images_need_docker() -> None:
    with pytest.raises(ConfigError, match="bwrap: servers from images \\(a:1\\) need --sandbox docker"):
        check_images(get_sandbox("bwrap"), [None, "a:1"])


def test_an_unreadable_mount_is_an_error(pool: Pool, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)

    async def start() -> None:
        launch = replace(LAUNCH, mounts=(Mount(source=secret, target=PurePosixPath("/opt/secret")),))
        async with Docker(pool=pool).start(launch):
            pass

    with pytest.raises(ConfigError, match="chmod o\\+rX"):
        asyncio.run(start())


def test_mounts_below_the_home_of_root_can_be_read(pool: Pool, tmp_path: Path) -> None:
    """The base image shows /root to root only."""
    for name in ("lib/masked/hidden", "lib/shown", "bin/tool", "empty/none"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "empty" / "none").unlink()
    tmp_path.chmod(0o755)
    places = {"lib": "lib", "bin/tool": "bin/tool", "empty": "lib/masked"}
    mounts = tuple(Mount(source=tmp_path / name, target=PurePosixPath("/root/.py", at)) for name, at in places.items())
    launch = Launch(argv=("sh", "-c", "cd /root/.py; cat bin/tool lib/shown; ls lib/masked; touch x"), mounts=mounts)

    async def run() -> bytes:
        async with asyncio.timeout(TIMEOUT_S), Docker(pool=pool).start(launch) as process:
            return await process.stdout.read()

    assert asyncio.run(run()) == b"bin/toollib/shown"


def test_files_without_any_permission_are_digested(pool: Pool, tmp_path: Path) -> None:
    """Otherwise an agent could remove its episode from the mean with a chmod."""
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "file").write_text("hidden")
    for path in (closed / "file", closed):
        if os.getuid() == 0:
            os.chown(path, NOBODY, NOBODY)
        path.chmod(0)

    async def digest_files() -> Json:
        workspace = Workspace(folder=tmp_path, upper_folder=tmp_path, seed=tmp_path)
        async with open_digester("desk", FileState(), workspace, Docker(pool=pool)) as digester:
            return (await digester.state(await digester.key()))[1]

    try:
        files = asyncio.run(digest_files())["files"]
    finally:
        closed.chmod(0o700)
    assert files == {
        "closed": {"type": "folder", "mode": "0"},
        "closed/file": {"type": "file", "mode": "0", "text": "hidden"},
    }


@pytest.mark.parametrize(
    ("host", "why"),
    [("tcp://127.0.0.1:2375", "unset DOCKER_HOST"), ("unix:///nowhere/docker.sock", "no engine answers")],
)
def test_a_missing_engine_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, host: str, why: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(SandboxUnavailable, match=why):
        get_sandbox("docker").check()
    assert "container" not in [found.kind for found in find_leftovers()]


def test_containers_of_another_pid_namespace_are_left_alone(engine: None) -> None:
    """Nothing in this PID namespace says if the owner of such a container lives."""
    labels = {OWNER_LABEL: "1-1", "gymcp.user": str(os.getuid()), "gymcp.pids": "pid:[1]"}
    config = {"Image": image_name(None), "Cmd": ["true"], "Labels": labels}
    with open_engine() as client:
        made = client.create_container_from_config(config)
    try:
        assert made["Id"] not in [found.name for found in find_leftovers()]
    finally:
        remove(made["Id"])


HOLDS_FIRST = """
import ctypes, signal
ctypes.CDLL(None).ptrace(16, 1, 0, 0)
print("held", flush=True)
signal.pause()
"""


def test_a_server_that_traces_its_first_process_is_removed(pool: Pool) -> None:
    async def hold() -> bytes:
        launch = Launch(argv=("python3", "-I", "-S", "-c", HOLDS_FIRST))
        async with asyncio.timeout(TIMEOUT_S), Docker(pool=pool).start(launch) as process:
            return await process.stdout.readline()

    before = _mine()
    assert asyncio.run(hold()) == b"held\n"
    assert _mine() <= before


def test_stderr_that_arrives_after_a_failure_is_in_its_message(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine copies the two streams of a server independently: either may be late."""
    ours, engines = socket.socketpair()
    running = State(running=True, status=0, out_of_memory=False, pid=-1)

    def killed(_: str) -> None:
        engines.sendall(struct.pack(">BxxxL", 2, 10) + b"last words")
        engines.close()

    monkeypatch.setattr(process, "kill", killed)
    monkeypatch.setattr(process, "inspect_container", lambda _: replace(running, running=False))

    async def tail() -> tuple[bytes, str]:
        async with asyncio.timeout(TIMEOUT_S):
            server = ContainerProcess(pool, LAUNCH, Container(id="abc", streams=ours), running)
            await server.open()
            engines.sendall(struct.pack(">BxxxL", 1, 9) + b"nonsense\n")
            line = await server.stdout.readline()
            await server.drain_stderr()
            return line, server.stderr_tail()

    assert asyncio.run(tail()) == (b"nonsense\n", "last words")


def test_a_container_that_is_ending_is_not_counted_as_the_whole_machine() -> None:
    mounts = "\n".join(f"3{i} 1 0:3{i} / /c/{kind} rw - cgroup cgroup rw,{kind}" for i, kind in enumerate(V1))
    running = [f"{i}:{kind}:/docker/abc" for i, kind in enumerate(V1)]
    found = parse_own_cgroup("abc", mounts, "\n".join(running))
    assert found is not None
    assert (found.memory, found.cpu) == (Path("/c/memory/docker/abc"), Path("/c/cpuacct/docker/abc"))
    ending = parse_own_cgroup("abc", mounts, "\n".join([*running[:2], "2:cpuacct:/"]))
    assert ending is not None
    assert ending.cpu is None
    assert parse_own_cgroup("abc", mounts, "\n".join([running[0], "1:memory:/", "2:cpuacct:/"])) is None
