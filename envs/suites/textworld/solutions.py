"""Gold calls from TextWorld's walkthroughs: played on the server's own code, and shortened to what is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gymcp.mcp_servers.native.runtime import ToolError
from gymcp.mcp_servers.programs.textworld.server import DIRECTIONS, TextWorld
from gymcp.types import Json

Call = tuple[str, dict[str, Json]]

_SECOND = {"unlock": "key", "lock": "key", "insert": "container", "put": "supporter"}
_COOKS = {"cook": "appliance", "chop": "knife", "slice": "knife", "dice": "knife"}
_JOINTS = (" with ", " into ", " on ", " from ")
READ = "examine"
"""The tool with which a cook reads the recipe once: gold keeps it, though the world does not need it."""


def gold_calls(game: Json, walkthrough: Iterable[str]) -> list[Call] | None:
    """The walkthrough as calls, shortened as long as it wins, with its reads; None if it does not win."""
    calls = _without_failures(game, [call for command in walkthrough if (call := as_call(command)) is not None])
    if not wins(game, calls):
        return None
    for size in (2, 1):  # what is dropped and taken again goes together
        for start in reversed(range(len(calls) - size + 1)):
            shorter = [*calls[:start], *calls[start + size :]]
            if all(name != READ for name, _ in calls[start : start + size]) and wins(game, shorter):
                calls = shorter
    return calls


def as_call(command: str) -> Call | None:
    """The call for a command of TextWorld's; None for a command that only looks."""
    verb, _, rest = command.partition(" ")
    if verb in ("look", "inventory"):
        return None
    if verb == "prepare":
        return ("prepare_meal", {})
    if verb == "go":
        assert rest in DIRECTIONS
        return ("go", {"direction": rest})
    first, second = _parts(rest)
    if verb in _COOKS:
        return (verb, {"food": first, _COOKS[verb]: second})
    if verb in ("eat", "drink"):
        return (verb, {"food": first})
    return (verb, {"thing": first, **({_SECOND[verb]: second} if verb in _SECOND else {})})


def wins(game: Json, calls: Sequence[Call]) -> bool:
    """True if every call can be made and the game is won after the last."""
    world = TextWorld(game)
    try:
        for call in calls:
            _play(world, call)
    except ToolError:
        return False
    return world.won


def last_necessary(game: Json, calls: Sequence[Call]) -> int | None:
    """The number of the last call without which the others do not win; None if there is none."""
    for number in reversed(range(len(calls))):
        if not _wins_despite_failures([*calls[:number], *calls[number + 1 :]], game):
            return number
    return None


def _wins_despite_failures(calls: Sequence[Call], game: Json) -> bool:
    """True if the game is won after the calls, played as an agent plays: a call that fails is passed over."""
    world = TextWorld(game)
    for call in calls:
        try:
            _play(world, call)
        except ToolError:
            continue
    return world.won


def _without_failures(game: Json, calls: Sequence[Call]) -> list[Call]:
    world = TextWorld(game)
    successful = []
    for call in calls:
        try:
            _play(world, call)
        except ToolError:
            continue
        successful.append(call)
    return successful


def _play(world: TextWorld, call: Call) -> str:
    name, arguments = call
    tool: Callable[..., str] = getattr(world, name)
    return tool(**arguments)


def _parts(rest: str) -> tuple[str, str]:
    for joint in _JOINTS:
        first, separator, second = rest.partition(joint)
        if separator:
            return first, second
    return rest, ""
