"""The declared tree of the world's objects, from the simulator's own tree. Pure functions over JSON.

Left out is everything that differs between two equal worlds: object numbers, the order of contents, counters, and what
never changes. Temperatures are told in steps of ten degrees, and not at all between 0 and 30 °C: all rooms cool slowly,
so exact ones would be a clock, and every state would occur once. A wire's ends are named by what they are connected to.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Json = Any

ROOM_TEMPERATURES = (0.0, 30.0)
"""Degrees Celsius between which a temperature is left out."""
GONE = "nothing"
"""Name of a thing that is no longer part of the world."""
_LIVING = {"living thing", "organism"}


def declare_tree(universe: Json, referents: Mapping[str, Json]) -> list[Json]:
    """The rooms with their contents, sorted. `referents`: object number -> ``{"referents": names}``.

    A thing has its name, ``in`` (contents), and what is not ordinary: ``open``, ``on``, ``broken``, ``matter`` (if not
    solid), ``degrees``, ``burning``, ``burned``, ``sickly``, ``dead``, ``wires``.
    """
    names = {number: name for number, name, _ in _walk(universe, "", referents)}
    return _declare_contents(universe, referents, names)


def locate_objects(universe: Json) -> dict[str, str]:
    """Object number -> path of names, such as ``kitchen/sink``."""
    return {number: path for number, _, path in _walk(universe, "", {})}


def declare_doors(doors: Iterable[tuple[str, str, bool]], paths: Mapping[str, str]) -> dict[str, bool]:
    """Name -> True if open, from (number of one side, number of the other, open)."""
    return {f"{paths.get(first, GONE)} - {paths.get(second, GONE)}": is_open for first, second, is_open in doors}


def read_goals(progress: str) -> str:
    """One digit for each goal, 1 if it is reached: the goals in sequence, a bar, and the optional ones."""
    in_sequence, _, optional = progress.partition("Unordered")
    return "|".join(
        "".join("1" if line.split("\t")[1] == "true" else "0" for line in part.splitlines() if line.count("\t") >= 3)
        for part in (in_sequence, optional)
    )


def _walk(thing: Json, path: str, referents: Mapping[str, Json]) -> Iterator[tuple[str, str, str]]:
    """(number, name, path) of everything below a thing."""
    for inner in thing["contents"].values():
        name = _name(inner, referents)
        inner_path = f"{path}/{name}" if path else name
        yield inner["uuid"], name if not _is_terminal(inner) else f"{_name(thing, referents)} {name}", inner_path
        yield from _walk(inner, inner_path, referents)


def _name(thing: Json, referents: Mapping[str, Json]) -> str:
    """Its name; the longest of a living thing's, which tells its stage of life."""
    known = set(referents.get(thing["uuid"], {}).get("referents", ()))
    return str(max(sorted(known - _LIVING), key=len) if known & _LIVING else thing["name"])


def _is_terminal(thing: Json) -> bool:
    return thing["propElectricalConnection"] is not None


def _declare_contents(thing: Json, referents: Mapping[str, Json], names: Mapping[str, str]) -> list[Json]:
    things = [
        _declare_thing(inner, referents, names) for inner in thing["contents"].values() if not _is_terminal(inner)
    ]
    return sorted(things, key=lambda each: json.dumps(each, sort_keys=True))


def _declare_thing(thing: Json, referents: Mapping[str, Json], names: Mapping[str, str]) -> Json:
    declared = {"name": _name(thing, referents), **_declare_properties(thing)}
    wires = sorted(
        f"{inner['name']} - {names.get(number, GONE)}"
        for inner in thing["contents"].values()
        if _is_terminal(inner)
        for number in inner["propElectricalConnection"]["connectedTo"]
    )
    if wires:
        declared["wires"] = wires
    if contents := _declare_contents(thing, referents, names):
        declared["in"] = contents
    return declared


def _declare_properties(thing: Json) -> dict[str, Json]:
    material, container = thing["propMaterial"] or {}, thing["propContainer"] or {}
    device, life = thing["propDevice"] or {}, thing["propLife"] or {}
    matter = material.get("stateOfMatter", "solid")
    found = {
        "matter": None if matter == "solid" else matter,
        "degrees": _declare_temperature(material.get("temperatureC")),
        "burning": material.get("isCombusting") or None,
        "burned": material.get("hasCombusted") or None,
        "open": container.get("isOpen") if container.get("isClosable") else None,
        "on": device.get("isActivated") if device.get("isActivable") else device.get("isActivated") or None,
        "broken": device.get("isBroken") or None,
        "sickly": life.get("isSickly") or None,
        "dead": life.get("isDead") or None,
    }
    return {key: value for key, value in found.items() if value is not None}


def _declare_temperature(degrees: float | None) -> int | None:
    if degrees is None or ROOM_TEMPERATURES[0] <= degrees <= ROOM_TEMPERATURES[1]:
        return None
    return round(degrees / 10) * 10
