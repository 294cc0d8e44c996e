"""The controls of what no sandbox stands against: what a harness that believes its servers would have done.

Each says how it was fooled; "not fooled" is a control that failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from rogue import MODULES

from gymcp.mcp_servers.native.server import native_server

NOT_FOOLED = "not fooled"
_LINE = 20_000_000
_LARGE = 200_000
"""Bytes of a message that takes long to be read."""
_BOUND_S = 0.5
"""Seconds of CPU time after which a control has shown that it would go on and on."""
_ENDLESS = f"it did not end within {_BOUND_S:g} s of CPU time"


class NaiveClient:
    """Takes every line for the answer to what it asked last, and grants whatever it is asked."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout
        self._number = 0
        self.longest = 0
        """Bytes of a line."""

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        self._say({"id": self._number, "method": method, "params": params})
        async with asyncio.timeout(60):
            line = await self._out.readline()
            self.longest = max(self.longest, len(line))
            answer: dict[str, Any] = json.loads(line)
            if "method" in answer and "id" in answer:
                self._say({"id": answer["id"], "result": {}})
                answer = json.loads(await self._out.readline())
        return answer

    def _say(self, message: dict[str, Any]) -> None:
        self._in.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def call(self, name: str, **arguments: Any) -> str:
        answer = await self.ask("tools/call", {"name": name, "arguments": arguments})
        if "method" in answer:
            return f"took for its answer: {answer['method']}"
        if "error" in answer:
            return str(answer["error"]["message"])
        return str(answer["result"]["content"][0]["text"])


@contextlib.asynccontextmanager
async def naive_client(**env: str) -> Any:
    spec = native_server("rogue", "rogue", modules=MODULES)
    folder = str(spec.mounts[0].source)
    code = f"import sys; sys.path.insert(0, {folder!r}); from server_main import main; main()"
    process = await asyncio.create_subprocess_exec(
        *("/usr/bin/env", "python3", "-s", "-B", "-c", code),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **env},
        limit=_LINE,
    )
    try:
        client = NaiveClient(process)
        await client.ask("initialize", {"protocolVersion": "2025-06-18"})
        yield client, process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)  # asyncio's own kill() would take the exit status from its watcher
        await process.communicate()


async def naive_reply(name: str) -> str:
    async with naive_client() as (client, process):
        try:
            said = await client.call("rogue_replies", act=name)
            if said not in ("first", "red") and "\x1b" not in said:
                return f"fooled: {said[:100]}"
            if client.longest > _LARGE:
                return f"fooled: it takes a message of {client.longest} bytes"
            if "\x1b" in said:
                return "fooled: it shows an escape sequence"
            then = await client.call("echo", text="honest")
        except (ValueError, RecursionError, TypeError, AttributeError) as error:
            if name == "escapes_in_last_words":
                return "fooled: it shows an escape sequence" if b"\x1b" in await process.stderr.read() else NOT_FOOLED
            return f"fooled: it fails with {type(error).__name__}"
        return NOT_FOOLED if then == "honest" else f"fooled: {then}"


async def naive_list(name: str, address: str, asked: list[bytes]) -> str:
    async with naive_client(ROGUE_LIST=name, ROGUE_ADDRESS=address) as (client, _):
        try:
            answer = (await client.ask("tools/list", {}))["result"]
            if name in ("endless_tools", "endless_pages"):
                for _ in range(5):
                    answer = (await client.ask("tools/list", {"cursor": answer["nextCursor"]}))["result"]
                return f"fooled: after 6 pages it goes on with '{answer['nextCursor']}'"
        except (ValueError, RecursionError) as error:
            return f"fooled: it fails with {type(error).__name__}"
    tools = answer["tools"]
    schema = tools[0]["inputSchema"]
    if name == "remote_reference":
        code = "import json, sys, urllib.request; urllib.request.urlopen(json.loads(sys.argv[1])['$schema']).read()"
        await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code, json.dumps(schema)], check=False)
        return f"fooled: {asked[0].decode().strip()}" if asked else NOT_FOOLED
    if name == "catastrophic_pattern":
        return await _match(schema["properties"]["text"]["pattern"])
    if name == "schema_of_many_parts":
        return await _run_with_alarm(f"{_VALIDATOR}.check_schema(json.load(sys.stdin))", json.dumps(schema))
    if name.endswith("_of_results"):
        return await _validate(tools[0]["outputSchema"])
    if "\x1b" in json.dumps(tools, ensure_ascii=False).replace("\\u001b", "\x1b"):
        return "fooled: it shows an escape sequence"
    if len({tool["name"] for tool in tools}) < len(tools):
        return "fooled: one tool hides another"
    size = len(json.dumps(tools))
    return f"fooled: it takes a list of {size} characters" if size > 1_000_000 else NOT_FOOLED


