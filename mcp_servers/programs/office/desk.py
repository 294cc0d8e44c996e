"""A help desk with tickets and an address book in a sqlite database, as an MCP server without any task or answer.

The declared state is the difference from the initial tables. A task's initial state is
``{"contacts": {id: row}, "tickets": {id: row}}``.
"""

from __future__ import annotations

from gymcp.mcp_servers.native.runtime import ToolError, class_server
from gymcp.mcp_servers.programs.backoffice.books import Books, Row, format_rows, to_json

CONTACT = ("id", "name", "email", "phone", "city", "zone")
TICKET = ("id", "title", "contact", "assignee", "status", "priority", "opened", "text", "comment")
EDITABLE = ("email", "phone", "city", "zone")
STATUSES = ("open", "waiting", "closed")
PRIORITIES = ("low", "normal", "high")


class Desk:
    """Public methods are the tools; ``changes`` is the state."""

    def __init__(self, contacts: dict[str, Row], tickets: dict[str, Row]) -> None:
        tables = {"contacts": contacts, "tickets": tickets}
        self._books = Books(tables, {"contacts": CONTACT, "tickets": TICKET}, [("contacts", "name")])
        self.changes = self._books.changes

    def find_contact(self, name: str) -> str:
        """The contact of that full name, with email, phone, city and time zone."""
        return format_rows(self._books.rows("contacts", name=name), *CONTACT)

    def add_contact(self, name: str, email: str, phone: str = "", city: str = "", zone: str = "") -> str:
        """Put somebody into the address book; gives the new id."""
        if self._books.rows("contacts", name=name):
            raise ToolError(f"{name} is in the address book already")
        return self._books.add("contacts", "C", name=name, email=email, phone=phone, city=city, zone=zone)

    def update_contact(self, contact: str, field: str, value: str) -> str:
        """Change email, phone, city or zone of a contact, by its id."""
        self._books.row("contacts", contact)
        _one_of("field", field, EDITABLE)
        self._books.change("contacts", contact, **{field: value})
        return "done"

    def list_tickets(self, status: str = "open") -> str:
        """The tickets that are open, waiting or closed."""
        _one_of("status", status, STATUSES)
        return format_rows(self._books.rows("tickets", status=status), "id", "title", "assignee", "priority", "opened")

    def tickets_of(self, assignee: str) -> str:
        """The tickets, closed ones too, that are assigned to somebody, by full name."""
        return format_rows(
            self._books.rows("tickets", assignee=assignee), "id", "title", "status", "priority", "opened"
        )

    def get_ticket(self, ticket: str) -> str:
        """All about one ticket, with its text."""
        return to_json(self._books.row("tickets", ticket))

    def create_ticket(self, title: str, contact: str = "", priority: str = "normal", assignee: str = "") -> str:
        """Open a ticket; gives its id. Contact and assignee are full names."""
        _one_of("priority", priority, PRIORITIES)
        return self._books.add(
            "tickets", "T", title=title, contact=contact, assignee=assignee, status="open", priority=priority,
            opened="", text="", comment="",
        )  # fmt: skip

    def assign_ticket(self, ticket: str, assignee: str) -> str:
        """Give a ticket to somebody, by full name."""
        return self._set(ticket, assignee=assignee)

    def set_ticket_status(self, ticket: str, status: str) -> str:
        """Make a ticket open, waiting or closed."""
        _one_of("status", status, STATUSES)
        return self._set(ticket, status=status)

    def set_ticket_priority(self, ticket: str, priority: str) -> str:
        """Make a ticket's priority low, normal or high."""
        _one_of("priority", priority, PRIORITIES)
        return self._set(ticket, priority=priority)

    def comment_ticket(self, ticket: str, text: str) -> str:
        """Replace the comment on a ticket."""
        return self._set(ticket, comment=text)

    def _set(self, ticket: str, **values: str) -> str:
        self._books.row("tickets", ticket)
        self._books.change("tickets", ticket, **values)
        return "done"


def _one_of(what: str, value: str, values: tuple[str, ...]) -> None:
    if value not in values:
        raise ToolError(f"no {what} '{value}'; have {', '.join(values)}")


def main() -> None:
    class_server(Desk, "desk").run()
