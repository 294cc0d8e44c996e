"""The digest of a workspace, computed by a helper process in its own sandbox that can read only the workspace.

One helper serves one episode. A warm sandbox forks the helper from one that has imported its modules and read no
workspace.

A helper that ended by a limit means that the workspace has no digest. A helper that ended in another way, such as by a
signal from outside, is replaced, once for each request; if the next helper ends as well, the workspace has no digest.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from gymcp.errors import EnvInfraError, Undigestible
from gymcp.mcp_servers.loop_share import Deadline, LateLoop
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import Launch, Limits, Sandbox, SandboxProcess
from gymcp.mcp_servers.spec import FileState, Mask, ServerSpec
from gymcp.mcp_servers.workspaces.workspace import Workspace
from gymcp.types import Json

_ANSWER_SLACK_S = 10.0
"""Seconds that an answer may take beyond the helper's own limit."""
_END_TIMEOUT_S = 5.0
_LINE_BYTES = 40_000_000
"""Longest answer of a helper, without the contents of files."""
_BYTES_AS_JSON = 6
"""Most characters of JSON that one byte of a text takes."""
_MAX_INLINE_PARSE_BYTES = 1_000_000
"""Longest answer that is parsed on the event loop; a longer one is parsed in a thread."""
_PROGRAM = "gymcp.mcp_servers.programs.digest"
_PARTS = ("tree", "git", "sqlite", "masks", "zip_times")
_READERS = ("archives", "csv_rows", "docx_text", "json_value", "outcomes", "source", "sqlite_tables", "xlsx_cells")


class Digester:
    """The digest helper of one episode's workspace, opened by `open_digester`."""

    def __init__(
        self,
        server: str,
        source: FileState,
        process: SandboxProcess,
        start_another: Callable[[], Awaitable[SandboxProcess]],
    ) -> None:
        self._server = server
        self._timeout_s = source.limits.seconds + _ANSWER_SLACK_S
        self._process = process
        self._start_another = start_another
        """Starts another helper for the same workspace."""
        self._state = source
        self._base: tuple[str | None, Json] = (None, None)
        """Last state with its digest: the helper sends only the difference from it."""

    async def key(self, *, read_again: bool = False) -> str:
        """The digest of the current state. Raises Undigestible if it is too large, or does not stop changing.

        With `read_again`, the helper reads files that may have been written to since the episode began, even if their
        times say otherwise.
        """
        return str((await self._ask({"op": "key", "again": read_again}))["key"])

    async def state(self, key: str) -> tuple[str, Json]:
        """(digest, state as it is recorded). The helper is asked only if the state of `key` is not in the cache.

        Raises Undigestible.
        """
        state = _state_cache.get((self._state, key))
        if state is None:
            answer = await self._ask({"op": "state", "since": self._base[0]})
            key, state = str(answer["key"]), self._merge(answer)
            if self._base[0] is None:  # a fresh workspace, from which other episodes of the task start
                _state_cache.put((self._state, key), state)
        self._base = (key, state)
        return self._base

    def _merge(self, answer: dict[str, Json]) -> Json:
        try:
            if answer["files"] is None:
                return answer["about"]
            old = self._base[1]["files"] if answer["since"] is not None else {}
            removed = set(answer["removed"])
            files = {path: entry for path, entry in old.items() if path not in removed} | answer["files"]
            return {**answer["about"], "files": files}
        except (KeyError, TypeError) as error:
            raise EnvInfraError(f"server '{self._server}': the digest helper told no state: {error!r}") from error

    async def _ask(self, request: dict[str, Json]) -> dict[str, Json]:
        answer = await self._exchange(request)
        if answer is None:
            reason = await self._end_reason()
            if self._process.exceeded_limit() is None:
                self._process = await self._start_another()
                answer = await self._exchange(request)
                reason = reason if answer is not None else await self._end_reason()
            if answer is None:
                raise self._undigestible_error(reason)
        if "error" in answer:
            reason = str(answer["error"])
            raise self._infra_error(reason) if answer.get("fault") else self._undigestible_error(reason)
        if re.fullmatch("[0-9a-f]{64}", str(answer.get("key"))) is None:
            raise self._infra_error("the digest helper answered without a digest")
        _masks_used.setdefault((self._server, self._state), set()).update(answer.get("masks_used", ()))
        return answer

    async def _exchange(self, request: dict[str, Json]) -> dict[str, Json] | None:
        """The helper's answer; None if the helper has ended or is about to."""
        try:
            async with Deadline(self._timeout_s):
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                await self._process.stdin.drain()
                line = await self._process.stdout.readline()
        except TimeoutError as error:
            if isinstance(error, LateLoop):
                return {"error": "the harness's event loop was late for too long", "fault": True}
            return {"error": f"no answer within {self._timeout_s:g} s"}
        except OSError:
            return None
        except ValueError:
            return {"error": f"too large: more than {_longest_answer(self._state)} bytes to tell"}
        try:
            is_short = len(line) < _MAX_INLINE_PARSE_BYTES
            answer = json.loads(line) if is_short else await asyncio.to_thread(json.loads, line)
        except (ValueError, RecursionError):  # the helper ended in the middle of the line, or before
            return None
        return answer if isinstance(answer, dict) else {}

    def _undigestible_error(self, why: str) -> Undigestible:
        return Undigestible(f"server '{self._server}': its state has no digest: {why}")

    def _infra_error(self, why: str) -> EnvInfraError:
        return EnvInfraError(f"server '{self._server}': its state has no digest: {why}")

    async def _end_reason(self) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_TIMEOUT_S):
                await self._process.wait()
        return self._process.exceeded_limit() or f"the helper ended: {self._process.stderr_tail().strip()[-500:]}"


