"""The process of a program: started in its sandbox, given the user's message, and read until its turn ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from gymcp.agents.endpoint.tool_exchange import TurnEnded
from gymcp.agents.programs.exchange import Exchange
from gymcp.errors import EnvInfraError
from gymcp.mcp_servers.loop_share import LoopShare, charge_steps
from gymcp.mcp_servers.output_tail import describe_output, show_output
from gymcp.mcp_servers.redaction import redaction_of
from gymcp.mcp_servers.sandbox import Launch, Sandbox, SandboxProcess
from gymcp.outcome import Outcome
from gymcp.types import GiveUp

MAX_ANSWER_CHARS = 100_000
"""Characters of a program's answer that the user reads; the rest is cut and the cut is marked."""
_MAX_OUTPUT_BYTES = 1_000_000
_PIECE_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramProcess:
    """A running program."""

    process: SandboxProcess
    reader: asyncio.Task[None]
    """Reads standard output until it ends, and tells the exchange how the turn or the program ended."""
    turns: asyncio.Semaphore
    """Answers of a program that serves several turns which are due: one for each message of the user."""

    async def say(self, prompt: str) -> None:
        """Write the user's message as a line of JSON, for a program that serves several turns."""
        self.turns.release()
        with contextlib.suppress(ConnectionError):  # it has ended, which the reader tells
            self.process.stdin.write(json.dumps({"prompt": prompt}).encode() + b"\n")
            await self.process.stdin.drain()


@contextlib.asynccontextmanager
async def run_program(
    sandbox: Sandbox, launch: Launch, exchange: Exchange, *, standard_input: str | None, by_line: bool
) -> AsyncIterator[ProgramProcess]:
    """The started program, until the context is left. Its end is an event of the exchange.

    `standard_input`: text for a program that reads its message there; None for one that has it already. `by_line`: each
    line of standard output is an answer that ends a turn.
    """
    async with sandbox.start(launch) as process:
        if not by_line:
            await _feed(process, standard_input or "")
        turns = asyncio.Semaphore(0)
        reading = (
            _read_lines(process, exchange, launch.secrets, turns)
            if by_line
            else _read_all(process, exchange, launch.secrets)
        )
        reader = asyncio.create_task(reading)
        try:
            yield ProgramProcess(process=process, reader=reader, turns=turns)
        finally:
            reader.cancel()
            await asyncio.wait([reader])


async def _feed(process: SandboxProcess, text: str) -> None:
    with contextlib.suppress(ConnectionError):  # it ended or closed its input before it read all
        process.stdin.write(text.encode(errors="replace"))
        await process.stdin.drain()
        process.stdin.close()


async def _read_all(process: SandboxProcess, exchange: Exchange, secrets: Mapping[str, str]) -> None:
    output, share = bytearray(), LoopShare()
    while piece := await process.stdout.read(_PIECE_BYTES):
        if len(output) < _MAX_OUTPUT_BYTES:
            output += piece
        share.charge_read(len(piece))
        await asyncio.sleep(share.owed_s())
    await _report_end(process, exchange, secrets, output.decode(errors="replace"))


async def _read_lines(
    process: SandboxProcess, exchange: Exchange, secrets: Mapping[str, str], turns: asyncio.Semaphore
) -> None:
    """Read an answer for each turn: of a program that writes more, the rest stays in its pipe."""
    share = LoopShare()
    while True:
        await asyncio.sleep(share.owed_s())
        try:
            line = await charge_steps(share, process.stdout.readline())
        except ValueError:  # longer than the stream's limit
            why = "the program wrote a line that is too long"
            exchange.events.put_nowait(GiveUp(outcome=Outcome.AGENT_ERROR, reason=why))
            return
        if not line:
            await _report_end(process, exchange, secrets, None)
            return
        with share.charge_elapsed():
            answer = _read_answer(line)
        if answer is not None:
            await turns.acquire()
            exchange.events.put_nowait(TurnEnded(text=cut_answer(answer)))


def _read_answer(line: bytes) -> str | None:
    """The text of an answer; None for a line that is none."""
    with contextlib.suppress(ValueError, RecursionError):
        answer = json.loads(line)
        if isinstance(answer, dict) and isinstance(answer.get("text"), str):
            return str(answer["text"])
    return None


async def _report_end(
    process: SandboxProcess, exchange: Exchange, secrets: Mapping[str, str], output: str | None
) -> None:
    """Tell how the program ended; `output`: its answer if it ended well, None if it should not have ended."""
    status = await process.wait()
    if status == 0 and output is not None:
        exchange.events.put_nowait(TurnEnded(text=cut_answer(output.strip())))
        return
    with contextlib.suppress(EnvInfraError):
        await process.drain_stderr()
    why = process.exceeded_limit() or f"it ended with status {status}"
    shown = show_output(process.stderr_tail())
    redaction = redaction_of(secrets)
    words = describe_output(shown if redaction is None else redaction.text(shown), "agent-program")
    reason = f"the program failed: {why}{words}"
    exchange.events.put_nowait(GiveUp(outcome=Outcome.AGENT_ERROR, reason=reason))


def cut_answer(text: str) -> str:
    """The text, cut with a note if it is longer than `MAX_ANSWER_CHARS`."""
    if len(text) <= MAX_ANSWER_CHARS:
        return text
    return f"{text[:MAX_ANSWER_CHARS]}\n[cut: the first {MAX_ANSWER_CHARS:,} of {len(text):,} characters]"
