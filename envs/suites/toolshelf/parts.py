"""Parts of requests: something to be done in one service, with the calls that do it.

Every part changes the world, and its text is enough to find out which calls to make: records are named as people name
them; values are given, or the text names the service, file, sheet or graph that has them.
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

SHARED_KINDS = ("person", "city", "day", "money")
"""Kinds of values that one service can take from another."""


class NotApplicable(Exception):
    """The services have no record for such a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    text: str
    """The request, without a capital and a full stop."""
    calls: tuple[Call, ...]


@dataclass(slots=True)
class TaskBuilder:
    """State of one task while it is made: its random numbers and services; a service is used by at most one part."""

    rng: random.Random
    seed: int
    shelves: dict[str, Shelf] = field(default_factory=dict)

    def shelf(self, name: str) -> Shelf:
        if name not in self.shelves:
            self.shelves[name] = Shelf(services()[name], self.seed)
        return self.shelves[name]

    def shuffle_unused(self) -> list[str]:
        """Names of the services that no part uses yet, in random order."""
        names = [name for name in services() if name not in self.shelves]
        self.rng.shuffle(names)
        return names

    def play(self, calls: Sequence[Call]) -> None:
        """Make the calls of tools that the services have; the other calls are for other servers."""
        owners = {tool: name for name in self.shelves for tool in services()[name].operations}
        for tool, arguments in calls:
            if tool in owners:
                self.shelves[owners[tool]].call(tool, arguments)


def make_direct_part(builder: TaskBuilder) -> Part:
    """One thing to be done, with all values given."""
    service = services()[builder.shuffle_unused()[0]]
    operation = service.operations[builder.rng.choice(list(wordings()[service.name].requests))]
    shelf = builder.shelf(service.name)
    if operation.does == "create":
        return _creation(builder, shelf, operation)
    row = _row(builder, shelf, operation)
    values: dict[str, Any] = {field.name: _other(builder.rng, field, row) for field in operation.fields}
    if operation.does in ("add", "take"):
        values = {"amount": builder.rng.randint(2, 9)}
    return _request(service, operation, row, values)


def make_transfer_part(builder: TaskBuilder) -> Part:
    """One field to be set to a value that another service knows."""
    for gap in _gaps(builder, SHARED_KINDS):
        for giver in builder.shuffle_unused():
            nouns = wordings()[giver].nouns
            fit = [name for name in nouns if services()[giver].fields[name].kind == gap[1].kind]
            if giver != gap[0].service.name and fit:
                source = builder.shelf(giver)
                name = builder.rng.choice(fit)
                row = _row(builder, source, None)
                noun = f"{nouns[name].format(**_names(source.service, row))}"
                part = fill_gap(builder, gap, row[name], noun)
                return Part(text=part.text, calls=(*_look(source.service, row, read=True), *part.calls))
    raise NotApplicable


def make_conditional_part(builder: TaskBuilder) -> Part:
    """One of two things to be done, depending on a number that has to be looked up."""
    for name in builder.shuffle_unused():
        service, nouns = services()[name], wordings()[name].nouns
        numbers = [field for field in nouns if service.fields[field].is_number]
        if numbers:
            break
    else:
        raise NotApplicable
    source, asked = builder.shelf(name), builder.rng.choice(numbers)
    row = _row(builder, source, None)
    limit = max(0, row[asked] + builder.rng.choice((-3, -2, -1, 0, 1, 2, 3)))
    noun = nouns[asked].format(**_names(service, row))
    yes, no = make_direct_part(builder), make_direct_part(builder)
    text = f"if {noun} is more than {limit}, {yes.text}; if it is not, {no.text}"
    chosen = yes if row[asked] > limit else no
    return Part(text=text, calls=(*_look(service, row, read=True), *chosen.calls))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A value that a service knows."""

    noun: str
    value: Json
    calls: tuple[Call, ...]


def make_reading(builder: TaskBuilder) -> Reading:
    """A value to be looked up, drawn at random."""
    name = builder.shuffle_unused()[0]
    service, nouns = services()[name], wordings()[name].nouns
    asked = builder.rng.choice(list(nouns))
    row = _row(builder, builder.shelf(name), None)
    noun = nouns[asked].format(**_names(service, row))
    return Reading(noun=noun, value=row[asked], calls=_look(service, row, read=True))


Gap = tuple[Shelf, Field, Operation, str]
"""A field that a request can ask to set: its service, the field, the tool that sets it, and the request's template."""


def find_gap(builder: TaskBuilder, kinds: Sequence[str]) -> Gap:
    """A service with a tool that sets one field of one of these kinds."""
    return next(_gaps(builder, kinds))


def fill_gap(builder: TaskBuilder, gap: Gap, value: Json, noun: str) -> Part:
    """The part that sets the field to the value, which the text names by `noun`."""
    shelf, field_to_set, operation, text = gap
    row = _row(builder, shelf, operation)
    if row[field_to_set.name] == value:
        raise NotApplicable
    part = _request(shelf.service, operation, row, {field_to_set.name: value})
    names = {**_names(shelf.service, row), field_to_set.name: noun}
    return Part(text=text.format(**names), calls=part.calls)


def draw_value(builder: TaskBuilder, gap: Gap) -> Json:
    """A random value that the field may have."""
    return make_value(gap[1], builder.rng)


def _gaps(builder: TaskBuilder, kinds: Sequence[str]) -> Iterator[Gap]:
    for name in builder.shuffle_unused():
        service, requests = services()[name], wordings()[name].requests
        for tool in requests:
            operation = service.operations[tool]
            if operation.does == "set" and len(operation.fields) == 1 and operation.fields[0].kind in kinds:
                yield builder.shelf(name), operation.fields[0], operation, requests[tool]
    raise NotApplicable


def _creation(builder: TaskBuilder, shelf: Shelf, operation: Operation) -> Part:
    values = {field.name: make_value(field, builder.rng) for field in operation.fields}
    if any(row[shelf.service.label.name] == values[shelf.service.label.name] for row in shelf.rows.values()):
        raise NotApplicable
    text = wordings()[shelf.service.name].requests[operation.name].format(**values)
    return Part(text=text, calls=((operation.name, values),))


def _row(builder: TaskBuilder, shelf: Shelf, operation: Operation | None) -> Row:
    """A random record whose name finds no other record, in a state that allows the operation."""
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
    return builder.rng.choice(fit)


def _request(service: Service, operation: Operation, row: Row, values: dict[str, Any]) -> Part:
    text = wordings()[service.name].requests[operation.name].format(**{**_names(service, row), **values})
    call = (operation.name, {service.id_name: row["id"], **values})
    return Part(text=text, calls=(*_look(service, row, read=False), call))


def _look(service: Service, row: Row, *, read: bool) -> tuple[Call, ...]:
    """The calls that find a record by its name, and read it."""
    tools = {operation.does: operation.name for operation in service.operations.values()}
    find: Call = (tools["find"], {service.label.name: row[service.label.name]})
    return (find, (tools["get"], {service.id_name: row["id"]})) if read else (find,)


def _names(service: Service, row: Row) -> dict[str, Any]:
    """The slots that the wordings for a record may use."""
    label = {service.label.name: row[service.label.name]}
    return {**label, "it": wordings()[service.name].subject.format(**label)}


def _other(rng: random.Random, asked: Field, row: Row) -> Json:
    while (value := make_value(asked, rng)) == row[asked.name]:
        pass
    return value