async def _match(pattern: str) -> str:
    return await _run_with_alarm("re.match(sys.stdin.read(), 'a' * 40 + '!')", pattern)


async def _validate(schema: dict[str, Any]) -> str:
    return await _run_with_alarm(
        f"{_VALIDATOR}(json.load(sys.stdin)).validate({{'text': 'a' * 40 + '!'}})", json.dumps(schema)
    )


_VALIDATOR = "jsonschema.Draft202012Validator"


async def _run_with_alarm(code: str, text: str) -> str:
    code = f"import json, jsonschema, re, signal, sys; signal.setitimer(signal.ITIMER_PROF, {_BOUND_S}); {code}"
    command = [sys.executable, "-c", code]
    done = await asyncio.to_thread(subprocess.run, command, input=text.encode(), check=False)
    return f"fooled: {_ENDLESS}" if done.returncode == -signal.SIGPROF else NOT_FOOLED


READ_ALL = f"""
import os, resource, signal, sqlite3, sys
signal.alarm(3)
signal.setitimer(signal.ITIMER_PROF, {_BOUND_S})
"""
READ_ALL += """
resource.setrlimit(resource.RLIMIT_AS, (300_000_000, 300_000_000))
sys.setrecursionlimit(300)
def read(folder):
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        name.encode()
        if os.path.isdir(path):
            read(path)
        elif name == "db":
            for line in sqlite3.connect(path).iterdump(): print(line)
            for row in sqlite3.connect(path).execute("SELECT name FROM sqlite_master WHERE type IN ('view', 'table')"):
                print(sqlite3.connect(path).execute(f"SELECT * FROM {row[0]}").fetchall())
        elif os.stat(path).st_mode & 0o4000:
            sys.exit("raised")
        else:
            print(open(path, errors="replace").read())
read(sys.argv[1])
"""
_MANY = 10_000


async def naive_world(folder: Path, token: str) -> str:
    return await asyncio.to_thread(_read_all, folder, token)


def _read_all(folder: Path, token: str) -> str:
    before = _entries(folder)
    argv = ["python3", "-I", "-S", "-c", READ_ALL, str(folder)]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=60)
    if token.encode() in done.stdout:
        return "fooled: it reads the secret"
    if done.returncode == -signal.SIGALRM:
        return "fooled: it did not end within 3 s"
    if done.returncode == -signal.SIGPROF:
        return f"fooled: {_ENDLESS}"
    if done.returncode != 0:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["?"])[-1]
        return f"fooled: it fails with {re.sub(r'[^ -~]', '?', last)[:100]}"
    if len(before) > _MANY:
        return f"fooled: it reads more than {_MANY} files"
    return NOT_FOOLED if _entries(folder) == before else "fooled: it changes what it reads"


def _entries(folder: Path) -> dict[str, int]:
    found = {}
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # one of the worlds never stands still
            found[path.name] = path.lstat().st_size
    return found


async def naively_left_daemon(name: str, held_s: int) -> str:
    """Result of a daemon left by a server that is ended as any process is."""
    return await asyncio.to_thread(_daemon, name, held_s)


def _daemon(name: str, held_s: int) -> str:
    code = (
        "import ctypes, os, signal, sys\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        f"        ctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0)\n"
        f"        signal.alarm({held_s}); os.close(2); print(os.getpid(), flush=True); os.close(1); signal.pause()\n"
        "    os._exit(0)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        daemon = int(process.stdout.readline())
        before = Path(f"/proc/{daemon}").exists()
        process.kill()
    after = Path(f"/proc/{daemon}").exists()
    os.kill(daemon, signal.SIGKILL)
    return f"alive before the end: {before}, after: {after}"
