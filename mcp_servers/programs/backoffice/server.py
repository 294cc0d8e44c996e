"""A company's back office in a sqlite database, as an MCP server without any task or answer.

The declared state is the difference from the initial tables, row by row; a change that is undone is no difference. A
task's initial state is ``{"seed": number}``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gymcp.mcp_servers.native.runtime import ToolError, class_server
from gymcp.mcp_servers.programs.backoffice.books import Books, format_rows, to_json
from gymcp.mcp_servers.programs.backoffice.company import TODAY, make_tables

NOTES = ("id", "about", "text")
INDEXED = (("orders", "customer"), ("items", "order"), ("tickets", "customer"))


class Backoffice:
    """Public methods are the tools; ``changes`` is the state."""

    def __init__(self, seed: int = 0) -> None:
        self._books = Books(make_tables(seed), {"notes": NOTES}, INDEXED)
        self.changes = self._books.changes

    @contextlib.contextmanager
    def _dry_run(self) -> Iterator[None]:
        """Undo all changes of the block at its end: for code that tries what a change would do."""
        self._books.begin()
        try:
            yield
        finally:
            self._books.undo()

    def find_customer(self, name: str) -> str:
        """The customer of that full name."""
        return format_rows(self._books.rows("customers", name=name), "id", "name", "city")

    def get_customer(self, customer: str) -> str:
        """All about one customer."""
        return to_json(self._books.row("customers", customer))

    def list_orders(self, customer: str) -> str:
        """The orders of a customer."""
        self._books.row("customers", customer)
        return format_rows(self._books.rows("orders", customer=customer), "id", "status", "day", "total")

    def get_order(self, order: str) -> str:
        """One order with its items."""
        row = self._books.row("orders", order)
        items = [[item["product"], item["quantity"]] for item in self._books.rows("items", order=order)]
        return to_json({**row, "items": items})

    def get_payment(self, order: str) -> str:
        """How an order was paid."""
        return to_json(self._books.row("payments", "Y" + order[1:]))

    def get_shipment(self, order: str) -> str:
        """Where the parcel of an order is."""
        return to_json(self._books.row("shipments", "S" + order[1:]))

    def find_product(self, name: str) -> str:
        """The product of that name."""
        return format_rows(self._books.rows("products", name=name), "id", "name", "price", "stock")

    def get_product(self, product: str) -> str:
        """Name, price and stock of a product."""
        return to_json(self._books.row("products", product))

    def list_tickets(self, customer: str) -> str:
        """The tickets of a customer."""
        self._books.row("customers", customer)
        return format_rows(self._books.rows("tickets", customer=customer), "id", "status", "topic", "day")

    def get_ticket(self, ticket: str) -> str:
        """One ticket with its text."""
        return to_json(self._books.row("tickets", ticket))

    def get_employee(self, employee: str) -> str:
        """Name, team and duty of an employee."""
        return to_json(self._books.row("employees", employee))

    def read_policy(self, topic: str) -> str:
        """The company's number on a topic, such as refund_days."""
        return to_json(self._books.row("policies", topic)["value"])

    def read_article(self, article: str) -> str:
        """One article of the knowledge base."""
        return to_json(self._books.row("articles", article))

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
