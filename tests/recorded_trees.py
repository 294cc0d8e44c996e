"""A run with trees made by hand: steps, states, tokens and scores are known, so that figures can be checked by hand.

``pay``, trial 0, is a tree of four leaves; each name below is the action of a step, and its number that of the step:

    look0 ask1 pay2                     score 0     first episode
    look0 ask1 refund2 pay3             score 1     branch 2.1
    look0 ask1 refund2 look3            score 0     branch 2.1/3.1
    look0 pay1                          score 1     branch 1.1

``look``, trial 0, is a tree of one leaf with score 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gymcp.store import BranchRecord, TrajectoryStore, create_run
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
)

TOOLS = tuple(Tool(name=name, description=f"{name} an order") for name in ("look", "ask", "pay", "refund"))
CONFIG: dict[str, Json] = {"env": "shop", "suite": "shop", "suite_version": "1", "agent": "react"}
PATHS = {
    "root": (("look", "ask", "pay"), 0.0),
    "late": (("look", "ask", "refund", "pay"), 1.0),
    "later": (("look", "ask", "refund", "look"), 0.0),
    "early": (("look", "pay"), 1.0),
}
PLACES = {"late": ("root", "2.1", 2), "later": ("late", "2.1/3.1", 3), "early": ("root", "1.1", 1)}
"""Branch -> its parent, its place, and the number of steps that it shares."""


def states_of(actions: Sequence[str]) -> list[tuple[str, Json]]:
    """The address and the state of the world after each of the actions."""
    paid, refunds, states = False, 0, []
    for action in actions:
        paid, refunds = paid or action == "pay", refunds + (action == "refund")
        state = {"order": {"paid": paid, "refunds": refunds}}
        states.append((f"state-{paid}-{refunds}", state))
    return states


def make_episode(id: str, actions: Sequence[str], score: float, **fields: Json) -> Trajectory:
    """An episode of these actions, with the tokens that a model read and drew."""
    steps: list[Step] = []
    prompt: tuple[int, ...] = (1, 2)
    for number, (action, (ref, _)) in enumerate(zip(actions, states_of(actions), strict=True)):
        call = ToolCall(id=f"{number}-{action}", name=action, arguments={"order": "7"})
        drawn = (10 + number, 20 + "lapr".index(action[0]))
        said = Message(role="user", content="Settle order 7.")
        if steps:
            before = steps[-1].results[0]
            said = Message(role="tool", content=before.content, tool_call_id=before.call_id)
        steps.append(
            Step(
                turn=0,
                observation=Observation(messages=(said,), tools=TOOLS),
                action=Action(text=f"I {action}.", tool_calls=(call,)),
                results=(ToolResult(call_id=call.id, content=f"{action} done", seconds=0.01, content_bytes=9),),
                state_key=f"key-{'-'.join(actions[:number])}",
                world_key=ref,
                state_ref=ref,
                agent_s=0.1,
                sampled=Sampled(prompt_ids=prompt, ids=drawn, logprobs=(-0.5, -0.25), versions=(("v0", 0, 2),)),
            )
        )
        prompt = (*prompt, *drawn, 5)
    steps[-1] = replace(steps[-1], reward=score)
    return Trajectory(
        **{
            "id": id,
            "env": "shop",
            "task": "pay",
            "group": "shop/pay/v0",
            "seed": 3,
            "steps": tuple(steps),
            "initial_key": "state-False-0",
            "final_key": steps[-1].world_key,
            "score": score,
            "reason": f"ends with {actions[-1]}",
            "usage": Usage(tool_calls=len(actions), prompt_tokens=9, completion_tokens=2 * len(actions), cost=0.5),
            **fields,
        }
    )


RECORDS = {
    name: make_episode(name, actions, score, parent=PLACES[name][0] if name in PLACES else None)
    for name, (actions, score) in PATHS.items()
}
BRANCHES = tuple(
    BranchRecord(trajectory=RECORDS[name], branch=place, shared=shared) for name, (_, place, shared) in PLACES.items()
)
ALONE = make_episode("alone", ("look",), 1.0, task="look", group="shop/look/v0")


def write_tree_run(
    folder: Path, *, root: Trajectory = RECORDS["root"], branches: Sequence[BranchRecord] = BRANCHES, **config: Json
) -> Path:
    """The run of this module, with these branches, and this first episode in the place of `root`."""
    states = {ref: state for actions, _ in PATHS.values() for ref, state in states_of(actions)}
    with create_run(folder, {**CONFIG, **config}), TrajectoryStore.open(folder, write=True) as store:
        store.append(root, states, tags=("money",), branches=branches)
        store.append(ALONE, {}, tags=("reading",))
    return folder
