"""Parser of the descriptions of small services: the records of a service, and its tools. Standard library only.

A description is lines of text::

    service rooms | Meeting rooms of the head office.
    record room RM name                              what is kept, how its ids begin, the field that names one
    name mix(Blue|Green, Room|Hall) | On the door.   a field: its name, its kind, what it says
    states bookable closed                           the states a record can be in, a new one in the first
    find_room find | ...                             by the naming field; gives ids
    get_room get | ...                               all fields of one
    list_rooms list floor | ...                      all, or those with that value
    add_room create name,floor | ...                 a new one with these fields; the others are empty
    set_seats set seats | ...                        other values for the fields
    pick_piece take stock | ...                      less of a number, never below 0; `add`: more
    close_room move bookable closed | ...            from some states to another, setting fields that follow

Kinds: ``person``, ``city``, ``day`` (ISO date), ``int(a..b)``, ``money(a..b)``, ``one(a|b)``, ``code(AB)`` and ``mix``,
one word of each list. Bounds of numbers hold for the initial records only; tools accept any number from 0.
"""

from __future__ import annotations

import re
from typing import Any

KINDS = ("person", "city", "day", "int", "money", "one", "code", "mix")
OPERATIONS = ("find", "get", "list", "create", "set", "add", "take", "move")
_FIELD = re.compile(rf"(?P<name>\w+) (?P<kind>{'|'.join(KINDS)})(\((?P<of>[^)]*)\))? \| (?P<about>.+)")
_TOOL = re.compile(rf"(?P<name>\w+) (?P<does>{'|'.join(OPERATIONS)})(?P<words>( [\w,]+)*) \| (?P<about>.+)")


class Field:
    __slots__ = ("about", "kind", "name", "options")

    def __init__(self, name: str, kind: str, options: list[list[str]], about: str) -> None:
        self.name = name
        self.kind = kind
        self.options = options
        """Words of ``one`` and ``mix``, bounds of numbers, first letters of a code."""
        self.about = about

    @property
    def is_number(self) -> bool:
        return self.kind in ("int", "money")

    def schema(self) -> dict[str, Any]:
        if self.is_number:
            return {"type": "integer", "minimum": 0, "description": self.about}
        if self.kind == "one":
            return {"type": "string", "enum": self.options[0], "description": self.about}
        if self.kind == "day":
            pattern = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
            return {"type": "string", "pattern": pattern, "description": self.about + " As in 2026-03-31."}
        return {"type": "string", "minLength": 1, "description": self.about}


class Operation:
    __slots__ = ("about", "does", "fields", "name", "sources", "target")

    def __init__(self, name: str, does: str, about: str, fields: list[Field], sources: list[str], target: str) -> None:
        self.name = name
        self.does = does
        self.about = about
        self.fields = fields
        self.sources = sources
        """States from which a ``move`` is possible."""
        self.target = target


class Service:
    __slots__ = ("about", "fields", "name", "operations", "prefix", "record", "states")

    def __init__(self, name: str, about: str) -> None:
        self.name = name
        self.about = about
        self.record = ""
        self.prefix = ""
        self.fields: dict[str, Field] = {}
        self.states: list[str] = []
        self.operations: dict[str, Operation] = {}

    @property
    def label(self) -> Field:
        """The field that names a record."""
        return next(iter(self.fields.values()))

    @property
    def id_name(self) -> str:
        """Name of the parameter for a record's id."""
        return self.record + "_id"

    def schema(self, operation: Operation) -> dict[str, Any]:
        """The input schema of a tool."""
        properties: dict[str, Any] = {}
        required = []
        if operation.does == "find":
            text = f"{self.label.about} The whole, or a part of it."
            properties[self.label.name] = {"type": "string", "minLength": 1, "description": text}
            required = [self.label.name]
        elif operation.does not in ("list", "create"):
            finder = next(each.name for each in self.operations.values() if each.does == "find")
            text = f"Id of the {self.record.replace('_', ' ')}, such as {self.prefix}-03; {finder} tells it."
            properties[self.id_name] = {"type": "string", "description": text}
            required = [self.id_name]
        if operation.does in ("add", "take"):
            text = f"How many, or how much: {operation.fields[0].about}"
            properties["amount"] = {"type": "integer", "minimum": 1, "description": text}
            required.append("amount")
        elif operation.does in ("list", "create", "set", "move"):
            for field in operation.fields:
                properties[field.name] = field.schema()
            if operation.does == "list":
                properties["state"] = {
                    "type": "string",
                    "enum": self.states,
                    "description": "Only those in this state.",
                }
            else:
                required += [field.name for field in operation.fields]
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        return {**schema, "required": required} if required else schema

    def description(self, operation: Operation) -> str:
        """The tool's description: its action, and for a move the states from which it is possible."""
        if operation.does != "move":
            return operation.about
        sources = " or ".join(each.replace("_", " ") for each in operation.sources)
        return f"{operation.about} Possible while it is {sources}."


def read_services(text: str) -> dict[str, Service]:
    """The services that a text describes, by name. Raises ValueError with the line that cannot be parsed."""
    services: dict[str, Service] = {}
    service = None
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "service":
            name, _, about = rest.partition(" | ")
            service = services[name] = Service(name, about)
        elif service is None:
            raise ValueError(f"service descriptions: {line!r} comes before any service")
        else:
            _read_line(service, word, rest, line)
    for service in services.values():
        if not (service.record and service.fields and service.states and service.operations):
            raise ValueError(f"service {service.name}: needs a record, fields, states and tools")
    return services


def _read_line(service: Service, word: str, rest: str, line: str) -> None:
    if word == "record":
        service.record, service.prefix, _ = rest.split(" ")
    elif word == "states":
        service.states = rest.split(" ")
    elif found := _FIELD.fullmatch(line):
        separator = ".." if found["kind"] in ("int", "money") else "|"
        options = [part.strip().split(separator) for part in (found["of"] or "").split(",")]
        service.fields[found["name"]] = Field(found["name"], found["kind"], options, found["about"])
    elif found := _TOOL.fullmatch(line):
        operation = _operation(service, found["name"], found["does"], found["words"].split(), found["about"])
        service.operations[operation.name] = operation
    else:
        raise ValueError(f"service {service.name}: {line!r} is neither a field nor a tool")


def _operation(service: Service, name: str, does: str, words: list[str], about: str) -> Operation:
    sources: list[str] = []
    target = ""
    if does == "move":
        sources, target, words = words[0].split(","), words[1], words[2:]
    names = words[0].split(",") if words else []
    wrong = [each for each in names if each not in service.fields]
    wrong += [each for each in (*sources, *filter(None, [target])) if each not in service.states]
    if wrong:
        raise ValueError(f"service {service.name}: {name}: there is no {wrong[0]}")
    return Operation(name, does, about, [service.fields[each] for each in names], sources, target)
