"""A program in a sandbox that answers questions, one JSON object a line: for graders that are upstream's code."""

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
"""Seconds to wait for an answer; the first one waits for the program's imports, on a machine that does much else."""
IDLE_S = 60.0
"""Seconds without a question after which the program is ended."""
_SANDBOXES = ("bwrap", "docker")

_Question = tuple[str, Future[Json]]


class GraderProcess:
    """A grader program that is started by a question, and ends after a minute without one, or with this process.

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
        """The program's answer.

        Raises GraderError if there is none, because no sandbox can be used or the program failed or took too long, and
        for an answer with an ``error``.
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
        verdict = answer.result()  # every question is answered within its time, or refused
        if "error" in verdict:
            raise GraderError(f"grader '{self._server().name}': {verdict['error']}")
        return verdict

    def end(self) -> None:
        """End the program, and return when nothing of it is left; a later question starts it again.

        Nothing happens if nothing was asked.
        """
        with self._lock:
            if self._process == os.getpid() and self._thread is not None:
                self._put(None)
                self._thread.join()
            self._process = 0

    def _put(self, question: _Question | None) -> None:
        loop, questions = self._running.result()
        loop.call_soon_threadsafe(questions.put_nowait, question)

    def _run(self) -> None:
        async def live() -> None:
            questions: asyncio.Queue[_Question | None] = asyncio.Queue()
            self._running.set_result((asyncio.get_running_loop(), questions))
            while (question := await questions.get()) is not None:
                if await self._serve(question, questions):
                    return

        asyncio.run(live())

    async def _serve(self, question: _Question, questions: asyncio.Queue[_Question | None]) -> bool:
        """Answer questions until none comes for `IDLE_S`; True if the program is to end for good."""
        item: _Question | None = question
        try:
            server = self._server()
            launch = server.launch()
            launch = replace(launch, argv=(*launch.argv, *self._words))
            async with _first_usable_sandbox(server.name).start(launch) as process:
                while item is not None:
                    item[1].set_result(await _answer(server.name, process, item[0]))
                    item = None
                    try:
                        item = await asyncio.wait_for(questions.get(), IDLE_S)
                    except TimeoutError:
                        return False
            return True
        except Exception as error:  # the caller of `ask` gets it, whatever it is
            if item is not None:
                refusal = error if isinstance(error, GraderError) else GraderError(f"{type(error).__name__}: {error}")
                item[1].set_exception(refusal)
            return False


def _first_usable_sandbox(who: str) -> Sandbox:
    reasons = []
    for name in _SANDBOXES:
        sandbox = get_sandbox(name)
        try:
            sandbox.check()
        except SandboxUnavailable as error:
            reasons.append(str(error))
        else:
            return sandbox
    raise GraderError(f"grader '{who}': is code of upstream's, which runs in a sandbox only: {'; '.join(reasons)}")


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