class StateCache:
    """States of fresh workspaces, least recently used first, with at most `max_entries` entries together."""

    def __init__(self, max_entries: int) -> None:
        self._free_entries = max_entries
        self._states: dict[tuple[FileState, str], Json] = {}

    def get(self, key: tuple[FileState, str]) -> Json:
        """The state of the key; None if it is not in the cache."""
        state = self._states.pop(key, None)
        if state is not None:
            self._states[key] = state  # the most recently used state is evicted last
        return state

    def put(self, key: tuple[FileState, str], state: Json) -> None:
        self._free_entries -= _entry_count(state)
        self._states[key] = state
        while self._free_entries < 0 and self._states:
            self._free_entries += _entry_count(self._states.pop(next(iter(self._states))))


def _entry_count(state: Json) -> int:
    """Number of files and tables in the state; a large one counts as many."""
    parts = [part for part in state.values() if isinstance(part, dict | list)]
    files = state.get("files") or {}
    more = sum(len(file.get("text") or file.get("base64") or "") // _ENTRY_CHARS for file in files.values())
    return 1 + sum(map(len, parts)) + more


_ENTRY_CHARS = 64_000
"""Characters of a file that count as one entry of the cache."""
_state_cache = StateCache(20_000)


_masks_used: dict[tuple[str, FileState], set[int]] = {}
"""Positions of the masks that have had an effect in a world of this process, by server."""


def find_unused_masks(server: str, source: FileState) -> list[str]:
    """Masks, in words, that have had no effect in any world that this process has digested; none without a world."""
    used = _masks_used.get((server, source))
    if used is None:
        return []
    rows = [Mask(files=mask) if isinstance(mask, str) else mask for mask in source.masks]
    return [f"'{mask.files}' ({mask.kind})" for n, mask in enumerate(rows) if n not in used]


@contextlib.asynccontextmanager
async def open_digester(
    server: str, source: FileState, workspace: Workspace, sandbox: Sandbox
) -> AsyncIterator[Digester]:
    """Open the helper for one workspace until the context is left. Raises EnvInfraError if it does not start.

    Open it before anything can write to the workspace: files that have not changed since then are read once.
    """
    begun_ns = time.time_ns()
    program = _program()
    launch = Launch(
        argv=program.argv,
        env=program.env,
        mounts=program.mounts,
        limits=Limits(
            memory_mb=source.limits.total_bytes // 2_000_000 + 512,
            processes=8,
            cpu_s=3600.0,
            disk_mb=source.limits.total_bytes // 1_000_000 + 16,
            line_bytes=_longest_answer(source),
        ),
        workspace=workspace.folder,
        read_only=True,
        entry=workspace.entry,
        reads_all=True,
        fork=program.fork,
    )
    async with contextlib.AsyncExitStack() as stack:

        async def start() -> SandboxProcess:
            process = await stack.enter_async_context(sandbox.start(launch))
            process.stdin.write(json.dumps({**source.to_options(), "begun_ns": begun_ns}).encode() + b"\n")
            return process

        yield Digester(server, source, await start(), start)


def _longest_answer(source: FileState) -> int:
    """Bytes of the longest line that the helper may send: texts of files, and values of readers, which are JSON."""
    return _LINE_BYTES + (_BYTES_AS_JSON + 1) * source.recorded_bytes


def digest_program() -> str:
    """Content hash of the helper's program, because another version of the program may compute other digests."""
    return _program().mounts[0].source.name


@functools.cache
def _program() -> ServerSpec:
    modules = [f"{_PROGRAM}.{part}" for part in (*_PARTS, *(f"readers.{reader}" for reader in _READERS))]
    return native_server("digest", f"{_PROGRAM}.server", modules=modules, start="fork")
