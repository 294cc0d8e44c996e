"""Episodes made by hand, for the tests of all folders: short ones, and some with all that a record can hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gymcp.outcome import Outcome
from gymcp.store import TrajectoryStore, create_run
from gymcp.types import (
    Action,
    Json,
    Message,
    Observation,
    Sampled,
    Step,
    Tool,
    ToolCall,
    ToolResult,
    Trajectory,
    Usage,
    UserToolCalls,
)

HOSTILE_TEXT = (
    "<script>alert(1)</script><img src=https://evil.invalid/x onerror=alert(2)><b>bold</b> \x1b[31mred\x1b[2J"
    " \u202eesrever\u202c \u200bzero \U000e0041tag \ud800 </textarea></title> javascript:alert(3)"
)


def stop(record: Trajectory, end: str) -> Trajectory:
    """The episode as a search records it that has stopped it: ``paused``, or ``failed`` after a call that failed."""
    return replace(record, outcome=Outcome.BUDGET_EXHAUSTED, provenance={"search": {"end": end}})


SEARCH = Tool(name="search", description="finds", input_schema={"type": "object", "properties": {"q": {}}})


def episode(task: str, *, trial: int = 0, attempt: int = 0, steps: int = 2, **fields: Json) -> Trajectory:
    """A short episode; its id names the attempt that the store should give it."""
    return Trajectory(
        **{
            "id": f"{task}-{trial}-{attempt}",
            "env": "shop",
            "task": task,
            "trial": trial,
            "steps": tuple(step(n) for n in range(steps)),
            "score": 1.0,
            **fields,
        }
    )


def step(n: int) -> Step:
    return Step(
        turn=0,
        observation=Observation(messages=(Message(role="tool", content=f"found {n}"),), tools=(SEARCH,)),
        action=Action(tool_calls=(ToolCall(id=f"c{n}", name="search", arguments={"q": f"shoes {n}"}),)),
        results=(ToolResult(call_id=f"c{n}", content=f"found {n}"),),
        state_key=f"s{n}",
        state_ref=f"state-{n % 3}",
    )


def order_episode(task: str, trial: int, *, pays: bool, run: str, words: str = "", **fields: Json) -> Trajectory:
    """Two steps: looks (the same in all episodes of a task), then pays or refunds."""
    look = ToolCall(id="1", name="get_order", arguments={"order": "7"})
    act = ToolCall(id="2", name="pay_order" if pays else "refund_order", arguments={"order": "7", "note": words})
    key = f"{task}-start"
    steps = (
        Step(
            turn=0,
            observation=Observation(messages=(Message(role="user", content=f"Pay order 7. {words}"),), tools=()),
            action=Action(text="I look first.", tool_calls=(look,)),
            results=(ToolResult(call_id="1", content='{"status": "open"}', seconds=0.02, content_bytes=18),),
            state_key=key,
            world_key="w0",
            state_ref="state-0",
            agent_s=0.1,
            sampled=make_sample("0"),
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
            sampled=make_sample("1"),
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


def make_sample(version: str) -> Sampled:
    return Sampled(
        prompt_ids=(1, 2, 3, 4, 5, 6, 7),
        ids=(11, 12, 13, 14),
        logprobs=(-0.01, -0.5, -4.0, float("-inf")),
        versions=((version, 0, 2), ("9", 2, 4)),
    )


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
BAD = ToolCall(id="c1", name="pay", arguments='{"to": ', parse_error="the arguments are not JSON")

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
                ToolResult(call_id="c0", content="a long answer", seconds=0.25, content_bytes=13, cost=0.5),
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
                UserToolCalls(
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


def write_run(folder: Path, record: Trajectory) -> Path:
    """The folder of a run with this one episode."""
    with create_run(folder, {"env": "shop", "agent": "react"}), TrajectoryStore.open(folder, write=True) as store:
        store.append(record, {})
    return folder
