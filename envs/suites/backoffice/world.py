"""One company as the maker of tasks sees it: its books, and the rows that a task may be about."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeVar

from gymcp.mcp_servers.programs.backoffice.books import MAX_LISTED_ROWS
from gymcp.mcp_servers.programs.backoffice.company import (
    CITIES,
    HELD_OUT_CITIES,
    HELD_OUT_LAST,
    Row,
    Tables,
    make_tables,
)
from gymcp.mcp_servers.programs.backoffice.server import Backoffice
from gymcp.types import Json, ToolCall

T = TypeVar("T")
Call = tuple[str, dict[str, Json]]


class NotApplicable(Exception):
    """This company has no row that fits the task."""


class World:
    """The books of one seed.

    `held_out`: draw only customers and cities that no training task is about, else only the others.
    """

    def __init__(self, seed: int, *, held_out: bool = False) -> None:
        self.seed = seed
        self.tables: Tables = make_tables(seed)
        self._held_out = held_out
        self._office = Backoffice(seed)

    @cached_property
    def customers(self) -> list[Row]:
        return [
            row
            for row in self.tables["customers"].values()
            if (row["name"].split()[1] in HELD_OUT_LAST) == self._held_out
            and len(self.orders_of(row)) <= MAX_LISTED_ROWS
        ]

    @cached_property
    def orders(self) -> list[Row]:
        customers = {row["id"] for row in self.customers}
        return [row for row in self.tables["orders"].values() if row["customer"] in customers]

    @cached_property
    def tickets(self) -> list[Row]:
        customers = {row["id"] for row in self.customers}
        return [row for row in self.tables["tickets"].values() if row["customer"] in customers]

    @property
    def products(self) -> list[Row]:
        """The products that a task may be about; every fifth is held out."""
        rows = list(self.tables["products"].values())
        return [row for number, row in enumerate(rows) if (number % 5 == 0) == self._held_out]

    def city(self, rng: random.Random, other_than: str) -> str:
        names = HELD_OUT_CITIES if self._held_out else [c for c in CITIES if c not in HELD_OUT_CITIES]
        return rng.choice([name for name in names if name != other_than])

    def policy(self, topic: str) -> int:
        value: int = self.tables["policies"][topic]["value"]
        return value

    def customer_of(self, row: Row) -> Row:
        return self.tables["customers"][row["customer"]]

    def orders_of(self, customer: Row) -> list[Row]:
        return self._by_customer("orders").get(customer["id"], [])

    def tickets_of(self, customer: Row) -> list[Row]:
        return self._by_customer("tickets").get(customer["id"], [])

    def pick(self, rng: random.Random, rows: Sequence[Row], fits: Callable[[Row], object] = bool) -> Row:
        """One of the rows that fit, drawn at random. Raises NotApplicable if none fits."""
        fitting = [row for row in rows if fits(row)]
        if not fitting:
            raise NotApplicable
        return rng.choice(fitting)

    def after(self, calls: Sequence[Call]) -> Json:
        """The state that the calls lead to. Raises ToolError if one fails."""
        with self._office._dry_run():
            for name, arguments in calls:
                getattr(self._office, name)(**arguments)
            return dict(self._office.changes)

    def _by_customer(self, table: str) -> dict[str, list[Row]]:
        if table not in self._indexes:
            index: dict[str, list[Row]] = {}
            for row in self.tables[table].values():
                index.setdefault(row["customer"], []).append(row)
            self._indexes[table] = index
        return self._indexes[table]

    @cached_property
    def _indexes(self) -> dict[str, dict[str, list[Row]]]:
        return {}


def as_calls(calls: Sequence[Call]) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(id=f"call_{number}", name=name, arguments=arguments)
        for number, (name, arguments) in enumerate(calls, 1)
    )
