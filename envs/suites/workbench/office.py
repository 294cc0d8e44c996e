"""One office as the maker of tasks sees it: the content of every server, and the effects of calls on it.

The gates compare these effects with those of the gold on the real servers, task by task.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import PurePosixPath
from typing import Any

from gymcp.envs.suites.generation.fixed_offset_zones import clock
from gymcp.envs.suites.generation.memory_graph import FILE, Graph, copy_graph, write_graph
from gymcp.envs.suites.generation.single_turn import Call
from gymcp.envs.suites.workbench.repository import Repository
from gymcp.mcp_servers.programs.backoffice.books import Row
from gymcp.mcp_servers.programs.backoffice.company import FIRST, LAST
from gymcp.mcp_servers.programs.office.calendar import Calendar
from gymcp.mcp_servers.programs.office.desk import Desk
from gymcp.types import Json

ROOT = "/workspace"
REPO = f"{ROOT}/repo"
DAYS = ("2026-03-02", "2026-03-03", "2026-03-04", "2026-03-05", "2026-03-06")
"""A working week; every episode plays on the Friday before."""
ROOMS = {"Mercury": 4, "Venus": 6, "Mars": 8, "Jupiter": 12}
"""Number of seats, by room."""
TEAMS = ("sales", "legal", "design", "support")
TASTES = ("prefers mornings", "drinks no coffee", "speaks Dutch", "works from home", "is a first-aider", "likes maps")

TOOLS: Mapping[str, tuple[str, ...]] = {
    "filesystem": (
        "read_text_file",
        "read_multiple_files",
        "write_file",
        "edit_file",
        "create_directory",
        "list_directory",
        "directory_tree",
        "move_file",
        "search_files",
    ),
    "memory": (
        "create_entities",
        "create_relations",
        "add_observations",
        "delete_entities",
        "delete_observations",
        "delete_relations",
        "read_graph",
        "search_nodes",
        "open_nodes",
    ),
    "git": (
        "git_status",
        "git_diff_unstaged",
        "git_diff_staged",
        "git_diff",
        "git_commit",
        "git_add",
        "git_reset",
        "git_log",
        "git_create_branch",
        "git_checkout",
        "git_show",
        "git_branch",
    ),
    "time": ("convert_time",),
    "calendar": tuple(name for name, part in vars(Calendar).items() if callable(part) and not name.startswith("_")),
    "desk": tuple(name for name, part in vars(Desk).items() if callable(part) and not name.startswith("_")),
}
"""Tools on offer, by server; ``time`` has only the tool whose answer does not depend on the current day."""
SERVER_OF = {tool: server for server, tools in TOOLS.items() for tool in tools}


class Office:
    """An office of `size` people, drawn from `rng`; a family adds what its task needs before `initial_state`."""

    def __init__(self, rng: random.Random, size: int) -> None:
        self.rng = rng
        names = [f"{first} {last}" for first, last in zip(rng.sample(FIRST, size), rng.sample(LAST, size), strict=True)]
        self.people = names
        self.files: dict[str, str] = {f"{ROOT}/README.md": "The shared drive of the office.\n"}
        self.folders = {ROOT}
        self.graph: Graph = {"entities": {}, "relations": []}
        self.repo = Repository()
        self.contacts: dict[str, Row] = {}
        self.tickets: dict[str, Row] = {}
        self.events: dict[str, Row] = {}
        self.rooms = {
            f"R{n:03d}": {"id": f"R{n:03d}", "name": name, "seats": ROOMS[name]} for n, name in enumerate(ROOMS, 1)
        }
        for name in names:
            self.contact(name)
            self.graph["entities"][name] = ["person", sorted(rng.sample(TASTES, 2))]
            self.graph["relations"].append([name, "works in", rng.choice(TEAMS)])
        for team in TEAMS:
            self.graph["entities"][team] = ["team", []]

    def contact(self, name: str, **more: str) -> Row:
        """Add a contact; `more` are fields of its row."""
        key = f"C{len(self.contacts) + 1:03d}"
        first = name.split(maxsplit=1)[0].lower()
        row = {"id": key, "name": name, "email": f"{first}{self.rng.randint(10, 99)}@office.example"}
        row |= {"phone": str(self.rng.randint(2000, 9999)), "city": "", "zone": "", **more}
        self.contacts[key] = row
        return row

    def contact_of(self, name: str) -> Row:
        return next(row for row in self.contacts.values() if row["name"] == name)

    def ticket(self, title: str, **more: str) -> Row:
        """Add a ticket; `more` are fields of its row."""
        key = f"T{len(self.tickets) + 1:03d}"
        row = {
            "id": key,
            "title": title,
            "contact": self.rng.choice(self.people),
            "assignee": self.rng.choice(self.people),
        }
        row |= {"status": "open", "priority": "normal", "opened": f"2026-02-{self.rng.randint(10, 26)}"}
        row |= {"text": "Please help.", "comment": "", **more}
        self.tickets[key] = row
        return row

    def event(self, title: str, day: str, start: int, minutes: int, **more: str) -> Row:
        """Add an event; `start` is in minutes after midnight."""
        key = f"E{len(self.events) + 1:03d}"
        names = ", ".join(sorted(self.rng.sample(self.people, 2)))
        row = {"id": key, "title": title, "day": day, "start": clock(start), "end": clock(start + minutes), "room": ""}
        row |= {"attendees": names, **more}
        self.events[key] = row
        return row

    def initial_state(self, servers: Sequence[str]) -> dict[str, Json]:
        files: dict[str, Json] = {path.removeprefix(f"{ROOT}/"): text for path, text in self.files.items()}
        files |= {path.removeprefix(f"{ROOT}/"): None for path in self._empty_folders()}
        by_server: dict[str, Json] = {
            "filesystem": {"files": files},
            "memory": {"files": {FILE: write_graph(self.graph)}},
            "git": self.repo.seed(),
            "calendar": {"events": deepcopy(self.events), "rooms": deepcopy(self.rooms)},
            "desk": {"contacts": deepcopy(self.contacts), "tickets": deepcopy(self.tickets)},
        }
        return {server: by_server[server] for server in servers if server in by_server}

    def after(self, calls: Sequence[Call], servers: Sequence[str]) -> dict[str, Json]:
        """The states of the servers after the calls. Raises LookupError, ValueError or ToolError for a wrong call."""
        then = deepcopy(self)
        calendar, desk = Calendar(then.events, then.rooms), Desk(then.contacts, then.tickets)
        for name, arguments in calls:
            server = SERVER_OF[name]
            if server in ("calendar", "desk"):
                getattr(calendar if server == "calendar" else desk, name)(**arguments)
            elif server == "git":
                then.repo.run(name, {key: value for key, value in arguments.items() if key != "repo_path"})
            elif name in _EFFECTS:
                _EFFECTS[name](then, arguments)
        files: dict[str, Json] = {path.removeprefix(f"{ROOT}/"): text for path, text in then.files.items()}
        files |= {path.removeprefix(f"{ROOT}/"): None for path in then._empty_folders()}
        graph = copy_graph(then.graph)
        graph["entities"] = {name: [kind, sorted(seen)] for name, (kind, seen) in graph["entities"].items()}
        graph["relations"].sort()
        by_server: dict[str, Json] = {
            "filesystem": files,
            "memory": graph,
            "git": then.repo.state(),
            "calendar": {"changes": dict(calendar.changes)},
            "desk": {"changes": dict(desk.changes)},
        }
        return {server: by_server[server] for server in servers if server in by_server}

    def _empty_folders(self) -> list[str]:
        used = {str(parent) for path in [*self.files, *self.folders] for parent in PurePosixPath(path).parents}
        return sorted(self.folders - used - {ROOT})


def _write(office: Office, given: Mapping[str, Any]) -> None:
    if str(PurePosixPath(given["path"]).parent) not in office.folders | _parents(office):
        raise ValueError(f"no folder for {given['path']}")
    office.files[given["path"]] = given["content"]


def _parents(office: Office) -> set[str]:
    return {str(parent) for path in office.files for parent in PurePosixPath(path).parents}


def _edit(office: Office, given: Mapping[str, Any]) -> None:
    text = office.files[given["path"]]
    for edit in given["edits"]:
        if text.count(edit["oldText"]) != 1:
            raise ValueError(f"{edit['oldText']!r} is not once in {given['path']}")
        text = text.replace(edit["oldText"], edit["newText"])
    office.files[given["path"]] = text


def _move(office: Office, given: Mapping[str, Any]) -> None:
    if given["destination"] in office.files:
        raise ValueError(f"{given['destination']} is there already")
    office.folders |= _parents(office)
    office.files[given["destination"]] = office.files.pop(given["source"])


def _folder(office: Office, given: Mapping[str, Any]) -> None:
    office.folders.add(given["path"])


def _know(office: Office, given: Mapping[str, Any]) -> None:
    for entity in given["entities"]:
        if entity["name"] in office.graph["entities"]:
            raise ValueError(f"{entity['name']} is known")
        office.graph["entities"][entity["name"]] = [entity["entityType"], list(entity["observations"])]


def _observe(office: Office, given: Mapping[str, Any]) -> None:
    for entry in given["observations"]:
        office.graph["entities"][entry["entityName"]][1] += entry["contents"]


def _forget(office: Office, given: Mapping[str, Any]) -> None:
    for entry in given["deletions"]:
        for observation in entry["observations"]:
            office.graph["entities"][entry["entityName"]][1].remove(observation)


def _relate(office: Office, given: Mapping[str, Any]) -> None:
    office.graph["relations"] += [[row["from"], row["relationType"], row["to"]] for row in given["relations"]]


def _unrelate(office: Office, given: Mapping[str, Any]) -> None:
    for row in given["relations"]:
        office.graph["relations"].remove([row["from"], row["relationType"], row["to"]])


_EFFECTS: Mapping[str, Callable[[Office, Mapping[str, Any]], None]] = {
    "write_file": _write,
    "edit_file": _edit,
    "move_file": _move,
    "create_directory": _folder,
    "create_entities": _know,
    "add_observations": _observe,
    "delete_observations": _forget,
    "create_relations": _relate,
    "delete_relations": _unrelate,
}
"""Effects of the tools that change files or the graph; the other tools of these servers only read."""
