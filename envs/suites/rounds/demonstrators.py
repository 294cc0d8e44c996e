"""Agents that demonstrate rounds, on purpose worse than the oracle: practice must have something left to learn.

``gymcp eval rounds --agent gymcp.envs.suites.rounds.demonstrators:teacher`` plays one of them; in a recipe it is
``warm_start.agent``, with ``warm_start.min_score = 0`` so that failed episodes are shown, too.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

from gymcp.envs.suites.rounds.grading import LOOK
from gymcp.envs.suites.rounds.tasks import DONE
from gymcp.mcp_servers.programs.rounds.house import (
    ASIDE,
    BACK,
    NOTHING,
    PARCELS,
    ROOMS,
    TOOLS,
    House,
    describe_parcel,
    describe_room,
    make_house,
)
from gymcp.protocols import Agent
from gymcp.types import Action, Observation, Task, ToolCall

KNOWN_SHARE = 0.6
"""Share of the parcels and of the side rooms whose right tool the teacher knows: in all episodes the same ones."""
RIGHT_IF_KNOWN, RIGHT_IF_UNKNOWN = 0.95, 0.4
"""Probability that the teacher takes the right tool; else it takes any of the others, all equally likely."""
RIGHT_IF_HABIT, HABIT = 0.3, 0.5
"""Probabilities of the teacher with habits, at an unknown parcel: that it takes the right tool, and that it takes its
habit, a wrong one that does no lasting harm, always the same for a parcel. A policy that only grows surer of these
tools gains nothing: it has to find out which habits are bad."""
HARMLESS = (NOTHING, ASIDE, BACK)
"""Effects of a habit."""
LOOK_SHARE = 0.85
"""Probability that the looking oracle looks at a parcel first, drawn for each parcel by itself."""


class Demonstrator:
    """Takes the right tool for what is before it more often than not; says done when nothing is left to do."""

    def __init__(self, house: int, rng: random.Random, *, has_habits: bool = False) -> None:
        tables = make_house(house)
        self._parcels = {describe_parcel(parcel): tables.right_tool(parcel) for parcel in PARCELS}
        self._rooms = {describe_room(room): tables.ways_back[room] for room in ROOMS}
        draw = random.Random(f"teacher of house {house}")
        self._known = frozenset(_draw_share(draw, self._parcels) + _draw_share(draw, self._rooms))
        self._habits = _draw_habits(draw, tables, self._known) if has_habits else {}
        self._rng = rng
        self._calls = 0

    async def act(self, observation: Observation) -> Action:
        shown = observation.messages[-1].content.rpartition("\n")[2]
        right = self._parcels.get(shown) or self._rooms.get(shown)
        if right is None:
            return Action(text=DONE)
        self._calls += 1
        return Action(tool_calls=(ToolCall(id=f"call_{self._calls}", name=self._choose(shown, right)),))

    def _choose(self, shown: str, right: str) -> str:
        habit, draw = self._habits.get(shown), self._rng.random()
        chance = RIGHT_IF_KNOWN if shown in self._known else RIGHT_IF_HABIT if habit else RIGHT_IF_UNKNOWN
        if draw < chance:
            return right
        if habit and draw < chance + HABIT:
            return habit
        return self._rng.choice([tool for tool in TOOLS if tool != right])


class LookingOracle:
    """Takes the right tool for every parcel, after a look at most of them, sealed or not."""

    def __init__(self, task: Task, rng: random.Random) -> None:
        house = make_house(task.initial_state["house"])
        names: list[str] = []
        for parcel in task.initial_state["parcels"]:
            names += [LOOK] if rng.random() < LOOK_SHARE else []
            names.append(house.right_tool(parcel))
        self._calls = iter([ToolCall(id=f"call_{number}", name=name) for number, name in enumerate(names, 1)])

    async def act(self, observation: Observation) -> Action:
        call = next(self._calls, None)
        return Action(text=DONE) if call is None else Action(tool_calls=(call,))


def _draw_share(rng: random.Random, places: Mapping[str, str]) -> list[str]:
    return rng.sample(sorted(places), round(KNOWN_SHARE * len(places)))


def _draw_habits(draw: random.Random, house: House, known: Collection[str]) -> Mapping[str, str]:
    """Parcel that is not known, as it is shown -> a tool that does nothing to it, or leads aside or back."""
    harmless = {
        describe_parcel(parcel): [tool for tool, effect in house.effects[parcel].items() if effect in HARMLESS]
        for parcel in PARCELS
    }
    return {shown: draw.choice(sorted(tools)) for shown, tools in harmless.items() if shown not in known}


def teacher(task: Task, seed: int) -> Agent:
    """An imperfect agent for `rounds`."""
    return Demonstrator(task.initial_state["house"], random.Random(f"{seed}-{task.id}"))


def teacher_with_habits(task: Task, seed: int) -> Agent:
    """An imperfect agent for `rounds` that does most often what is wrong where it does not know better."""
    return Demonstrator(task.initial_state["house"], random.Random(f"{seed}-{task.id}"), has_habits=True)


def looking_oracle(task: Task, seed: int) -> Agent:
    """An agent for `looks` that is always right and looks more often than it must."""
    return LookingOracle(task, random.Random(f"{seed}-{task.id}"))
