"""Arithmetic in written thoughts, with a third-party server: @modelcontextprotocol/server-sequential-thinking.

The text of a thought is free; its numbers, its links and the final answer are graded.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gymcp.envs.spec import EnvSpec
from gymcp.envs.suites.generation.single_turn import one_turn
from gymcp.envs.tool_costs import CallCost, ToolCosts
from gymcp.evaluators.graders import all_of, answer_equals, calls_made
from gymcp.mcp_servers.packages.locked_server import LockedServerRef
from gymcp.types import Suite, Task

CHANGES: tuple[tuple[str, Callable[[int, int], int]], ...] = (
    ("{n} more litres are poured in", lambda litres, n: litres + n),
    ("{n} litres leak out", lambda litres, n: litres - n),
    ("the litres in it are multiplied by {n}", lambda litres, n: litres * n),
)
TOOL = "sequentialthinking"


def chain(number: int, rng: random.Random) -> Task:
    """A task with one thought for each change, in order."""
    _, story, levels = _tank(rng, changes=2 + number % 3)
    prompt = (
        f"{story} Use the thinking tool with one thought for the start and one for each change, {len(levels)} thoughts "
        "in all, saying in the last that no other is needed."
    )
    return _task(f"chain_{number}", prompt, _thoughts(levels), levels[-1])


def revise(number: int, rng: random.Random) -> Task:
    """A task in which the start was misread, so that a later thought revises the first."""
    start, story, levels = _tank(rng, changes=2)
    wrong = start + rng.randrange(3, 9)
    thoughts = [
        {"thought": f"The tank holds {wrong} litres.", **_numbers(1, 3)},
        {"thought": f"No, it holds {start}.", **_numbers(2, 3), "isRevision": True, "revisesThought": 1},
        {"thought": f"So at the end it holds {levels[-1]}.", **_numbers(3, 3)},
    ]
    prompt = (
        f"{story} Somebody misread the start as {wrong} litres. Use the thinking tool for three thoughts: that wrong "
        "start, a revision of thought 1 with the right start, and the end, with no other thought needed."
    )
    return _task(f"revise_{number}", prompt, thoughts, levels[-1])


def branch(number: int, rng: random.Random) -> Task:
    """A task with a second thought and a branch from the first."""
    start, story, levels = _tank(rng, changes=1)
    twice = 2 * levels[-1]
    thoughts = [
        {"thought": f"The tank holds {start} litres.", **_numbers(1, 3)},
        {"thought": f"Then it holds {levels[-1]}.", **_numbers(2, 3)},
        {
            "thought": f"With two such tanks it is {twice}.",
            **_numbers(3, 3),
            "branchFromThought": 1,
            "branchId": "two-tanks",
        },
    ]
    prompt = (
        f"{story} Use the thinking tool for three thoughts: the start, the end, and as the last one a branch from "
        "thought 1 named two-tanks, about what two such tanks hold together at the end. Answer for the two tanks."
    )
    return _task(f"branch_{number}", prompt, thoughts, twice)


def make_suite() -> Suite:
    """The suite of 15 tasks, always the same ones."""
    rng = random.Random(20260831)
    tasks = [make(number, rng) for make in (chain, revise, branch) for number in range(5)]
    return Suite(name="sequential_thinking", version="1", tasks=tuple(tasks), source="generated")


def _tank(rng: random.Random, changes: int) -> tuple[int, str, list[int]]:
    """The start, the story, and the litres after the start and after each change."""
    start = rng.randrange(30, 90)
    levels, changes_made = [start], []
    for _ in range(changes):
        text, apply = rng.choice(CHANGES)
        n = rng.randrange(2, 9)
        levels.append(apply(levels[-1], n))
        changes_made.append(text.format(n=n))
    return (
        start,
        f"A tank holds {start} litres. Then {', then '.join(changes_made)}. How many litres are in it?",
        levels,
    )


def _thoughts(levels: list[int]) -> list[dict[str, Any]]:
    return [
        {"thought": f"Now it is {level} litres.", **_numbers(number, len(levels))}
        for number, level in enumerate(levels, 1)
    ]


def _numbers(number: int, total: int) -> dict[str, Any]:
    return {"thoughtNumber": number, "totalThoughts": total, "nextThoughtNeeded": number < total}


def _task(task_id: str, prompt: str, thoughts: list[dict[str, Any]], answer: int) -> Task:
    free = {"thought", "totalThoughts"}
    fixed = [{name: value for name, value in thought.items() if name not in free} for thought in thoughts]
    return one_turn(
        task_id,
        f"{prompt} Answer with the number alone.",
        [(TOOL, thought) for thought in thoughts],
        target={"calls": [{"name": TOOL, "arguments": arguments} for arguments in fixed], "answer": str(answer)},
        answer=str(answer),
    )


SERVER = LockedServerRef(name="sequential_thinking", lock=Path(__file__).with_name("servers.lock"))
ENV = EnvSpec(
    name="sequential_thinking",
    description="Arithmetic thought out aloud with server-sequential-thinking (npm): 15 tasks.",
    servers=SERVER.servers,
    installed=SERVER.is_installed,
    suite=make_suite,
    costs=ToolCosts(default=CallCost(seconds=0.0)),  # a thought is written down
    components=("answer", "calls", "calls.calls_found"),
    grade=all_of(
        {
            "answer": answer_equals(target_key="answer"),
            "calls": calls_made(target_key="calls", more_arguments=True),
        }
    ),
)
