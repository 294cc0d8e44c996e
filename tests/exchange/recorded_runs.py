"""Runs to export: made by hand, with everything that a record can hold, hostile texts too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from gymcp.store import TrajectoryStore, create_run
from gymcp.types import (
    Action,
    Json,
    Message,
    Observation,
    Outcome,
    Sampled,
    Step,
    Tool,
    ToolCall,
    ToolResult,
    Trajectory,
    Usage,
    UserAct,
)

Verdicts = Callable[[Iterable[Json]], list[Json]]
"""From documents to Harbor's objections to each, and what it keeps where it has none."""

PAY = Tool(
    name="pay",
    description="Pays.",
    input_schema={"type": "object", "properties": {"to": {"type": "string"}}},
    annotations={"readOnlyHint": False},
)
LIST = Tool(name="list")
FIRST = Sampled(prompt_ids=(1, 2, 3), ids=(4, 5), logprobs=(-0.1, -0.5), versions=(("v0", 0, 1), ("v1", 1, 2)))
SECOND = Sampled(prompt_ids=(1, 2, 3, 4, 5, 6), ids=(7,), logprobs=(-0.25,), versions=(("v1", 0, 1),), finish="length")
EDITED = Sampled(prompt_ids=(1, 9), ids=(8, 8), logprobs=(-1.5, -2.0), versions=(("v1", 0, 2),))
CALL = ToolCall(id="c0", name="pay", arguments={"to": "bob <script>alert(1)</script>", "amounts": [1, 2.5, None]})
BAD = ToolCall(id="c1", name="pay", arguments='{"to": ', problem="the arguments are not JSON")

PAID = Trajectory(
    id="episode 1",
    env="shop",
    task="pay/bob",
    group="pay/bob v1",
    seed=2**70,
    trial=1,
    parent="episode 0",
    steps=(
        Step(
            turn=0,
            observation=Observation(
                messages=(Message(role="system", content="Be kind."), Message(role="user", content="=Pay \u202ebob")),
                tools=(PAY, LIST),
            ),
            action=Action(text="Paying.", tool_calls=(CALL, BAD)),
            results=(
                ToolResult(call_id="c0", content="a long answer", seconds=0.25, bytes=13, cost=0.5),
                ToolResult(call_id="c1", content="the arguments are not JSON", is_error=True),
            ),
            state_key="s0",
            world_key="w0",
            state_ref="state-0",
            sampled=FIRST,
            agent_s=0.125,
        ),
        Step(
            turn=0,
            observation=Observation(
                messages=(
                    Message(role="tool", content="a long [cut]", tool_call_id="c0"),
                    Message(role="tool", content="the arguments are not JSON", tool_call_id="c1", is_error=True),
                ),
                tools=(PAY, LIST),
            ),
            action=Action(text="Paid."),
            user_acts=(
                UserAct(
                    calls=(ToolCall(id="user_1", name="look", arguments={"at": "account"}),),
                    results=(ToolResult(call_id="user_1", content="12", seconds=0.5),),
                ),
            ),
            state_key="s1",
            world_key="w1",
            sampled=SECOND,
        ),
        Step(
            turn=1,
            observation=Observation(messages=(Message(role="user", content="Thanks?"),), tools=(LIST,)),
            action=Action(text=""),
            reward=0.5,
            sampled=EDITED,
            valid=False,
        ),
    ),
    initial_key="k0",
    final_key="k1",
    final_state="state-1",
    outcome=Outcome.BUDGET_EXHAUSTED,
    score=0.5,
    components={"milestones": 0.25},
    reason="=half of it",
    usage=Usage(
        tool_calls=2,
        tool_errors=1,
        prompt_tokens=11,
        completion_tokens=5,
        cost=0.5,
        wall_s=2.0,
        tools={"pay": {"calls": 2.0}},
        models={"tiny": {"requests": 3.0}},
    ),
    provenance={"note": "x"},
)
SPOKEN = Trajectory(
    id="episode 2",
    env="shop",
    task="talk",
    group="talk",
    steps=(
        Step(
            turn=0,
            observation=Observation(messages=(Message(role="user", content="Hello"),), tools=(LIST,)),
            action=Action(text="Hello to you."),
        ),
    ),
    score=1.0,
)
LOST = Trajectory(id="episode 3", env="shop", task="lost", outcome=Outcome.ENV_INFRA, reason="the server died")
HOSTILE = replace(
    SPOKEN,
    id="\ud800 episode",
    task="../../etc/x\ud800\0",
    steps=(
        replace(
            SPOKEN.steps[0],
            action=Action(
                text="lone \udcff",
                tool_calls=(ToolCall(id="", name="list", arguments={"n": float("nan"), "\ud800": float("inf")}),),
            ),
            results=(ToolResult(call_id="nobody", content="\0\x1b[2J"),),
        ),
    ),
)
TAGS = ("refunds", "long")


def make_run(folder: Path, episodes: Sequence[Trajectory] = (PAID, SPOKEN, LOST)) -> Path:
    """A run folder that holds them, all under the same tags."""
    config = {"env": "shop", "suite": "shop", "agent": "react", "policy": "tiny"}
    with create_run(folder, config), TrajectoryStore.open(folder, write=True) as store:
        for episode in episodes:
            store.append(episode, {}, tags=TAGS)
    return folder


def read_run(folder: Path) -> list[Trajectory]:
    with TrajectoryStore.open(folder) as store:
        assert {row.tags for row in store.summaries()} == {TAGS}
        return list(store.iter_trajectories())
