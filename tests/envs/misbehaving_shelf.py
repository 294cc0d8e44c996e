"""A shelf whose tools misbehave, as an environment, and ways to play it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace

from gymcp.agents.runner.rollout import Job, Rollout, rollout
from gymcp.agents.strategies.scripted import Replay
from gymcp.envs.episodes.episode import Episode, open_episode
from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.evaluators.graders import final_state_equals
from gymcp.mcp_servers.native.runtime import ToolError
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.types import Action, EpisodeLimits, GoldTurn, Suite, Task, ToolCall


class Shelf:
    """A shelf of boxes, whose tools misbehave in every possible way."""

    def __init__(self, boxes: dict[str, int]) -> None:
        self.boxes = boxes

    def put(self, box: str, count: int) -> str:
        """Put things into a box."""
        self.boxes[box] = self.boxes.get(box, 0) + count
        return f"{box} holds {self.boxes[box]}"

    def look(self) -> dict[str, int]:
        """List the boxes and their contents."""
        return self.boxes

    def fail(self) -> str:
        """Fails."""
        raise ToolError("the shelf is stuck")

    def crash(self) -> str:
        """Ends the process."""
        os._exit(3)

    def hang(self) -> str:
        """Never answers."""
        self.boxes["hung"] = 1
        while True:
            time.sleep(1)

    def block(self) -> str:
        """Is held in C for ever, where no alarm reaches it."""
        self.boxes["blocked"] = 1
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        return str(signal.sigwait([signal.SIGUSR2]))

    def hoard(self) -> str:
        """Takes all memory."""
        return str(len(bytearray(10**9) + bytearray(10**9)))

    def flood(self) -> str:
        """Answers at great length."""
        return "x" * 500_000


class Deaf:
    def hang(self) -> str:
        """Never answers."""
        time.sleep(60)
        return "late"


def call(name: str, number: int = 1, **arguments: object) -> ToolCall:
    return ToolCall(id=f"call_{number}", name=name, arguments=arguments)


TASK = Task(
    id="fill",
    prompts=("Put two into a.", "Now one into b."),
    initial_state={"boxes": {"a": 1}},
    target={"boxes": {"a": 3, "b": 1}},
    gold=(
        GoldTurn(calls=(call("put", 1, box="a", count=2),), final_text="Done."),
        GoldTurn(calls=(call("put", 2, box="b", count=1),), final_text="Done, too."),
    ),
    last_necessary=(1, 0),
)


def shelf_env(**changes: object) -> LoadedEnv:
    spec = EnvSpec(
        name="shelf",
        servers=(native_server("shelf", Shelf),),
        suite=Suite(name="shelf", version="1", tasks=(TASK,)),
        grade=final_state_equals(),
        limits=EpisodeLimits(call_timeout_s=30.0),
    )
    return load_env(replace(spec, **changes))  # type: ignore[arg-type]


SHELF = shelf_env()
HASTY = EpisodeLimits(call_timeout_s=2.0)
"""Limits for calls that never end, and for the calls before and after them."""


def play(actions: Sequence[Action], env: LoadedEnv = SHELF, task: Task = TASK) -> Rollout:
    job = Job(task=task, trial=0, seed=1)
    agent = Replay(iter(actions))
    return asyncio.run(rollout(env, get_sandbox("bwrap"), lambda task, seed: agent, job, timeout_s=60))


def inside(work: Callable[[Episode], Coroutine[None, None, None]], env: LoadedEnv = SHELF, task: Task = TASK) -> None:
    async def main() -> None:
        async with open_episode(env, get_sandbox("bwrap"), task, seed=1) as episode:
            await work(episode)

    asyncio.run(main())
