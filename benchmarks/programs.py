"""Agent programs: real ones of all kits on 20 tasks with a scripted model, and 50 at once.

Every kit is installed into an environment of its own in gymcp's cache, from PyPI or npm, at the first run. Exit code 1
if a task is not solved, or if anything is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
import time
from collections.abc import Sequence

from gold_policy import GoldPolicy
from leftovers import count_resources, how_many_more
from program_kits import Kit, choose_kits, pick_tasks, play
from report_table import Result, options, show

from gymcp.agents.policies.models import ChatModel
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.protocols import ChatPolicy
from gymcp.types import Decision, Message, Sampling, Task, Tool, Trajectory

ENV = "workbench"
TASKS = 20
WAIT_S = 300.0
"""Seconds in which all programs at once must have asked the model for the first time."""


def main() -> None:
    parser = options(__doc__, "4 tasks, 8 programs at once, and kits of Python only")
    parser.add_argument("--kits", default="", help="names of kits, with commas; default: all but Claude Code and Codex")
    text = "names of kits: nothing but 50 programs of each at once; default: 50 of the first kit after all others"
    parser.add_argument("--at-once", default="", help=text)
    args = parser.parse_args()
    env = load_env(load_spec(ENV))
    tasks = pick_tasks(env, 4 if args.quick else TASKS)
    chosen = choose_kits(args.kits)
    results: list[Result] = []
    for kit in [] if args.at_once else chosen:
        if not (args.quick and kit.is_node):
            results += measure_kit(env, kit, tasks)
    for kit in choose_kits(args.at_once) if args.at_once else chosen[:1]:
        results += measure_many(env, kit, pick_tasks(env, 8 if args.quick else 50))
    show("programs", results, as_json=args.json)
    short = [result for result in results if result.unit.startswith("of ") and result.value < int(result.unit[3:])]
    left = [result for result in results if result.metric.endswith(" left") and result.value]
    sys.exit(bool(short or left))


def measure_kit(env: LoadedEnv, kit: Kit, tasks: Sequence[Task]) -> list[Result]:
    """Number of tasks that the kit's program solves with a model that knows the gold."""
    print(f"programs: {kit.name}", file=sys.stderr, flush=True)
    began = time.perf_counter()
    program = kit.install()
    installed = time.perf_counter()
    ended = play(env, program, tasks, ChatModel(name="gold", policy=kit.policy(tasks)), concurrency=4)
    seconds = time.perf_counter() - installed
    solved = sum(episode.score == 1.0 for episode in ended)
    tell_unsolved(kit.name, ended)
    return [
        Result(metric=f"{kit.name}: solved", value=solved, unit=f"of {len(tasks)}"),
        *count_contexts(kit, ended),
        Result(metric=f"{kit.name}: time of an episode", value=seconds / len(tasks), unit="s"),
        Result(metric=f"{kit.name}: installation", value=installed - began, unit="s"),
    ]


def tell_unsolved(name: str, ended: Sequence[Trajectory]) -> None:
    for episode in ended:
        if episode.score != 1.0:
            print(f"programs: {name}: {episode.task}: {episode.outcome}: {episode.reason}", file=sys.stderr)


def count_contexts(kit: Kit, ended: Sequence[Trajectory]) -> list[Result]:
    """Contexts of an episode and answers beside its steps, of a program that has more than one."""
    if kit.policy is GoldPolicy and not kit.command:
        return []
    contexts = [
        {step.context for step in each.steps} | {answer.context for answer in each.side_answers} for each in ended
    ]
    own = sum(len(each.own_side_answers) for each in ended)
    side = sum(len(each.side_answers) for each in ended) - own
    return [
        Result(metric=f"{kit.name}: contexts", value=sum(map(len, contexts)) / len(ended), unit="per episode"),
        Result(metric=f"{kit.name}: answers of the agent beside the steps", value=own / len(ended), unit="per episode"),
        Result(metric=f"{kit.name}: side calls", value=side / len(ended), unit="per episode"),
    ]


class Gathering:
    """A model that answers no first request before all programs have asked, so that they are alive at the same time."""

    def __init__(self, policy: ChatPolicy, count: int) -> None:
        self._policy = policy
        self._count = count
        self._waiting = 0
        self._all = asyncio.Event()
        self.most = 0
        """Most programs that waited at the same time."""

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        if not any(message.role == "assistant" for message in messages):
            await self._gather()
        return await self._policy.chat(messages, tools, sampling)

    async def _gather(self) -> None:
        self._waiting += 1
        self.most = max(self.most, self._waiting)
        if self._waiting == self._count:
            self._all.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                await self._all.wait()
        self._waiting -= 1


def measure_many(env: LoadedEnv, kit: Kit, tasks: Sequence[Task]) -> list[Result]:
    """Programs at once, and what is left of them."""
    count = len(tasks)
    print(f"programs: {count} at once", file=sys.stderr, flush=True)
    program = kit.install()
    play(env, program, tasks[:1], ChatModel(name="gold", policy=kit.policy(tasks)), concurrency=1)  # once, unmeasured
    before = count_resources()
    policy = Gathering(kit.policy(tasks), count)
    ended = play(env, program, tasks, ChatModel(name="gold", policy=policy), concurrency=count)
    left = how_many_more(before, count_resources())
    tell_unsolved(f"{count} at once", ended)
    who = f"{count} at once ({kit.name})"
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        Result(metric=f"{who}: alive at the same time", value=policy.most, unit=f"of {count}"),
        Result(metric=f"{who}: solved", value=sum(each.score == 1.0 for each in ended), unit=f"of {count}"),
        *(Result(metric=f"{who}: {kind} left", value=more, unit=kind) for kind, more in left.items()),
        Result(metric=f"{who}: memory of the harness", value=memory, unit="MB"),
    ]


if __name__ == "__main__":
    main()
