"""Requests to one server; the calls to make depend on what is read."""

from __future__ import annotations

import random

from gymcp.envs.suites.generation.fixed_offset_zones import clock
from gymcp.envs.suites.workbench.draft import Draft, Family, Stage, one
from gymcp.envs.suites.workbench.office import DAYS, REPO, ROOMS, ROOT, Office
from gymcp.envs.suites.workbench.single_sequential import WORDS


def sort_notes(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to move finished notes to one folder and urgent notes to another."""
    names = rng.sample(WORDS, level + 3)
    states = [rng.choice(("open", "done", "urgent")) for _ in names]
    states[:2] = rng.sample(("done", "urgent"), 2)
    pairs = list(zip(names, states, strict=True))
    rng.shuffle(pairs)
    for name, state in pairs:
        office.files[f"{ROOT}/notes/{name}.md"] = f"# {name.title()}\nstatus: {state}\n"
    office.folders |= {f"{ROOT}/archive", f"{ROOT}/today"}
    into = {"done": "archive", "urgent": "today"}
    paths = [f"{ROOT}/notes/{name}.md" for name, _ in pairs]
    moves = tuple(
        ("move_file", {"source": f"{ROOT}/notes/{name}.md", "destination": f"{ROOT}/{into[state]}/{name}.md"})
        for name, state in pairs
        if state in into
    )
    return Draft(
        slots={"notes": f"{ROOT}/notes", "archive": f"{ROOT}/archive", "today": f"{ROOT}/today"},
        stages=(one("list_directory", path=f"{ROOT}/notes"), one("read_multiple_files", paths=paths), moves),
    )


def project_lead(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to give projects a lead if they have none, or if their lead has left."""
    projects = [f"Project {word.title()}" for word in rng.sample(WORDS, level)]
    new, gone, good = rng.sample(office.people, 3)
    office.graph["entities"][gone][1] = ["has left"]
    changes: list[tuple[str, dict[str, object]]] = []
    kinds = [rng.choice(("none", "gone", "good")) for _ in projects]
    kinds[0] = rng.choice(("none", "gone"))
    for project, kind in zip(projects, kinds, strict=True):
        office.graph["entities"][project] = ["project", []]
        if kind != "none":
            office.graph["relations"].append([gone if kind == "gone" else good, "leads", project])
        if kind == "gone":
            row = {"from": gone, "to": project, "relationType": "leads"}
            changes.append(("delete_relations", {"relations": [row]}))
        if kind != "good":
            changes.append(("create_relations", {"relations": [{"from": new, "to": project, "relationType": "leads"}]}))
    rng.shuffle(projects)
    look = one("read_graph")
    slots = {"projects": ", ".join(projects), "new": new}
    return Draft(slots=slots, stages=(look, *((change,) for change in changes)))


def commit_or_hold(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to commit a change that is small enough; for a larger one, to make a branch instead."""
    path, *others = (f"{word}.cfg" for word in rng.sample(WORDS, level + 1))
    old = rng.randint(20, 60)
    office.repo.change(dict.fromkeys([path, *others], f"timeout = {old}\n"))
    office.repo.save("Add timeouts")
    limit = rng.randint(5, 15)
    step = rng.choice((limit - 3, limit, limit + 1, limit + 9))
    office.repo.change({path: f"timeout = {old + step}\n"} | dict.fromkeys(others, f"timeout = {old + 20}\n"))
    message, branch = f"Raise the timeout in {path}", f"hold/{path.removesuffix('.cfg')}"
    look = one("git_diff_unstaged", repo_path=REPO)
    rest: tuple[Stage, ...]
    if step <= limit:
        rest = (one("git_add", repo_path=REPO, files=[path]), one("git_commit", repo_path=REPO, message=message))
    else:
        rest = (one("git_create_branch", repo_path=REPO, branch_name=branch),)
    slots = {"path": path, "limit": limit, "message": message, "branch": branch}
    return Draft(slots=slots, stages=(look, *rest))


def book_room(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to book the smallest free room with enough seats; if none is free, an hour later."""
    day, start = rng.choice(DAYS), rng.randrange(9 * 60, 15 * 60, 30)
    people = rng.choice((3, 5, 7, 10))
    fitting = [name for name, seats in ROOMS.items() if seats >= people]
    busy = rng.randint(0, len(fitting)) if level > 1 else rng.randint(0, 1)
    taken = fitting[:busy] + [name for name in ROOMS if name not in fitting][: level - 1]
    for number, room in enumerate(taken):
        office.event(f"{WORDS[number].title()} workshop", day, start - 15, 60, room=room)
    title = f"{rng.choice(WORDS).title()} kick-off"
    free = [room for room in fitting if room not in taken]
    stages = [one("free_rooms", day=day, start=clock(start), end=clock(start + 60))]
    begin = start
    if not free:
        begin = start + 60
        free = fitting
        stages.append(one("free_rooms", day=day, start=clock(begin), end=clock(begin + 60)))
    arguments = {"title": title, "day": day, "start": clock(begin), "end": clock(begin + 60), "room": free[0]}
    stages.append(one("create_event", **arguments))
    slots = {"title": title, "day": day, "start": clock(start), "people": people}
    return Draft(slots=slots, stages=tuple(stages), answer=free[0], reply="the name of the room")


def triage(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to raise old tickets, to assign new ones, and to set those that wait for a customer to waiting."""
    senior, junior = rng.sample(office.people, 2)
    limit = rng.randint(14, 22)
    rows = []
    for word in rng.sample(WORDS, level + 1):
        old, waits = rng.random() < 0.5, rng.random() < 0.3
        opened = f"2026-02-{rng.randint(10, limit - 1) if old else rng.randint(limit, 26)}"
        text = "I will send the invoice tomorrow." if waits else "Please help."
        rows.append(office.ticket(f"{word.title()} bill", opened=opened, text=text))
    changes: list[Stage] = []
    for row in rows:
        if row["text"] != "Please help.":
            changes.append(one("set_ticket_status", ticket=row["id"], status="waiting"))
        elif row["opened"] < f"2026-02-{limit}":
            changes.append(one("set_ticket_priority", ticket=row["id"], priority="high"))
            changes.append(one("assign_ticket", ticket=row["id"], assignee=senior))
        else:
            changes.append(one("assign_ticket", ticket=row["id"], assignee=junior))
    for name in (senior, junior):  # so that every assignment is a change
        others = [person for person in office.people if person not in (senior, junior)]
        for row in rows:
            row["assignee"] = rng.choice(others) if row["assignee"] == name else row["assignee"]
    looks = tuple(("get_ticket", {"ticket": row["id"]}) for row in rows)
    slots = {"tickets": ", ".join(row["id"] for row in rows), "day": f"2026-02-{limit}", "senior": senior}
    slots["junior"] = junior
    return Draft(slots=slots, stages=(looks, *changes))


FAMILIES = {
    "sort_notes": Family(
        make=sort_notes,
        scope="single",
        structure="conditional",
        bodies=(
            "go through the notes in {notes}: move those whose status is done to {archive} and the urgent ones to"
            " {today}; leave the open ones",
            "tidy {notes}. What is done belongs in {archive}, what is urgent in {today}, and open notes stay",
            "look at the status in each note of {notes}; done means {archive}, urgent means {today}, open means"
            " that it stays where it is",
        ),
    ),
    "project_lead": Family(
        make=project_lead,
        scope="single",
        structure="conditional",
        bodies=(
            "check who leads {projects} in the graph. Where nobody does, {new} does from now on; where the lead has"
            " left, {new} takes the place; the others stay",
            "{new} shall lead whichever of {projects} has no lead, or one of whom the graph says 'has left'."
            " Correct the"
            " relations 'leads' and no others",
            "make sure that each of {projects} has a lead who has not left: put {new} in place (relation 'leads') of"
            " those who have, or of nobody, and of nobody else",
        ),
    ),
    "commit_or_hold": Family(
        make=commit_or_hold,
        scope="single",
        structure="conditional",
        bodies=(
            "see by how much the timeout in {path} was raised. Up to {limit}: commit that file alone as '{message}'."
            " More: commit nothing and make the branch {branch}, without switching to it",
            "commit {path}, and only it, with the message '{message}' if its timeout went up by {limit} at most;"
            " otherwise just create a branch named {branch} and stay on main",
            "the uncommitted change to {path} may go in as '{message}' unless the timeout grew by more than {limit}; in"
            " that case leave it and create the branch {branch} instead, staying on main",
        ),
    ),
    "book_room": Family(
        make=book_room,
        scope="single",
        structure="conditional",
        bodies=(
            "book '{title}' on {day} from {start} for an hour in the smallest free room for {people} people. If none is"
            " free, an hour later, by the same rule. Nobody needs an invitation",
            "put '{title}' into the calendar, {day} at {start}, one hour, no attendees, in the smallest room that"
            " is free and seats {people}; if there is none then, start one hour later",
            "we are {people} and want '{title}' at {start} on {day}, an hour long: take the smallest free room that is"
            " big enough, or the same an hour later if all such rooms are taken. Invite nobody",
        ),
    ),
    "triage": Family(
        make=triage,
        scope="single",
        structure="conditional",
        bodies=(
            "go through {tickets}. If the text says that something will be sent, set it to waiting. Otherwise, if"
            " it was"
            " opened before {day}, make it high priority and give it to {senior}; if not, give it to {junior}",
            "triage {tickets}: waiting where the text promises to send something; else {senior} with high priority for"
            " those opened before {day}, and {junior} for the newer ones, at the priority they have",
            "read {tickets} one by one. A customer who will send something: status waiting, no more. Of the rest, those"
            " from before {day} become high and {senior}'s, the others {junior}'s",
        ),
    ),
}
