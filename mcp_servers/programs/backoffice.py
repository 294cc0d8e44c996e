"""A company's back office over a sqlite database, as an MCP server. It holds no task and no answer.

The declared state is what differs from the books as they were at the start, row by row: a change that is undone is no
difference. A task's initial state is ``{"seed": number}``.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from typing import Any

from gymcp.mcp_servers.programs.backoffice_data import TODAY, Row, Tables, make_tables
from gymcp.mcp_servers.runtime import ToolError, class_server

MOST_ROWS = 12
"""Of one list; what is more is counted, not shown."""


class Books:
    """The database, and what has changed in it."""

    def __init__(self, tables: Tables) -> None:
        self.changes: dict[str, Any] = {}
        self._before = tables
        self._db = sqlite3.connect(":memory:", isolation_level=None)
        self._db.row_factory = sqlite3.Row
        for table, rows in tables.items():
            columns = list(next(iter(rows.values()), {"id": "", "about": "", "text": ""}))
            names = ", ".join(f'"{column}"' for column in columns)
            self._db.execute(f'CREATE TABLE {table} ({names}, PRIMARY KEY ("id")) WITHOUT ROWID')
            marks = ", ".join("?" * len(columns))
            self._db.executemany(
                f"INSERT INTO {table} VALUES ({marks})", [tuple(row.values()) for row in rows.values()]
            )
        for table, column in (("orders", "customer"), ("items", "order"), ("tickets", "customer")):
            self._db.execute(f'CREATE INDEX {table}_{column} ON {table} ("{column}")')

    def row(self, table: str, key: str) -> Row:
        """Raises ToolError where there is none."""
        found = self._db.execute(f"SELECT * FROM {table} WHERE id = ?", (key,)).fetchone()
        if found is None:
            raise ToolError(f"no {table[:-1]} {key}")
        return dict(found)

    def rows(self, table: str, **equal: Any) -> list[Row]:
        where = " AND ".join(f'"{column}" = ?' for column in equal) or "1"
        query = f"SELECT * FROM {table} WHERE {where} ORDER BY id"
        return [dict(row) for row in self._db.execute(query, tuple(equal.values()))]

    def change(self, table: str, key: str, **values: Any) -> None:
        sets = ", ".join(f'"{column}" = ?' for column in values)
        self._db.execute(f"UPDATE {table} SET {sets} WHERE id = ?", (*values.values(), key))
        self._note(table, key)

    def add(self, table: str, letter: str, **values: Any) -> str:
        """The new row's id: one more than the largest there is."""
        last = self._db.execute(f"SELECT MAX(id) FROM {table}").fetchone()[0]
        key = f"{letter}{int(last[1:]) + 1 if last else 1:03d}"
        row = {"id": key, **values}
        names = ", ".join(f'"{column}"' for column in row)
        self._db.execute(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(row))})", tuple(row.values()))
        self._note(table, key)
        return key

    def begin(self) -> None:
        self._db.execute("SAVEPOINT begun")

    def undo(self) -> None:
        self._db.execute("ROLLBACK TO begun")
        self._db.execute("RELEASE begun")
        self.changes.clear()

    def _note(self, table: str, key: str) -> None:
        now = self.row(table, key)
        name = f"{table}/{key}"
        if now == self._before[table].get(key):
            self.changes.pop(name, None)
        else:
            self.changes[name] = now


