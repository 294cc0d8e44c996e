"""A program in a sandbox that answers questions, one JSON object a line: for graders that are code of upstream's."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from gymcp.errors import GraderError, SandboxUnavailable
from gymcp.mcp_servers.sandbox import Sandbox, SandboxProcess, get_sandbox
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import Json

ANSWER_TIMEOUT_S = 120.0
"""The first answer waits for the program's imports, on a machine that does much else."""
IDLE_S = 60.0
_SANDBOXES = ("bwrap", "docker")

_Question = tuple[str, Future[Json]]


class Worker:
    """The program starts with a question, and ends after a minute without one, or with this process.

    Callers wait in their own thread, whether or not an event loop runs in it. The program must give the same answer to
    the same question, whatever it was asked before.
    """

    def __init__(self, server: Callable[[], ServerSpec], *words: str) -> None:
        self._server = server
        self._words = words
        self._lock = threading.Lock()
        self._running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Queue[_Question | None]]] = Future()
        self._thread: threading.Thread | None = None
        self._process = 0

    def ask(self, question: Json) -> Json:
        """The answer. Raises GraderError where there is none: no sandbox, a program that failed or took too long.

        An answer with an ``error`` is one of these, too.
        """
        answer: Future[Json] = Future()
        with self._lock:
            if self._process != os.getpid():  # the first question, or a fork, which has no thread of its parent's
                self._process, self._running = os.getpid(), Future()
                # a daemon, because the interpreter waits for others before it calls what is registered with atexit
                self._thread = threading.Thread(target=self._run, name="gymcp-grader", daemon=True)
                self._thread.start()
                atexit.register(self.end)
            self._put((json.dumps(question), answer))
        found = answer.result()  # every question is answered within its time, or refused
        if "error" in found:
            raise GraderError(f"grader '{self._server().name}': {found['error']}")
        return found

    def end(self) -> None:
        """Returns when nothing of it is left; a later question starts it anew. Harmless where nothing was asked."""
        with self._lock:
            if self._process == os.getpid() and self._thread is not None:
                self._put(None)
                self._thread.join()
            self._process = 0

    def _put(self, question: _Question | None) -> None:
        loop, asked = self._running.result()
        loop.call_soon_threadsafe(asked.put_nowait, question)

    def _run(self) -> None:
        async def live() -> None:
            asked: asyncio.Queue[_Question | None] = asyncio.Queue()
            self._running.set_result((asyncio.get_running_loop(), asked))
            while (question := await asked.get()) is not None:
                if await self._serve(question, asked):
                    return

        asyncio.run(live())

    async def _serve(self, question: _Question, asked: asyncio.Queue[_Question | None]) -> bool:
        """Answers until nothing is asked for a while; True where it was told to end."""
        item: _Question | None = question
        try:
            server = self._server()
            launch = server.launch()
            launch = replace(launch, argv=(*launch.argv, *self._words))
            async with _sandbox(server.name).start(launch) as process:
                while item is not None:
                    item[1].set_result(await _answer(server.name, process, item[0]))
                    item = None
                    try:
                        item = await asyncio.wait_for(asked.get(), IDLE_S)
                    except TimeoutError:
                        return False
            return True
        except Exception as error:  # the asker gets it, whatever it is
            if item is not None:
                told = error if isinstance(error, GraderError) else GraderError(f"{type(error).__name__}: {error}")
                item[1].set_exception(told)
            return False


def _sandbox(who: str) -> Sandbox:
    why = []
    for name in _SANDBOXES:
        sandbox = get_sandbox(name)
        try:
            sandbox.check()
        except SandboxUnavailable as error:
            why.append(str(error))
        else:
            return sandbox
    raise GraderError(f"grader '{who}': is code of upstream's, which runs in a sandbox only: {'; '.join(why)}")


async def _answer(who: str, process: SandboxProcess, question: str) -> Json:
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            process.stdin.write(question.encode() + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
    except (TimeoutError, OSError, ValueError) as error:
        raise GraderError(f"grader '{who}': {type(error).__name__}: {error}: {process.stderr_tail()[-500:]}") from error
    if not line:
        raise GraderError(f"grader '{who}': ended: {process.stderr_tail().strip()[-500:]}")
    return json.loads(line)
