"""An office's calendar and rooms in a sqlite database, as an MCP server without any task or answer.

The declared state is the difference from the initial calendar. A task's initial state is
``{"events": {id: row}, "rooms": {id: row}}``.
"""

from __future__ import annotations

from typing import Any

from gymcp.mcp_servers.native.runtime import ToolError, class_server
from gymcp.mcp_servers.programs.backoffice.books import Books, Row, format_rows, to_json

EVENT = ("id", "title", "day", "start", "end", "room", "attendees")
ROOM = ("id", "name", "seats")


class Calendar:
    """Public methods are the tools; ``changes`` is the state."""

    def __init__(self, events: dict[str, Row], rooms: dict[str, Row]) -> None:
        tables = {"events": events, "rooms": rooms}
        self._books = Books(tables, {"events": EVENT, "rooms": ROOM}, [("events", "day")])
        self.changes = self._books.changes

    def list_events(self, day: str) -> str:
        """The events of a day, given as YYYY-MM-DD."""
        return format_rows(self._books.rows("events", day=day), *EVENT)

    def find_events(self, text: str) -> str:
        """Events with that text in their title."""
        rows = [row for row in self._books.rows("events") if text.casefold() in row["title"].casefold()]
        return format_rows(rows, *EVENT)

    def events_of(self, person: str) -> str:
        """The events that a person attends, by full name."""
        return format_rows([row for row in self._books.rows("events") if person in _names(row)], *EVENT)

    def get_event(self, event: str) -> str:
        """All about one event."""
        return to_json(self._books.row("events", event))

    def list_rooms(self) -> str:
        """The rooms and how many people each seats."""
        return format_rows(self._books.rows("rooms"), *ROOM)

    def free_rooms(self, day: str, start: str, end: str) -> str:
        """The rooms that nobody has booked from start to end, given as HH:MM."""
        _check_times(start, end)
        taken = {
            row["room"] for row in self._books.rows("events", day=day) if row["start"] < end and start < row["end"]
        }
        return format_rows([row for row in self._books.rows("rooms") if row["name"] not in taken], *ROOM)

    def create_event(
        self,
        title: str,
        day: str,
        start: str,
        end: str,
        room: str = "",
        attendees: list[str] = [],  # noqa: B006
    ) -> str:
        """Put an event into the calendar; gives its id. Times are HH:MM, attendees are full names."""
        _check_times(start, end)
        self._check_room(room)
        names = ", ".join(sorted(set(attendees)))
        return self._books.add("events", "E", title=title, day=day, start=start, end=end, room=room, attendees=names)

    def move_event(self, event: str, day: str, start: str, end: str) -> str:
        """Give an event another day or other times."""
        _check_times(start, end)
        self._books.row("events", event)
        self._books.change("events", event, day=day, start=start, end=end)
        return "done"

    def cancel_event(self, event: str) -> str:
        """Take an event out of the calendar."""
        self._books.remove("events", event)
        return "done"

    def set_room(self, event: str, room: str) -> str:
        """Give an event another room, by its name."""
        self._books.row("events", event)
        self._check_room(room)
        self._books.change("events", event, room=room)
        return "done"

    def add_attendee(self, event: str, person: str) -> str:
        """Invite somebody to an event, by full name."""
        names = _names(self._books.row("events", event))
        if person in names:
            raise ToolError(f"{person} is invited already")
        return self._invite(event, [*names, person])

    def remove_attendee(self, event: str, person: str) -> str:
        """Take somebody off an event, by full name."""
        names = _names(self._books.row("events", event))
        if person not in names:
            raise ToolError(f"{person} is not invited")
        return self._invite(event, [name for name in names if name != person])

    def _invite(self, event: str, names: list[str]) -> str:
        self._books.change("events", event, attendees=", ".join(sorted(names)))
        return "done"

    def _check_room(self, room: str) -> None:
        names = [row["name"] for row in self._books.rows("rooms")]
        if room and room not in names:
            raise ToolError(f"no room {room}; have {', '.join(names)}")


def _names(event: dict[str, Any]) -> list[str]:
    return event["attendees"].split(", ") if event["attendees"] else []


def _check_times(start: str, end: str) -> None:
    for time in (start, end):
        hour, colon, minute = time.partition(":")
        if len(time) != 5 or not colon or not (hour + minute).isdecimal() or hour > "23" or minute > "59":
            raise ToolError(f"{time} is no time as HH:MM")
    if start >= end:
        raise ToolError("an event ends after it starts")


def main() -> None:
    class_server(Calendar, "calendar").run()
