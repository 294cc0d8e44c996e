"""ScienceWorld's simulator, behind its own gateway: load a task's variation, act, read the world.

The simulator's `PythonInterface` is what upstream's own package calls, too. Standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from gymcp.mcp_servers.programs.scienceworld.gateway import Gateway, Reference, Value
from gymcp.mcp_servers.programs.scienceworld.world_tree import (
    declare_doors,
    declare_tree,
    locate_objects,
    read_goals,
)

Json = Any

FULL_SCORE = 100
_OBJECT = re.compile(r"^ObjectID \((\d+), name: (.*?), type: ", re.MULTILINE)


class Simulator:
    """One world at a time; `load` makes another."""

    def __init__(self) -> None:
        self._gateway = Gateway()
        self._agent: Value = None
        self._doors: list[tuple[str, str, Value]] = []
        self._question = ""

    def load(self, task: str, variation: int, *, gold: bool = False) -> None:
        """Make the world of a task's variation; with `gold`, find the actions that solve it as well.

        Raises ValueError if there is no such task.
        """
        self._gateway.call("load", task, variation, "", gold)
        if error := self._gateway.call("errorStr"):
            raise ValueError(error)
        self._agent = self._read("get", self._gateway.call("agentInterface"))
        self._parser = self._read("inputParser", self._agent)
        self._goals = self._read("goalSequence", self._read("task", self._agent))
        self._monitor = self._read("objMonitor", self._agent)
        self._universe = self._read("universe", self._agent)
        self._doors = list(self._find_doors())
        self._question = ""

    def act(self, action: str) -> str:
        """The simulator's answer to an action in its own words."""
        said = str(self._gateway.call("step", action))
        self._question = said if self._is("isInAmbiguousState", self._parser) else ""
        return said

    def look(self) -> str:
        return str(self._gateway.call("freeActionLook"))

    def list_inventory(self) -> str:
        return str(self._gateway.call("freeActionInventory"))

    def describe_task(self) -> str:
        return str(self._gateway.call("freeActionTaskDesc"))

    def list_actions(self) -> list[str]:
        """Every action with things at hand that the simulator takes now, sorted."""
        found = json.loads(self._gateway.call("getValidActionObjectCombinationsJSON"))
        return sorted({each["action"] for each in found["validActions"]})

    def score(self) -> int:
        """Percent of the task's goals that are reached; negative if it is failed."""
        return round(FULL_SCORE * float(self._gateway.call("score", on=self._goals)))

    def is_over(self) -> bool:
        """True if the task is done or failed, or if an action has broken the simulator."""
        return (
            self._is("isCompleted", self._goals)
            or self._is("isFailed", self._goals)
            or self._is("isInErrorState", self._agent)
        )

    def list_gold(self) -> list[str]:
        """Upstream's own actions, of a variation that was loaded with `gold`."""
        return self._list(self._gateway.call("getGoldActionSequence"))

    def list_tasks(self) -> list[str]:
        return self._list(self._gateway.call("getTaskNames"))

    def list_variations(self, split: str) -> list[int]:
        """Variations of the loaded task in upstream's split ``Train``, ``Dev`` or ``Test``."""
        return [int(each) for each in self._list(self._gateway.call(f"getVariations{split}"))]

    def describe_world(self) -> dict[str, Json]:
        """The declared state: rooms, doors, what is in focus, goals, and a question that waits for its answer."""
        tree = json.loads(self._gateway.call("getObjectTree", ""))
        referents = json.loads(self._gateway.call("getAllObjectIdsTypesReferentsLUTJSON"))
        paths = locate_objects(tree)
        doors = [(first, second, self._is("isOpen", door)) for first, second, door in self._doors]
        focused = self._read("getMonitoredObjects", self._monitor)
        focus = _OBJECT.findall(self._gateway.call("mkString", "\n", on=focused))
        return {
            "rooms": declare_tree(tree, referents),
            "doors": declare_doors(doors, paths),
            "focus": sorted(paths.get(number, name) for number, name in focus),
            "goals": read_goals(str(self._gateway.call("getGoalProgressStr"))),
            "question": self._question,
        }

    def _find_doors(self) -> Iterator[tuple[str, str, Value]]:
        """(number of one side, number of the other, properties) of every door and drain."""
        inside = set(locate_objects(json.loads(self._gateway.call("getObjectTree", ""))))
        everything = self._gateway.call("getContainedObjectsAndPortalsRecursive", True, True, on=self._universe)
        listed = self._gateway.call("toVector", on=everything)
        for place, (number, name) in enumerate(_OBJECT.findall(self._gateway.call("mkString", "\n", on=listed))):
            if number not in inside and not name.startswith("terminal"):
                properties = self._read("propPortal", self._read("apply", listed, place))
                door = self._read("get", properties)
                first, second = (self._read(side, door) for side in ("connectsFrom", "connectsTo"))
                yield str(self._read("uuid", first)), str(self._read("uuid", second)), door

    def _read(self, method: str, on: Value, *arguments: Value) -> Value:
        return self._gateway.call(method, *arguments, on=on)

    def _is(self, method: str, on: Value) -> bool:
        return self._gateway.call(method, on=on) is True

    def _list(self, listed: Value) -> list[str]:
        assert isinstance(listed, Reference)
        size = self._gateway.call("size", on=listed)
        return [str(self._gateway.call("get", place, on=listed)) for place in range(size)]
