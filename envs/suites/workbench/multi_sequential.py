"""Requests to several servers; values that are read from one go into calls of another."""

from __future__ import annotations

import itertools
import random

from gymcp.envs.suites.generation.fixed_offset_zones import DAY, ZONES, clock, shift
from gymcp.envs.suites.workbench.draft import Draft, Family, Stage, one
from gymcp.envs.suites.workbench.office import DAYS, REPO, ROOT, Office
from gymcp.envs.suites.workbench.single_sequential import WORDS


def meeting_abroad(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to enter a call at a person's local time, converted to ours; the zone is in the address book."""
    who = rng.choice(office.people)
    theirs, ours = rng.sample(sorted(ZONES), 2)
    for row in office.contacts.values():
        row["zone"] = rng.choice(sorted(ZONES))
    office.contact_of(who)["zone"] = theirs
    # late enough to be on the same day, and to end on it
    here = rng.randrange(60, DAY - 120, 15)
    there = shift(here, ZONES[theirs] - ZONES[ours])
    title = f"Call with {who}"
    day = rng.choice(DAYS)
    event = {"title": title, "day": day, "start": clock(here), "end": clock(here + 30), "attendees": [who]}
    stages = [
        one("find_contact", name=who),
        one("convert_time", source_timezone=theirs, time=clock(there), target_timezone=ours),
        one("create_event", **event),
    ]
    if level == 3:
        stages.append(one("write_file", path=f"{ROOT}/call.txt", content=clock(here)))
    too = f". Also write that time, as HH:MM and nothing else, to {ROOT}/call.txt" if level == 3 else ""
    slots = {"who": who, "time": clock(there), "ours": ours, "title": title, "day": day, "too": too}
    return Draft(slots=slots, stages=tuple(stages), answer=clock(here), reply="our time as HH:MM")


def setting_asked(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to change the setting that a ticket asks for, in the application's file, and to close the ticket."""
    names = rng.sample(WORDS, level + 2)
    values = {name: rng.randint(100, 999) for name in names}
    text = "".join(f"[{name}]\nquota = {value}\n" for name, value in values.items())
    app = rng.choice(("mail", "shop", "wiki"))
    path = f"{ROOT}/{app}/settings.ini"
    office.files |= {path: text, f"{ROOT}/spare/settings.ini": text}
    new = rng.randint(1000, 1999)
    row = office.ticket(f"Quota of {names[0]}", text=f"Please set the quota of {names[0]} in {app} to {new}.")
    for name in names[1:]:
        office.ticket(f"Quota of {name}", text=f"Please set the quota of {name} in {app} to {rng.randint(2000, 2999)}.")
    edit = {"oldText": f"[{names[0]}]\nquota = {values[names[0]]}", "newText": f"[{names[0]}]\nquota = {new}"}
    stages = (
        one("get_ticket", ticket=row["id"]),
        one("read_text_file", path=path),
        one("edit_file", path=path, edits=[edit]),
        one("set_ticket_status", ticket=row["id"], status="closed"),
    )
    return Draft(slots={"ticket": row["id"], "root": ROOT}, stages=stages)


def release_note(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to write the messages of the newest commits into a file, and to open a ticket."""
    subjects = [f"{rng.choice(('Fix', 'Speed up', 'Drop', 'Add'))} {word}" for word in rng.sample(WORDS, level + 2)]
    for number, subject in enumerate(subjects):
        office.repo.change({"main.cfg": f"mode = plain\nrevision = {number} {rng.randint(10, 99)}\n"})
        office.repo.save(subject)
    newest = subjects[: -level - 1 : -1]
    path = f"{ROOT}/release-{rng.randint(10, 99)}.txt"
    stages: list[Stage] = [
        one("git_log", repo_path=REPO, max_count=level),
        one("write_file", path=path, content="\n".join(newest)),
    ]
    version = f"{rng.randint(1, 9)}.{rng.randint(0, 19)}"
    title = f"Publish {version}"
    stages.append(one("create_ticket", title=title, contact="", priority="high", assignee=""))
    count = {1: "newest commit", 2: "two newest commits", 3: "three newest commits"}[level]
    slots = {"count": count, "path": path, "title": title}
    return Draft(slots=slots, stages=tuple(stages))


def lead_invited(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to invite a project's lead, or a manager of that lead, to an event, and to give them a ticket."""
    line = rng.sample(office.people, level + 1)
    project = f"Project {rng.choice(WORDS).title()}"
    office.graph["entities"][project] = ["project", []]
    office.graph["relations"].append([line[0], "leads", project])
    for low, high in itertools.pairwise(line):
        office.graph["relations"].append([low, "reports to", high])
    who = line[level - 1]
    steps = "'s manager" * (level - 1)
    free = ", ".join(sorted(name for name in office.people if name not in line)[:2])
    for number, word in enumerate(rng.sample(WORDS, level + 1)):
        row = office.event(f"{word.title()} briefing", rng.choice(DAYS), 540 + 60 * number, 45, attendees=free)
    looks = (one("open_nodes", names=[project]), *(one("open_nodes", names=[name]) for name in line[: level - 1]))
    stages = (
        *looks,
        one("find_events", text=row["title"]),
        one("add_attendee", event=row["id"], person=who),
        one("create_ticket", title=f"Prepare {row['title']}", contact="", priority="normal", assignee=who),
    )
    slots = {"who": f"the lead of {project}{steps}" if level == 1 else f"{project}'s lead{steps}"}
    return Draft(slots={**slots, "title": row["title"]}, stages=stages, answer=who, reply="the name of who that is")


def branch_for_ticket(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to make a branch for a ticket, and to assign the ticket to the maintainer of its component."""
    parts = rng.sample(WORDS, level + 2)
    experts = rng.sample(office.people, level + 2)
    for part, expert in zip(parts, experts, strict=True):
        office.graph["entities"][part] = ["component", []]
        office.graph["relations"].append([expert, "maintains", part])
    rows = [office.ticket(f"Crash number {rng.randint(100, 999)}", text=f"It is in {part}.") for part in parts]
    for row, expert in zip(rows, experts, strict=True):
        row["assignee"] = next(name for name in office.people if name != expert)
    row, part, expert = rows[0], parts[0], experts[0]
    branch = f"fix/{row['id']}-{part}"
    stages = [
        one("get_ticket", ticket=row["id"]),
        one("open_nodes", names=[part]),
        one("git_create_branch", repo_path=REPO, branch_name=branch),
        one("assign_ticket", ticket=row["id"], assignee=expert),
    ]
    if level > 1:
        stages.insert(3, one("git_checkout", repo_path=REPO, branch_name=branch))
    switch = "and switch to it" if level > 1 else "without switching to it"
    return Draft(slots={"ticket": row["id"], "switch": switch}, stages=tuple(stages))


FAMILIES = {
    "meeting_abroad": Family(
        make=meeting_abroad,
        scope="multi",
        structure="sequential",
        bodies=(
            "book '{title}' on {day} for half an hour. It begins at {time} where {who} is; the address book has the"
            " zone. The calendar is kept in the time of {ours}; the day is ours. {who} is invited, no room{too}",
            "{who} can talk at {time}, in the zone that is in the contacts. Enter '{title}' on {day}, 30 minutes, in"
            " {ours} time, with {who} as the only attendee and no room{too}",
            "find out what {time} in the zone of {who} is in {ours}, and put a 30-minute event '{title}' with"
            " {who} into"
            " the calendar at that time on {day}, without a room{too}",
        ),
    ),
    "setting_asked": Family(
        make=setting_asked,
        scope="multi",
        structure="sequential",
        bodies=(
            "do what ticket {ticket} asks and close it. Settings are in a settings.ini in each application's folder"
            " below {root}",
            "ticket {ticket} wants a setting changed: change it in {root}, in the settings.ini of that application, and"
            " set the ticket to closed",
            "read {ticket}, correct the settings.ini under {root} that it is about, and close it; nothing else changes",
        ),
    ),
    "release_note": Family(
        make=release_note,
        scope="multi",
        structure="sequential",
        bodies=(
            "write the message of the {count} to {path}, one a line, newest first, and open a high-priority ticket"
            " '{title}' without contact or assignee",
            "look up the {count} in the repository and save the messages, newest on top and one on a line, as {path}."
            " Then open the ticket '{title}', priority high, for nobody in particular",
            "put into {path} what the {count} said (a line for each message, the newest first), then create a ticket"
            " '{title}' with high priority and neither contact nor assignee",
        ),
    ),
    "lead_invited": Family(
        make=lead_invited,
        scope="multi",
        structure="sequential",
        bodies=(
            "invite {who} to '{title}', and open a ticket 'Prepare {title}' for the same person; the knowledge graph"
            " knows leads and managers",
            "{who} (see the graph: 'leads', 'reports to') must come to '{title}'. Add that person as an attendee and"
            " assign a new ticket 'Prepare {title}' to them",
            "find out in the graph who {who} is, put them on the list for '{title}' and give them a ticket called"
            " 'Prepare {title}', with normal priority and no contact",
        ),
    ),
    "branch_for_ticket": Family(
        make=branch_for_ticket,
        scope="multi",
        structure="sequential",
        bodies=(
            "ticket {ticket} says which component is broken. Make a branch fix/TICKET-COMPONENT, such as fix/T009-mint,"
            " {switch}, and assign the ticket to who maintains that component, by the graph",
            "start work on {ticket}: create the branch fix/TICKET-COMPONENT (like fix/T009-mint) {switch}; the"
            " maintainer of the component, whom the knowledge graph names, gets the ticket",
            "assign {ticket} to the maintainer of the component that it is about; the graph says who that is. Also"
            " branch off as fix/TICKET-COMPONENT, for instance fix/T009-mint, {switch}",
        ),
    ),
}
