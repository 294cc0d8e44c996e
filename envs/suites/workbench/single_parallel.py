"""Requests to one server; calls that do not depend on each other, some after a first read."""

from __future__ import annotations

import random

from gymcp.envs.suites.workbench.draft import Draft, Family, Stage
from gymcp.envs.suites.workbench.office import DAYS, REPO, ROOT, TASTES, TEAMS, Office
from gymcp.envs.suites.workbench.single_sequential import WORDS


def restock(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to raise a number in each of several files by the same amount."""
    names = rng.sample(WORDS, level + 3)
    counts = {name: rng.randint(10, 99) for name in names}
    for name, count in counts.items():
        office.files[f"{ROOT}/stock/{name}.txt"] = f"{name}: {count} boxes\n"
    more = rng.randint(3, 40)
    chosen = names[: level + 1]
    paths = [f"{ROOT}/stock/{name}.txt" for name in chosen]
    reads = (("read_multiple_files", {"paths": paths}),)
    edits = tuple(
        (
            "edit_file",
            {"path": path, "edits": [{"oldText": f": {counts[name]} ", "newText": f": {counts[name] + more} "}]},
        )
        for name, path in zip(chosen, paths, strict=True)
    )
    return Draft(slots={"paths": _and(paths), "more": more}, stages=(reads, edits))


def team_note(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to add an observation to every member of a team, and to remove another."""
    team = rng.choice(TEAMS)
    members = rng.sample(office.people, level + 1)
    office.graph["relations"] = [row for row in office.graph["relations"] if row[2] != team]
    gone = rng.choice(TASTES)
    for name in members:
        office.graph["relations"].append([name, "works in", team])
        seen = office.graph["entities"][name][1]
        office.graph["entities"][name][1] = sorted({*seen[:1], gone})
    note = f"sits on floor {rng.randint(2, 9)}"
    adds = tuple(("add_observations", {"observations": [{"entityName": n, "contents": [note]}]}) for n in members)
    drops = tuple(("delete_observations", {"deletions": [{"entityName": n, "observations": [gone]}]}) for n in members)
    look: Stage = (("read_graph", {}),)
    slots = {"team": team, "note": note, "gone": gone}
    return Draft(slots=slots, stages=(look, (*adds, *drops)))


def branches(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to make branches from the current commit, and to stage the changed files, which must be looked up."""
    files = {f"{name}.cfg": "on = yes\n" for name in rng.sample(WORDS, level + 3)}
    office.repo.change(files)
    office.repo.save("Add switches")
    changed = rng.sample(sorted(files), level + 1)
    office.repo.change(dict.fromkeys(changed, "on = no\n"))
    names = [f"{kind}/{rng.choice(WORDS)}-{rng.randint(10, 99)}" for kind in ("release", "test", "demo")[:level]]
    made = tuple(("git_create_branch", {"repo_path": REPO, "branch_name": name}) for name in names)
    look = (("git_status", {"repo_path": REPO}),)
    add = (("git_add", {"repo_path": REPO, "files": sorted(changed)}),)
    return Draft(slots={"names": _and(names)}, stages=(look, (*made, *add)))


def invite(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to invite a person to all events of a day."""
    day, *others = rng.sample(DAYS, 3)
    who = rng.choice(office.people)
    free = ", ".join(sorted(rng.sample([name for name in office.people if name != who], 2)))
    events = [
        office.event(f"{word.title()} planning", day, 9 * 60 + 75 * number, 60, attendees=free)
        for number, word in enumerate(rng.sample(WORDS, level + 1))
    ]
    for other in others:
        office.event(f"{rng.choice(WORDS).title()} planning", other, 600, 60, attendees=free)
    look = (("list_events", {"day": day}),)
    adds = tuple(("add_attendee", {"event": row["id"], "person": who}) for row in events)
    return Draft(slots={"who": who, "day": day}, stages=(look, adds))


def reassign(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to assign all open tickets of one person to another."""
    old, new, other = rng.sample(office.people, 3)
    rows = [office.ticket(f"{word.title()} is missing", assignee=old) for word in rng.sample(WORDS, level + 1)]
    office.ticket("Old request", assignee=old, status="closed")
    for word in rng.sample(WORDS, level):
        office.ticket(f"{word.title()} is too loud", assignee=other)
    look = (("tickets_of", {"assignee": old}),)
    given = tuple(("assign_ticket", {"ticket": row["id"], "assignee": new}) for row in rows)
    return Draft(slots={"old": old, "new": new}, stages=(look, given))


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


FAMILIES = {
    "restock": Family(
        make=restock,
        scope="single",
        structure="parallel",
        bodies=(
            "raise the number of boxes in {paths} by {more} each, and leave the rest of the files as it is",
            "for each of {paths}, correct the number of boxes: {more} have come in on top",
            "add {more} to the count of boxes in every one of {paths}",
        ),
    ),
    "team_note": Family(
        make=team_note,
        scope="single",
        structure="parallel",
        bodies=(
            "add the observation '{note}' to everybody who works in {team}, and take '{gone}' off all of them",
            "everybody of {team} (relation 'works in' in the graph) '{note}' now: note that on each, and delete their"
            " observation '{gone}'",
            "in the knowledge graph replace '{gone}' by '{note}' for each person who works in {team}",
        ),
    ),
    "branches": Family(
        make=branches,
        scope="single",
        structure="parallel",
        bodies=(
            "make {names} as new branches from the current commit without leaving main, and stage every changed file",
            "stage all files that have been changed, do not commit, and create the branches {names} from main",
            "create {names} (branches, from where main is; stay on main) and add whatever is modified to the index",
        ),
    ),
    "invite": Family(
        make=invite,
        scope="single",
        structure="parallel",
        bodies=(
            "invite {who} to every event on {day}",
            "see to it that {who} is an attendee of all that is in the calendar for {day}",
            "add {who} to each of the events of {day}",
        ),
    ),
    "reassign": Family(
        make=reassign,
        scope="single",
        structure="parallel",
        bodies=(
            "give all tickets of {old} that are still open to {new}",
            "{new} takes over the open tickets of {old}; closed ones stay as they are",
            "assign to {new} whatever open tickets {old} has",
        ),
    ),
}
