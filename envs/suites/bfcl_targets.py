"""What BFCL's gold leads to: found once, at install, by replaying it on upstream's classes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from gymcp.errors import UsageError
from gymcp.evaluators.graders.bfcl import PlayedTurn, judge, make_target
from gymcp.mcp_servers.sandbox import Launch, Sandbox
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import Json

Replay = Callable[[str], str]
"""Runs the server's program with ``--replay`` on this standard input; returns what it wrote."""

RUN_TIMEOUT_S = 300.0
Position = tuple[int, int]
"""(user turn, call)."""


def compute_targets(tasks: Sequence[Json], replay: Replay) -> dict[str, Json]:
    """Task id -> {"target", "last_necessary"}.

    Each round replays every open task without one call, from the last towards the first; a round is one process.
    """
    targets = {
        task["id"]: make_target([turn if calls else None for turn, calls in zip(played, task["gold"], strict=True)])
        for task, played in zip(tasks, replay_turns([(task, task["gold"]) for task in tasks], replay), strict=True)
    }
    necessary: dict[str, Position | None] = dict.fromkeys(targets)
    candidates = {task["id"]: _positions(task["gold"]) for task in tasks}
    open_tasks = list(tasks)
    while open_tasks := [task for task in open_tasks if candidates[task["id"]] and necessary[task["id"]] is None]:
        tried = [(task, candidates[task["id"]].pop()) for task in open_tasks]
        shorter = [(task, _without(task["gold"], position)) for task, position in tried]
        for (task, position), played in zip(tried, replay_turns(shorter, replay), strict=True):
            if judge(targets[task["id"]], played).value < 1:
                necessary[task["id"]] = position
    return {name: {"target": target, "last_necessary": necessary[name]} for name, target in targets.items()}


def replay_turns(played: Sequence[tuple[Json, Json]], replay: Replay) -> list[list[PlayedTurn]]:
    """The turns of each (task, calls per turn), in order. Raises UsageError where the replay breaks off."""
    lines = [json.dumps({"id": task["id"], "setup": task["setup"], "turns": turns}) + "\n" for task, turns in played]
    records = [json.loads(line) for line in replay("".join(lines)).splitlines()]
    if [record["id"] for record in records] != [task["id"] for task, _ in played]:
        raise UsageError(f"bfcl: replay ended after {len(records)} of {len(played)} tasks; see its error output")
    return [
        [
            PlayedTurn(acted=bool(calls), responses=tuple(responses), state=record["distinct"][state]["public"])
            for calls, responses, state in zip(turns, record["responses"], record["states"], strict=True)
        ]
        for (_, turns), record in zip(played, records, strict=True)
    ]


def run_to_end(server: ServerSpec, sandbox: Sandbox, text: str, *words: str) -> str:
    """What the server writes when it is given this standard input, and these words more on its command line."""
    with ThreadPoolExecutor(max_workers=1) as thread:  # the caller may be inside an event loop of its own
        return thread.submit(asyncio.run, _run_to_end(server, sandbox, text, words)).result()


async def _run_to_end(server: ServerSpec, sandbox: Sandbox, text: str, words: Sequence[str]) -> str:
    argv = (*server.argv, *words)
    launch = Launch(argv=argv, env=server.env, mounts=server.mounts, limits=server.limits)
    async with asyncio.timeout(RUN_TIMEOUT_S), sandbox.start(launch) as process:
        async with asyncio.TaskGroup() as group:
            group.create_task(_feed(process.stdin, text.encode()))
            output = group.create_task(process.stdout.read())
        status = await process.wait()
        if status != 0:
            why = process.limit_hit() or process.stderr_tail().strip()[-500:]
            raise UsageError(f"server '{server.name}': ended with status {status} after what it was given: {why}")
    return output.result().decode()


async def _feed(stdin: asyncio.StreamWriter, content: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # it ended early, and its status says why
        stdin.write(content)
        await stdin.drain()
        stdin.close()


def _positions(gold: Json) -> list[Position]:
    return [(turn, call) for turn, calls in enumerate(gold) for call in range(len(calls))]


def _without(gold: Json, position: Position) -> Json:
    turn, call = position
    return [calls[:call] + calls[call + 1 :] if index == turn else calls for index, calls in enumerate(gold)]
