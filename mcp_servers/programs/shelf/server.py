"""One server program for many small services, each with its own records and tools, without any task or answer.

The setup, ``{"service": name, "seed": number}``, decides the service of a process, so that one fork server serves all
services. The declared state is the difference from the initial records.
"""

from __future__ import annotations

import json
import random
from functools import cache, partial
from typing import Any

from gymcp.mcp_servers.native.runtime import Server, ToolError
from gymcp.mcp_servers.programs.shelf.descriptions import Field, Operation, Service, read_services
from gymcp.mcp_servers.programs.shelf.devops import DESCRIPTIONS as DEVOPS
from gymcp.mcp_servers.programs.shelf.finance import DESCRIPTIONS as FINANCE
from gymcp.mcp_servers.programs.shelf.home import DESCRIPTIONS as HOME
from gymcp.mcp_servers.programs.shelf.office import DESCRIPTIONS as OFFICE
from gymcp.mcp_servers.programs.shelf.people import DESCRIPTIONS as PEOPLE
from gymcp.mcp_servers.programs.shelf.public import DESCRIPTIONS as PUBLIC

Row = dict[str, Any]
INITIAL_RECORDS = 10
"""Number of records that a service has initially."""
MAX_LISTED = 20
"""Most records that one list shows; the others are counted."""
FIRST = "Ada Bram Cleo Dag Elsa Femi Gwen Hugo Iris Joel Kaya Levi Mona Nils Olga Pavel Runa Sven Tara Yusuf".split()  # noqa: SIM905
LAST = "Adler Brandt Costa Dahl Engel Faber Grau Holm Ito Jansen Kato Lund Moreau Novak Petit Rossi".split()  # noqa: SIM905
CITIES = "Aarhus Basel Cork Delft Essen Faro Ghent Haifa Izmir Jena Kobe Lille Malmo Nantes Osaka Porto Turku".split()  # noqa: SIM905


@cache
def services() -> dict[str, Service]:
    """All services by name."""
    return read_services("".join((OFFICE, PEOPLE, FINANCE, DEVOPS, HOME, PUBLIC)))


def make_rows(service: Service, seed: int) -> dict[str, Row]:
    """The initial records of a service by id; the same seed gives the same records."""
    rng = random.Random(f"{service.name}-{seed}")
    rows: dict[str, Row] = {}
    taken = set()
    while len(rows) < INITIAL_RECORDS:
        label = make_value(service.label, rng)
        if label in taken:
            continue
        taken.add(label)
        key = _id(service, len(rows) + 1)
        rows[key] = {"id": key, "state": rng.choice(service.states), service.label.name: label}
        for field in list(service.fields.values())[1:]:
            rows[key][field.name] = make_value(field, rng)
    return rows


def make_value(field: Field, rng: random.Random) -> Any:
    """A random value of the field's kind."""
    if field.kind == "person":
        return f"{rng.choice(FIRST)} {rng.choice(LAST)}"
    if field.kind == "city":
        return rng.choice(CITIES)
    if field.kind == "day":
        return f"2026-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    if field.is_number:
        low, high = map(int, field.options[0])
        step = 10 if high >= 1000 else 1
        return rng.randint(low // step, high // step) * step
    if field.kind == "code":
        return f"{field.options[0][0]}-{rng.randint(100, 999)}"
    return " ".join(rng.choice(words) for words in field.options)


class Shelf:
    """The records of one service and their changes."""

    def __init__(self, service: Service, seed: int) -> None:
        self.service = service
        self.rows = make_rows(service, seed)
        self._before = {key: dict(row) for key, row in self.rows.items()}

    @property
    def changes(self) -> dict[str, Row]:
        """Records by id that differ from the initial ones."""
        return {key: row for key, row in self.rows.items() if row != self._before.get(key)}

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The tool's answer. Raises ToolError if the service refuses the call."""
        operation = self.service.operations[name]
        do = getattr(self, "_" + operation.does)
        answer = do(operation, arguments)
        return answer if isinstance(answer, str) else json.dumps(answer, separators=(",", ":"))

    def _row(self, arguments: dict[str, Any]) -> Row:
        key = arguments[self.service.id_name]
        if key not in self.rows:
            raise ToolError(f"there is no {self.service.record.replace('_', ' ')} with the id {key}")
        return self.rows[key]

    def _find(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        label = self.service.label.name
        text = arguments[label].casefold()
        rows = [row for row in self.rows.values() if text in row[label].casefold()]
        if not rows:
            raise ToolError(f"nothing found for {arguments[label]!r}")
        return [{"id": row["id"], label: row[label]} for row in rows]

    def _get(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        return self._row(arguments)

    def _list(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        matches = [row for row in self.rows.values() if all(row[name] == value for name, value in arguments.items())]
        columns = ("id", self.service.label.name, "state", *(field.name for field in operation.fields))
        rows = [{name: row[name] for name in columns} for row in matches[:MAX_LISTED]]
        return rows if len(matches) <= MAX_LISTED else [*rows, {"more": len(matches) - MAX_LISTED}]

    def _create(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        label = self.service.label.name
        if any(row[label] == arguments[label] for row in self.rows.values()):
            raise ToolError(f"there is a {self.service.record.replace('_', ' ')} {arguments[label]} already")
        key = _id(self.service, len(self.rows) + 1)
        empty = {field.name: 0 if field.is_number else "" for field in self.service.fields.values()}
        self.rows[key] = {"id": key, "state": self.service.states[0], **empty, **arguments}
        return {"id": key}

    def _set(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        row = self._row(arguments)
        row.update({field.name: arguments[field.name] for field in operation.fields})
        return "done"

    def _add(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        row, (field,) = self._row(arguments), operation.fields
        row[field.name] += arguments["amount"]
        return {field.name: row[field.name]}

    def _take(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        row, (field,) = self._row(arguments), operation.fields
        if row[field.name] < arguments["amount"]:
            raise ToolError(f"{field.name} is {row[field.name]}, which is too little")
        row[field.name] -= arguments["amount"]
        return {field.name: row[field.name]}

    def _move(self, operation: Operation, arguments: dict[str, Any]) -> Any:
        row = self._row(arguments)
        if row["state"] not in operation.sources:
            raise ToolError(f"it is {row['state']}; that needs {' or '.join(operation.sources)}")
        row["state"] = operation.target
        return self._set(operation, arguments)


def _id(service: Service, number: int) -> str:
    return f"{service.prefix}-{number:02d}"


def main() -> None:
    """Serve the service that the setup names."""
    server = Server("shelf")
    shelves: list[Shelf] = []

    @server.setup
    def setup(initial_state: Any, seed: int) -> None:
        known = services()
        if initial_state["service"] not in known:
            raise ValueError(f"no service {initial_state['service']!r}; have {', '.join(known)}")
        service = known[initial_state["service"]]
        shelf = Shelf(service, initial_state.get("seed", 0))
        shelves.append(shelf)
        for operation in service.operations.values():
            server.add_tool(
                partial(_call, shelf, operation.name),
                name=operation.name,
                description=service.description(operation),
                input_schema=service.schema(operation),
                read_only=operation.does in ("find", "get", "list"),
            )

    @server.state
    def state() -> Any:
        return shelves[0].changes

    server.run()


def _call(_shelf: Shelf, _name: str, /, **arguments: Any) -> str:
    return _shelf.call(_name, arguments)


def preload() -> None:
    """Compute what every episode needs, for a fork server."""
    services()
