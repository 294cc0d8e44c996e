"""A corridor of doors, and a walker who knows the way by half: a run with steps that recur, for `gymcp credit`.

Try: gymcp eval examples/corridor.py --agent examples/corridor.py:Walker --trials 16 --out runs/corridor
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from gymcp import Action, EpisodeLimits, GoldTurn, Observation, Step, Suite, Task, ToolCall
from gymcp.envs import EnvSpec
from gymcp.evaluators.graders import final_state_equals
from gymcp.mcp_servers import native_server

LEVERS = ("red", "green", "blue", "white")
DOORS, STEPS = 6, 18
KNOWN = 0.65
"""Probability that the walker pulls the right lever; else it draws one of the others."""


class Corridor:
    """Each door has four levers: one opens it, one leads a door back, one does nothing, one locks the exit for good.

    The answer names the door and nothing else, so that a state is the same however it was reached.
    """

    def __init__(self, effects: list[dict[str, str]]) -> None:
        self.effects = effects
        self.at = 0
        self.locked = False

    def pull(self, lever: str) -> str:
        """Pull a lever at the door: red, green, blue or white."""
        effect = self.effects[self.at].get(lever, "nothing") if self.at < len(self.effects) else "nothing"
        self.at = {"forward": self.at + 1, "back": max(0, self.at - 1)}.get(effect, self.at)
        self.locked = self.locked or effect == "lock"
        return f"door {self.at}"


def make_task(number: int) -> Task:
    """The levers of each door are mixed by the number of the task."""
    mixed = random.Random(number)
    doors = [
        dict(zip(mixed.sample(LEVERS, 4), ("forward", "back", "nothing", "lock"), strict=True)) for _ in range(DOORS)
    ]
    way = [next(lever for lever, effect in door.items() if effect == "forward") for door in doors]
    calls = tuple(ToolCall(id=f"call_{n}", name="pull", arguments={"lever": lever}) for n, lever in enumerate(way))
    return Task(
        id=f"corridor_{number}",
        prompts=(f"Leave the corridor. You stand at door 0; the exit is door {DOORS}.",),
        initial_state={"effects": doors},
        target={"effects": doors, "at": DOORS, "locked": False},
        gold=(GoldTurn(calls=calls, final_text="I am out."),),
        last_necessary=(0, DOORS - 1),
    )


class Walker:
    """An agent without a model, which is right with probability `KNOWN` at each door."""

    def __init__(self, task: Task, seed: int) -> None:
        self._way = [str(call.arguments["lever"]) for call in task.gold[0].calls if not isinstance(call.arguments, str)]
        self._random = random.Random(seed)
        self._calls = 0

    def resume(self, steps: Sequence[Step]) -> None:
        """Go on behind these steps: only the last answer matters."""
        self._calls = sum(len(step.action.tool_calls) for step in steps)

    async def act(self, observation: Observation) -> Action:
        """Pull a lever, or say so at the exit."""
        last = observation.messages[-1].content
        at = int(last.removeprefix("door ")) if last.startswith("door ") else 0
        if at == len(self._way):
            return Action(text="I am out.")
        right = self._way[at]
        wrong = [lever for lever in LEVERS if lever != right]
        lever = right if self._random.random() < KNOWN else self._random.choice(wrong)
        self._calls += 1
        return Action(tool_calls=(ToolCall(id=f"call_{self._calls}", name="pull", arguments={"lever": lever}),))


ENV = EnvSpec(
    name="corridor",
    description="Doors with levers: right, wrong and irreversible ones.",
    servers=(native_server("corridor", Corridor),),
    suite=Suite(name="corridor", version="1", tasks=tuple(make_task(number) for number in range(10))),
    grade=final_state_equals(),
    limits=EpisodeLimits(steps=STEPS),
)
