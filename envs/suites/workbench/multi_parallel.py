"""Requests to several servers; calls that do not depend on each other, some after a first read."""

from __future__ import annotations

import random

from gymcp.envs.suites.generation.single_turn import Call
from gymcp.envs.suites.workbench.draft import Draft, Family, Stage, one
from gymcp.envs.suites.workbench.office import DAYS, REPO, ROOT, TEAMS, Office
from gymcp.envs.suites.workbench.single_sequential import WORDS
from gymcp.mcp_servers.programs.backoffice.company import CITIES


def newcomer(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to enter a new person on all servers."""
    name = f"Zara {rng.choice(('Quill', 'Marsh', 'Lund', 'Petit'))}"
    team, city = rng.choice(TEAMS), rng.choice(CITIES)
    email = f"zara{rng.randint(10, 99)}@office.example"
    calls: list[Call] = [
        ("add_contact", {"name": name, "email": email, "city": city}),
        ("create_entities", {"entities": [{"name": name, "entityType": "person", "observations": ["is new"]}]}),
        ("create_relations", {"relations": [{"from": name, "to": team, "relationType": "works in"}]}),
    ]
    more = ""
    if level > 1:
        calls.append(("write_file", {"path": f"{ROOT}/welcome.txt", "content": f"Welcome, {name}!"}))
        more += f" Write 'Welcome, {name}!' to {ROOT}/welcome.txt."
    if level > 2:
        day = rng.choice(DAYS)
        event = {"title": f"Lunch with {name}", "day": day, "start": "12:00", "end": "13:00", "attendees": [name]}
        calls.append(("create_event", event))
        more += f" Put 'Lunch with {name}' into the calendar, {day} from 12:00 to 13:00, with {name} and no room."
    slots = {"name": name, "team": team, "email": email, "city": city, "more": more}
    # the relation needs its person
    return Draft(slots=slots, stages=((*calls[:2], *calls[3:]), (calls[2],)))


def leaver(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to hand over the tickets of a person who leaves, and to update events and graph."""
    old, new = rng.sample(office.people, 2)
    others = [name for name in office.people if name not in (old, new)]
    rows = [office.ticket(f"{word.title()} renewal", assignee=old) for word in rng.sample(WORDS, level)]
    office.ticket("Lost key", assignee=rng.choice(others))
    events = []
    for number, word in enumerate(rng.sample(WORDS, level)):
        names = ", ".join(sorted([old, rng.choice(others)]))
        events.append(office.event(f"{word.title()} jour fixe", DAYS[number], 600, 30, attendees=names))
    office.event("Company breakfast", DAYS[4], 480, 60, attendees=", ".join(sorted(others[:2])))
    looks: Stage = (("tickets_of", {"assignee": old}), ("events_of", {"person": old}))
    writes: list[Call] = [("assign_ticket", {"ticket": row["id"], "assignee": new}) for row in rows]
    writes += [("remove_attendee", {"event": row["id"], "person": old}) for row in events]
    writes.append(("add_observations", {"observations": [{"entityName": old, "contents": ["has left"]}]}))
    return Draft(slots={"old": old, "new": new}, stages=(looks, tuple(writes)))


def relocation(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to change the cities of people in the address book and in the graph."""
    movers = rng.sample(office.people, level)
    cities = rng.sample(CITIES, 2 * level)
    calls: list[Call] = []
    for who, old, new in zip(movers, cities[:level], cities[level:], strict=True):
        contact = office.contact_of(who)
        contact["city"] = old
        office.graph["entities"][who][1].append(f"lives in {old}")
        seen = {"entityName": who, "observations": [f"lives in {old}"]}
        calls += [
            ("update_contact", {"contact": contact["id"], "field": "city", "value": new}),
            ("delete_observations", {"deletions": [seen]}),
            ("add_observations", {"observations": [{"entityName": who, "contents": [f"lives in {new}"]}]}),
        ]
    looks: Stage = (*(("find_contact", {"name": who}) for who in movers), ("open_nodes", {"names": movers}))
    moves = " and ".join(f"{who} to {new}" for who, new in zip(movers, cities[level:], strict=True))
    return Draft(slots={"moves": moves}, stages=(looks, tuple(calls)))


def weekly_count(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to write figures from several servers into one file."""
    who, day = rng.choice(office.people), rng.choice(DAYS)
    others = [name for name in office.people if name != who]
    tickets, events = rng.randint(1, 5), rng.randint(1, 5)
    for number in range(tickets + 3):
        office.ticket(f"{WORDS[number].title()} question", assignee=who if number < tickets else rng.choice(others))
    for number in range(events + 2):
        office.event(f"{WORDS[number].title()} sync", day if number < events else "2026-03-09", 480 + 40 * number, 30)
    looks: list[Call] = [("tickets_of", {"assignee": who}), ("list_events", {"day": day})]
    lines = [f"tickets: {tickets}", f"events: {events}"]
    said = f"how many tickets {who} has ('tickets: N'), how many events there are on {day} ('events: N')"
    if level > 1:
        commits = rng.randint(2, 6)
        for number in range(commits - 1):
            office.repo.change({"main.cfg": f"mode = plain\nstep = {number}\n"})
            office.repo.save(f"Step {number}")
        looks.append(("git_log", {"repo_path": REPO, "max_count": 50}))
        lines.append(f"commits: {commits}")
        said += ", how many commits the repository has ('commits: N')"
    if level > 2:
        team = rng.choice(TEAMS)
        members = sum(row[2] == team and row[1] == "works in" for row in office.graph["relations"])
        looks.append(("search_nodes", {"query": team}))
        lines.append(f"members: {members}")
        said += f", how many people work in {team} by the graph ('members: N')"
    path = f"{ROOT}/week-{rng.randint(10, 53)}.txt"
    write = one("write_file", path=path, content="\n".join(lines))
    return Draft(
        slots={"path": path, "said": said},
        stages=(tuple(looks), write),
        answer=str(tickets),
        reply=f"the number of tickets of {who}",
    )


def wind_up(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to close a project: its file, a branch, the graph, and its events."""
    word = rng.choice(WORDS)
    project = f"Project {word.title()}"
    office.graph["entities"][project] = ["project", ["is active"]]
    office.files[f"{ROOT}/projects/{word}.md"] = f"# {project}\nbudget: {rng.randint(1000, 9999)}\n"
    office.folders.add(f"{ROOT}/archive")
    source, to = f"{ROOT}/projects/{word}.md", f"{ROOT}/archive/{word}.md"
    branch = f"closed/{word}-{rng.randint(10, 99)}"
    seen = {"entityName": project, "observations": ["is active"]}
    calls: list[Call] = [
        ("move_file", {"source": source, "destination": to}),
        ("git_create_branch", {"repo_path": REPO, "branch_name": branch}),
        ("delete_observations", {"deletions": [seen]}),
        ("add_observations", {"observations": [{"entityName": project, "contents": ["is closed"]}]}),
    ]
    looks: list[Call] = []
    more = ""
    if level > 1:
        rows = [office.event(f"{project} meeting {n}", DAYS[n], 600, 60) for n in range(1, level + 1)]
        office.event("Budget meeting", DAYS[0], 600, 60)
        looks.append(("find_events", {"text": project}))
        calls += [("cancel_event", {"event": row["id"]}) for row in rows]
        more = f", and cancel all events with {project} in their title"
    stages = ((tuple(looks),) if looks else ()) + (tuple(calls),)
    slots = {"project": project, "source": source, "to": to, "branch": branch, "more": more}
    return Draft(slots=slots, stages=stages)


FAMILIES = {
    "newcomer": Family(
        make=newcomer,
        scope="multi",
        structure="parallel",
        bodies=(
            "enter {name}, who joins {team}: a contact with email {email} and city {city}, and in the graph a"
            " person with"
            " the observation 'is new' who 'works in' {team}.{more}",
            "{name} starts in {team}. Add a contact ({email}, {city}) and, in the knowledge graph, the person with the"
            " one observation 'is new' and the relation 'works in' to {team}.{more}",
            "make {name} known: address book with {email} and {city}; graph: entity of type person, observation 'is"
            " new', relation 'works in' to {team}.{more}",
        ),
    ),
    "leaver": Family(
        make=leaver,
        scope="multi",
        structure="parallel",
        bodies=(
            "{old} leaves. Give {old}'s tickets to {new}, take {old} off all events, and add the observation 'has left'"
            " in the graph",
            "{old} is gone: {new} inherits the tickets, the calendar no longer lists {old} as an attendee, and the"
            " graph notes 'has left' on {old}",
            "hand over from {old} to {new}: all tickets go to {new}; {old} attends no event any more; in the knowledge"
            " graph {old} 'has left'",
        ),
    ),
    "relocation": Family(
        make=relocation,
        scope="multi",
        structure="parallel",
        bodies=(
            "people move: {moves}. Change the city in the address book, and in the graph replace the observation 'lives"
            " in OLD CITY' by the same with the new one",
            "record the moves of {moves}: contacts (city) as well as the graph, where 'lives in ...' must name the"
            " new city only",
            "bring address book and knowledge graph up to date: {moves}. The graph says it as 'lives in CITY'",
        ),
    ),
    "weekly_count": Family(
        make=weekly_count,
        scope="multi",
        structure="parallel",
        bodies=(
            "write to {path}, a line for each and in this order: {said}",
            "make the sheet {path} with one line per figure, in this order: {said}",
            "count and save as {path}, line by line in the order named: {said}",
        ),
    ),
    "wind_up": Family(
        make=wind_up,
        scope="multi",
        structure="parallel",
        bodies=(
            "{project} is over: move {source} to {to}, make the branch {branch} without switching to it, replace the"
            " graph's observation 'is active' by 'is closed'{more}",
            "close {project}. In the graph it is no longer 'is active' but 'is closed', {source} becomes {to}, a branch"
            " {branch} is made while main stays checked out{more}",
            "wind up {project}: file {source} under {to}, mark it 'is closed' instead of 'is active' in the graph, keep"
            " its code as branch {branch} (stay on main){more}",
        ),
    ),
}
