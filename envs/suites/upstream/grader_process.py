"""A program in a sandbox that answers questions, one JSON object a line: for graders that are upstream's code."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import replace

from gymcp.aio import BackgroundLoop
from gymcp.errors import GraderError, SandboxUnavailable
from gymcp.mcp_servers.sandbox import Sandbox, SandboxProcess, confined_sandboxes
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import Json

ANSWER_TIMEOUT_S = 120.0
"""Seconds to wait for an answer; the first one waits for the program's imports, on a machine that does much else."""
IDLE_S = 60.0
"""Seconds without a question after which the program is ended."""

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
        self._background: BackgroundLoop[asyncio.Queue[_Question | None]] | None = None

    def ask(self, question: Json) -> Json:
        """The program's answer.

        Raises GraderError if there is none, because no sandbox can be used or the program failed or took too long, and
        for an answer with an ``error``.
        """
        answer: Future[Json] = Future()
        with self._lock:
            if self._background is None or not self._background.is_here:  # the first question, or a fork of the process
                self._background = BackgroundLoop("gymcp-grader", self._run())
            self._background.call(self._background.resource.put_nowait, (json.dumps(question), answer))
        verdict = answer.result()  # every question is answered within its time, or refused
        if "error" in verdict:
            raise GraderError(f"grader '{self._server().name}': {verdict['error']}")
        return verdict

    def end(self) -> None:
        """End the program, and return when nothing of it is left; a later question starts it again.

        Nothing happens if nothing was asked.
        """
        with self._lock:
            background, self._background = self._background, None
            if background is not None:
                background.end()

    @contextlib.asynccontextmanager
    async def _run(self) -> AsyncIterator[asyncio.Queue[_Question | None]]:
        """A queue whose questions are answered; on the way out, those that were asked before are still answered."""
        questions: asyncio.Queue[_Question | None] = asyncio.Queue()
        task = asyncio.create_task(self._serve_all(questions))
        yield questions
        questions.put_nowait(None)
        await task

    async def _serve_all(self, questions: asyncio.Queue[_Question | None]) -> None:
        while (question := await questions.get()) is not None:
            if await self._serve(question, questions):
                return

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
    for sandbox in confined_sandboxes():
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
