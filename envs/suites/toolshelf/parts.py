"""Parts of requests: something to be done in one service, with the calls that do it.

Every part changes the world, and what it says is enough to find out what to call: records are named as people name
them, values are given, or said to stand where another service, a file, a sheet or a graph tells them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gymcp.envs.suites.generation.single_turn import Call
from gymcp.envs.suites.toolshelf.wordings import wordings
from gymcp.mcp_servers.programs.shelf.descriptions import Field, Operation, Service
from gymcp.mcp_servers.programs.shelf.server import Row, Shelf, make_value, services
from gymcp.types import Json

CARRIED = ("person", "city", "day", "money")
"""Kinds of values that one service can take from another."""


class NotApplicable(Exception):
    """The services have no record for such a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    text: str
    """What is asked for, without a capital and a full stop."""
    calls: tuple[Call, ...]


@dataclass(slots=True)
class Desk:
    """The services of one task while it is made; each is used by at most one part."""

    rng: random.Random
    seed: int
    shelves: dict[str, Shelf] = field(default_factory=dict)

    def shelf(self, name: str) -> Shelf:
        if name not in self.shelves:
            self.shelves[name] = Shelf(services()[name], self.seed)
        return self.shelves[name]

    def unused(self) -> list[str]:
        names = [name for name in services() if name not in self.shelves]
        self.rng.shuffle(names)
        return names

    def play(self, calls: Sequence[Call]) -> None:
        """Makes the calls, of which each belongs to the service whose tool it is; others are for other servers."""
        owners = {tool: name for name in self.shelves for tool in services()[name].operations}
        for tool, arguments in calls:
            if tool in owners:
                self.shelves[owners[tool]].call(tool, arguments)


def plain(desk: Desk) -> Part:
    """One thing to be done, with all values given."""
    service = services()[desk.unused()[0]]
    operation = service.operations[desk.rng.choice(list(wordings()[service.name].requests))]
    shelf = desk.shelf(service.name)
    if operation.does == "create":
        return _creation(desk, shelf, operation)
    row = _row(desk, shelf, operation)
    values: dict[str, Any] = {each.name: _other(desk.rng, each, row) for each in operation.fields}
    if operation.does in ("add", "take"):
        values = {"amount": desk.rng.randint(2, 9)}
    return _request(service, operation, row, values)


def carried(desk: Desk) -> Part:
    """A value that another service knows is put in its place."""
    for wanting in _wanting(desk, CARRIED):
        for giving in desk.unused():
            nouns = wordings()[giving].nouns
            fit = [name for name in nouns if services()[giving].fields[name].kind == wanting[1].kind]
            if giving != wanting[0].service.name and fit:
                source = desk.shelf(giving)
                name = desk.rng.choice(fit)
                row = _row(desk, source, None)
                asked = f"{nouns[name].format(**_names(source.service, row))}"
                made = filled(desk, wanting, row[name], asked)
                return Part(text=made.text, calls=(*_look(source.service, row, read=True), *made.calls))
    raise NotApplicable


def conditional(desk: Desk) -> Part:
    """One of two things, by a number that has to be looked up."""
    for name in desk.unused():
        service, nouns = services()[name], wordings()[name].nouns
        numbers = [each for each in nouns if service.fields[each].is_number]
        if numbers:
            break
    else:
        raise NotApplicable
    source, asked = desk.shelf(name), desk.rng.choice(numbers)
    row = _row(desk, source, None)
    limit = max(0, row[asked] + desk.rng.choice((-3, -2, -1, 0, 1, 2, 3)))
    noun = nouns[asked].format(**_names(service, row))
    yes, no = plain(desk), plain(desk)
    text = f"if {noun} is more than {limit}, {yes.text}; if it is not, {no.text}"
    chosen = yes if row[asked] > limit else no
    return Part(text=text, calls=(*_look(service, row, read=True), *chosen.calls))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A value that a service knows."""

    noun: str
    value: Json
    calls: tuple[Call, ...]


def reading(desk: Desk) -> Reading:
    """Something to be looked up."""
    name = desk.unused()[0]
    service, nouns = services()[name], wordings()[name].nouns
    asked = desk.rng.choice(list(nouns))
    row = _row(desk, desk.shelf(name), None)
    noun = nouns[asked].format(**_names(service, row))
    return Reading(noun=noun, value=row[asked], calls=_look(service, row, read=True))


Wanting = tuple[Shelf, Field, Operation, str]


def wanting(desk: Desk, kinds: Sequence[str]) -> Wanting:
    """A service with a tool that sets one field of one of these kinds, and how one asks for that."""
    return next(_wanting(desk, kinds))


def filled(desk: Desk, wanting: Wanting, value: Json, said: str) -> Part:
    """The part in which that field gets the value, which the text calls what is `said`."""
    shelf, asked, operation, text = wanting
    row = _row(desk, shelf, operation)
    if row[asked.name] == value:
        raise NotApplicable
    made = _request(shelf.service, operation, row, {asked.name: value})
    names = {**_names(shelf.service, row), asked.name: said}
    return Part(text=text.format(**names), calls=made.calls)


def other_value(desk: Desk, wanting: Wanting) -> Json:
    """One that its field may have."""
    return make_value(wanting[1], desk.rng)


def _wanting(desk: Desk, kinds: Sequence[str]) -> Iterator[Wanting]:
    for name in desk.unused():
        service, requests = services()[name], wordings()[name].requests
        for tool in requests:
            operation = service.operations[tool]
            if operation.does == "set" and len(operation.fields) == 1 and operation.fields[0].kind in kinds:
                yield desk.shelf(name), operation.fields[0], operation, requests[tool]
    raise NotApplicable


def _creation(desk: Desk, shelf: Shelf, operation: Operation) -> Part:
    values = {each.name: make_value(each, desk.rng) for each in operation.fields}
    if any(row[shelf.service.label.name] == values[shelf.service.label.name] for row in shelf.rows.values()):
        raise NotApplicable
    text = wordings()[shelf.service.name].requests[operation.name].format(**values)
    return Part(text=text, calls=((operation.name, values),))


def _row(desk: Desk, shelf: Shelf, operation: Operation | None) -> Row:
    """A record that its name finds alone, in a state in which the operation is possible."""
    label = shelf.service.label.name
    states = operation.sources if operation and operation.sources else shelf.service.states
    fit = [
        row
        for row in shelf.rows.values()
        if row["state"] in states
        and sum(row[label].casefold() in other[label].casefold() for other in shelf.rows.values()) == 1
    ]
    if not fit:
        raise NotApplicable
    return desk.rng.choice(fit)


def _request(service: Service, operation: Operation, row: Row, values: dict[str, Any]) -> Part:
    text = wordings()[service.name].requests[operation.name].format(**{**_names(service, row), **values})
    call = (operation.name, {service.id_name: row["id"], **values})
    return Part(text=text, calls=(*_look(service, row, read=False), call))


def _look(service: Service, row: Row, *, read: bool) -> tuple[Call, ...]:
    """The calls that find a record by its name, and read it."""
    tools = {each.does: each.name for each in service.operations.values()}
    find: Call = (tools["find"], {service.label.name: row[service.label.name]})
    return (find, (tools["get"], {service.id_name: row["id"]})) if read else (find,)


def _names(service: Service, row: Row) -> dict[str, Any]:
    """What the wordings of a record may refer to."""
    label = {service.label.name: row[service.label.name]}
    return {**label, "it": wordings()[service.name].subject.format(**label)}


def _other(rng: random.Random, asked: Field, row: Row) -> Json:
    while (value := make_value(asked, rng)) == row[asked.name]:
        pass
    return value
