"""Ways to a clean world without gymcp: an SDK server per episode, a container per episode, a restarted container."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import mcp

from gymcp.errors import SandboxUnavailable
from gymcp.mcp_servers.sandbox import Launch, Sandbox, check_images
from gymcp.mcp_servers.sandbox.docker.backend import Docker
from gymcp.mcp_servers.sandbox.docker.images import base_image

ECHO_SERVER = ("python3", "-I", "-S", "-c", "import sys\nfor line in sys.stdin: print(line, end='', flush=True)")
SDK_SERVER = """
from mcp.server import MCPServer
mcp = MCPServer("counter", log_level="ERROR")
count = 0
@mcp.tool()
def add(number: int) -> str:
    global count
    count += number
    return str(count)
mcp.run("stdio")
"""


@contextlib.contextmanager
def sdk_server() -> Iterator[mcp.StdioServerParameters]:
    """The smallest server that the MCP SDK allows, with the same world as in resets.py."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "server.py")
        program.write_text(SDK_SERVER)
        yield mcp.StdioServerParameters(command=sys.executable, args=[str(program)])


async def sdk_reset(server: mcp.StdioServerParameters) -> None:
    """Start the server with the SDK's own client, unconfined, until its tools are known."""
    async with mcp.Client(server) as client:
        await client.list_tools()


async def bare_start(sandbox: Sandbox) -> None:
    """Start an interpreter in the same sandbox, until its first byte."""
    async with sandbox.start(Launch(argv=("python3", "-s", "-S", "-B", "-c", "print(1)"))) as process:
        await process.stdout.readline()


def docker_is_there() -> bool:
    try:
        Docker().check()
        check_images(Docker(), [None])
    except SandboxUnavailable as error:
        print(f"no figures for docker: {error}", file=sys.stderr)
        return False
    return shutil.which("docker") is not None


def docker_run(*options: str) -> list[str]:
    """The command line for a container with the same restrictions as gymcp's containers."""
    command = ["docker", "run", *options, "-i", "--network", "none", "--read-only", "--cap-drop", "ALL"]
    command += ["--security-opt", "no-new-privileges", "--pids-limit", "64", "--memory", "512m"]
    command += ["--memory-swap", "512m", "--tmpfs", "/tmp:size=256m,mode=1777", "--user", "65534:65534"]
    return [*command, "--ulimit", "nofile=1024", "--log-driver", "none", "--init", base_image(), *ECHO_SERVER]


async def docker_run_reset() -> None:
    """Start a container, until its first answer; then remove it."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*docker_run("--rm"), stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"x\n")
    await process.stdout.readline()
    process.stdin.close()
    await process.wait()


@contextlib.asynccontextmanager
async def containers(count: int) -> AsyncIterator[asyncio.Queue[str]]:
    """Running containers for `docker_restart`; they are removed at the end."""
    names = [f"gymcp-benchmark-{os.getpid()}-{number}" for number in range(count)]
    free: asyncio.Queue[str] = asyncio.Queue()
    try:
        for name in names:
            subprocess.run(docker_run("-d", "--name", name), check=True, stdout=subprocess.DEVNULL)  # noqa: ASYNC221
            free.put_nowait(name)
        yield free
    finally:
        subprocess.run(["docker", "rm", "-f", *names], check=True, stdout=subprocess.DEVNULL)  # noqa: ASYNC221


async def docker_restart(free: asyncio.Queue[str]) -> None:
    """Restart one container, until it runs again: this does not wait for its server's first answer."""
    name = await free.get()
    command = ["docker", "restart", "-t", "0", name]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    assert await process.wait() == 0
    free.put_nowait(name)