def _told(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _listed(rows: list[Row], *columns: str) -> str:
    shown = [{column: row[column] for column in columns} for row in rows[:MOST_ROWS]]
    return _told(shown if len(rows) <= MOST_ROWS else [*shown, {"more": len(rows) - MOST_ROWS}])


class Backoffice:
    """Public methods are the tools; ``changes`` is the state."""

    def __init__(self, seed: int = 0) -> None:
        self._books = Books(make_tables(seed))
        self.changes = self._books.changes

    @contextlib.contextmanager
    def _tried(self) -> Iterator[None]:
        """What is done meanwhile is undone in the end: for whoever asks what would happen."""
        self._books.begin()
        try:
            yield
        finally:
            self._books.undo()

    def find_customer(self, name: str) -> str:
        """The customer of that full name."""
        return _listed(self._books.rows("customers", name=name), "id", "name", "city")

    def get_customer(self, customer: str) -> str:
        """All about one customer."""
        return _told(self._books.row("customers", customer))

    def list_orders(self, customer: str) -> str:
        """The orders of a customer."""
        self._books.row("customers", customer)
        return _listed(self._books.rows("orders", customer=customer), "id", "status", "day", "total")

    def get_order(self, order: str) -> str:
        """One order with its items."""
        row = self._books.row("orders", order)
        items = [[item["product"], item["quantity"]] for item in self._books.rows("items", order=order)]
        return _told({**row, "items": items})

    def get_payment(self, order: str) -> str:
        """How an order was paid."""
        return _told(self._books.row("payments", "Y" + order[1:]))

    def get_shipment(self, order: str) -> str:
        """Where the parcel of an order is."""
        return _told(self._books.row("shipments", "S" + order[1:]))

    def find_product(self, name: str) -> str:
        """The product of that name."""
        return _listed(self._books.rows("products", name=name), "id", "name", "price", "stock")

    def get_product(self, product: str) -> str:
        """Name, price and stock of a product."""
        return _told(self._books.row("products", product))

    def list_tickets(self, customer: str) -> str:
        """The tickets of a customer."""
        self._books.row("customers", customer)
        return _listed(self._books.rows("tickets", customer=customer), "id", "status", "topic", "day")

    def get_ticket(self, ticket: str) -> str:
        """One ticket with its text."""
        return _told(self._books.row("tickets", ticket))

    def get_employee(self, employee: str) -> str:
        """Name, team and duty of an employee."""
        return _told(self._books.row("employees", employee))

    def read_policy(self, topic: str) -> str:
        """The company's number on a topic, such as refund_days."""
        return _told(self._books.row("policies", topic)["value"])

    def read_article(self, article: str) -> str:
        """One article of the knowledge base."""
        return _told(self._books.row("articles", article))

    def cancel_order(self, order: str) -> str:
        """Cancel an order that was not shipped yet."""
        if self._books.row("orders", order)["status"] not in ("open", "paid"):
            raise ToolError("only open or paid orders can be cancelled")
        self._books.change("orders", order, status="cancelled")
        return "done"

    def refund_order(self, order: str) -> str:
        """Pay back a settled payment in full."""
        payment = self._books.row("payments", "Y" + order[1:])
        if payment["status"] != "settled":
            raise ToolError(f"the payment is {payment['status']}")
        self._books.change("payments", payment["id"], status="refunded")
        return "done"

    def set_email(self, customer: str, email: str) -> str:
        """Change a customer's email address."""
        self._books.row("customers", customer)
        self._books.change("customers", customer, email=email)
        return "done"

    def set_city(self, customer: str, city: str) -> str:
        """Change the city a customer lives in."""
        self._books.row("customers", customer)
        self._books.change("customers", customer, city=city)
        return "done"

    def set_tier(self, customer: str, tier: str) -> str:
        """Change a customer's tier."""
        if tier not in ("bronze", "silver", "gold"):
            raise ToolError("a tier is bronze, silver or gold")
        self._books.row("customers", customer)
        self._books.change("customers", customer, tier=tier)
        return "done"

    def add_credit(self, customer: str, amount: int) -> str:
        """Give a customer credit, in euros."""
        row = self._books.row("customers", customer)
        if amount <= 0:
            raise ToolError("the amount must be positive")
        self._books.change("customers", customer, credit=row["credit"] + amount)
        return "done"

    def set_stock(self, product: str, pieces: int) -> str:
        """Set how many pieces of a product there are."""
        self._books.row("products", product)
        self._books.change("products", product, stock=pieces)
        return "done"

    def set_priority(self, ticket: str, priority: str) -> str:
        """Change a ticket's priority."""
        if priority not in ("low", "normal", "high"):
            raise ToolError("a priority is low, normal or high")
        self._books.row("tickets", ticket)
        self._books.change("tickets", ticket, priority=priority)
        return "done"

    def close_ticket(self, ticket: str) -> str:
        """Close a ticket."""
        if self._books.row("tickets", ticket)["status"] == "closed":
            raise ToolError("it is closed")
        self._books.change("tickets", ticket, status="closed")
        return "done"

    def open_ticket(self, customer: str, topic: str) -> str:
        """Open a ticket for a customer; gives its id."""
        self._books.row("customers", customer)
        return self._books.add(
            "tickets", "T", customer=customer, order="", topic=topic, priority="normal", status="open", day=TODAY,
            agent="", text="",
        )  # fmt: skip


def main() -> None:
    class_server(Backoffice, "backoffice").run()
