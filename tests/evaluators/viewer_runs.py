"""Runs to look at: written through the real store, small enough to know by heart."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gymcp.store import StepCredit, TrajectoryStore, create_run
from gymcp.types import (
    Action,
    Json,
    Message,
    Observation,
    Outcome,
    Sampled,
    Step,
    ToolCall,
    ToolResult,
    Trajectory,
    Usage,
)

HOSTILE = (
    "<script>alert(1)</script><img src=https://evil.invalid/x onerror=alert(2)><b>bold</b> \x1b[31mred\x1b[2J"
    " \u202eesrever\u202c \u200bzero \U000e0041tag \ud800 </textarea></title> javascript:alert(3)"
)


def states(paid: int) -> Json:
    return {"orders": {"7": {"status": "paid" if paid else "open", "sum": 30}}, "log": ["start"] * (1 + paid)}


def episode(task: str, trial: int, *, pays: bool, run: str, words: str = "", **fields: Json) -> Trajectory:
    """Two steps: looks (the same in all episodes of a task), then pays or refunds."""
    look = ToolCall(id="1", name="get_order", arguments={"order": "7"})
    act = ToolCall(id="2", name="pay_order" if pays else "refund_order", arguments={"order": "7", "note": words})
    key = f"{task}-start"
    steps = (
        Step(
            turn=0,
            observation=Observation(messages=(Message(role="user", content=f"Pay order 7. {words}"),), tools=()),
            action=Action(text="I look first.", tool_calls=(look,)),
            results=(ToolResult(call_id="1", content='{"status": "open"}', seconds=0.02, bytes=18),),
            state_key=key,
            world_key="w0",
            state_ref="state-0",
            agent_s=0.1,
            sampled=drawn("0"),
        ),
        Step(
            turn=0,
            observation=Observation(messages=(Message(role="tool", content='{"status": "open"}'),), tools=()),
            action=Action(tool_calls=(act,)),
            results=(ToolResult(call_id="2", content="done" if pays else "no such refund", is_error=not pays),),
            reward=float(pays),
            state_key=f"{task}-seen",
            world_key="w1" if pays else "w0",
            state_ref="state-1" if pays else "state-0",
            agent_s=0.3,
            sampled=drawn("1"),
        ),
    )
    return Trajectory(
        **{
            "id": f"{run}-{task}-{trial}",
            "env": "shop",
            "task": task,
            "trial": trial,
            "group": f"shop/{task}",
            "steps": steps,
            "initial_key": "w0",
            "final_key": "w1" if pays else "w0",
            "score": float(pays),
            "reason": "order 7 is paid" if pays else "order 7 is open, wanted paid",
            "usage": Usage(
                tool_calls=2,
                tool_errors=int(not pays),
                prompt_tokens=14,
                completion_tokens=8,
                wall_s=0.6,
                agent_s=0.4,
                tool_s=0.05,
                reset_s=0.1,
                tools={"get_order": {"calls": 1}, act.name: {"calls": 1}},
            ),
            **fields,
        }
    )


def drawn(version: str) -> Sampled:
    return Sampled(
        prompt_ids=(1, 2, 3, 4, 5, 6, 7),
        ids=(11, 12, 13, 14),
        logprobs=(-0.01, -0.5, -4.0, float("-inf")),
        versions=((version, 0, 2), ("9", 2, 4)),
    )


def write_run(folder: Path, agent: str, *, paying: int, tasks: int = 120, trials: int = 2) -> Path:
    """`tasks` x `trials` episodes, of which the first `paying` tasks' succeed, and one that was lost."""
    config = {"env": "shop", "suite": "shop", "suite_version": "1", "agent": agent}
    with create_run(folder, config, seeds=[0]), TrajectoryStore.open(folder, write=True) as store:
        blobs = {"state-0": states(0), "state-1": states(1)}
        for n in range(tasks):
            for trial in range(trials):
                words = "The needle is in episode eighty." if n == 80 else ""
                pays = n < paying if trial == 0 else n % 2 == 0
                one = episode(f"task{n:03}", trial, pays=pays, run=agent, words=words)
                store.append(one, blobs, tags=("refund" if n % 3 == 0 else "order",))
        lost = episode("lost", 0, pays=False, run=agent, score=None, outcome=Outcome.ENV_INFRA, reason="server died")
        store.append(lost, blobs)
        store.add_credits(
            StepCredit(
                trajectory=f"{agent}-task000-{trial}",
                preset="gigpo",
                rewards=(0.0, 1.0),
                returns=(0.95, 1.0),
                advantages=(0.25, -0.5 - trial),
            )
            for trial in range(trials)
        )
    return folder


def write_hostile(folder: Path) -> Path:
    """Every text of it is an attempt; one is huge."""
    config = {"env": HOSTILE, "agent": HOSTILE, HOSTILE: HOSTILE}
    with create_run(folder, config, seeds=[0]), TrajectoryStore.open(folder, write=True) as store:
        bad = episode(HOSTILE, 0, pays=True, run=HOSTILE, words=HOSTILE, reason=HOSTILE, components={HOSTILE: 1.0})
        store.append(bad, {"state-0": {}, "state-1": {HOSTILE: HOSTILE}}, tags=(HOSTILE,))
        huge = episode("x" * 100_000, 0, pays=False, run="y" * 1000, words="z" * 2_000_000, reason="w" * 500_000)
        store.append(huge, {}, tags=("t" * 5000,))
    return folder


@contextmanager
def viewed(*runs: Path, options: tuple[str, ...] = ()) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a viewer of these runs, and its process, which is ended as Ctrl-C would."""
    command = [str(Path(sys.executable).with_name("gymcp")), "view", "--no-open", *options, *map(str, runs)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("http://127.0.0.1:"):
                yield line.strip(), process
                break
        else:
            raise AssertionError(process.communicate(timeout=30))
    finally:
        if process.poll() is None:
            process.send_signal(2)
        process.communicate(timeout=60)
