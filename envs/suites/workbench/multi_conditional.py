"""Requests to several servers; what is read from one decides which calls another gets."""

from __future__ import annotations

import random

from gymcp.envs.suites.generation.fixed_offset_zones import DAY, ZONES, clock, shift
from gymcp.envs.suites.generation.single_turn import Call
from gymcp.envs.suites.workbench.draft import Draft, Family, Stage, one
from gymcp.envs.suites.workbench.office import DAYS, REPO, ROOT, Office
from gymcp.envs.suites.workbench.single_sequential import WORDS

OPENS, CLOSES = 9 * 60, 17 * 60


def if_free(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to create an event if all its people are free, else a ticket."""
    day, start = rng.choice(DAYS), rng.randrange(9 * 60, 16 * 60, 30)
    asked = rng.sample(office.people, level)
    others = [name for name in office.people if name not in asked]
    busy = rng.random() < 0.5
    for number, who in enumerate(asked):
        clash = busy and number == level - 1
        begin = start - 15 if clash else start - 120
        names = ", ".join(sorted([who, rng.choice(others)]))
        office.event(f"{WORDS[number].title()} visit", day, begin, 60, attendees=names)
    office.event("Fire drill", day, start, 60, attendees=", ".join(sorted(others[:2])))
    title = f"{rng.choice(WORDS).title()} demo"
    looks = tuple(("events_of", {"person": who}) for who in asked)
    hour = {"start": clock(start), "end": clock(start + 60)}
    if busy:
        done = one("create_ticket", title=f"Find a time for {title}", contact="", priority="normal", assignee=asked[0])
    else:
        done = one("create_event", title=title, day=day, **hour, attendees=sorted(asked))
    slots = {"people": " and ".join(asked), "title": title, "day": day, **hour}
    slots["first"] = asked[0]
    return Draft(slots=slots, stages=(looks, done), other_branch=frozenset({"calendar", "desk"}))


def if_paid(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to close tickets on invoices that the ledger lists as paid, and to raise the others."""
    numbers = rng.sample(range(1000, 9999), level + 3)
    states = {number: rng.choice(("paid", "due")) for number in numbers}
    ledger = f"{ROOT}/books/ledger.csv"
    office.files[ledger] = "invoice,state\n" + "".join(f"{number},{state}\n" for number, state in states.items())
    rows = [office.ticket(f"Invoice {number}") for number in numbers[: level + 1]]
    note = f"checked in round {rng.randint(10, 99)}"
    changes: list[Call] = []
    for row, number in zip(rows, numbers, strict=False):
        if states[number] == "paid":
            changes.append(("set_ticket_status", {"ticket": row["id"], "status": "closed"}))
        else:
            changes.append(("set_ticket_priority", {"ticket": row["id"], "priority": "high"}))
            changes.append(("comment_ticket", {"ticket": row["id"], "text": note}))
    looks: Stage = (("list_tickets", {"status": "open"}), ("read_text_file", {"path": ledger}))
    return Draft(slots={"ledger": ledger, "note": note}, stages=(looks, tuple(changes)))


def if_merged(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to write a note, and to close a ticket or make a branch, depending on a commit in the log."""
    words = rng.sample(WORDS, level + 2)
    there = rng.random() < 0.5
    for word in words[1:] + ([words[0]] if there else []):
        office.repo.change({"main.cfg": f"mode = {word}\n"})
        office.repo.save(f"Merge {word}")
    row = office.ticket(f"Ship {words[0]}")
    path = f"{ROOT}/status-{rng.randint(10, 99)}.txt"
    look = one("git_log", repo_path=REPO, max_count=20)
    rest: tuple[Stage, ...]
    if there:
        rest = (
            one("set_ticket_status", ticket=row["id"], status="closed"),
            one("write_file", path=path, content=f"{words[0]}: shipped"),
        )
    else:
        rest = (one("write_file", path=path, content=f"{words[0]}: pending"),)
        if level > 1:
            rest = (*rest, one("git_create_branch", repo_path=REPO, branch_name=f"next/{words[0]}"))
    more = f" and the branch next/{words[0]} is made, without switching to it" if level > 1 else ""
    slots = {"word": words[0], "ticket": row["id"], "path": path, "more": more}
    return Draft(slots=slots, stages=(look, *rest), other_branch=frozenset({"desk"}))


def office_hours(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to create a call if it falls into a person's office hours, else to add an observation."""
    people = rng.sample(office.people, level)
    ours, *zones = rng.sample(sorted(ZONES), level + 1)
    now = rng.randrange(0, DAY - 60, 30)
    day = rng.choice(DAYS)
    looks: list[Call] = []
    conversions: list[Call] = []
    changes: list[Call] = []
    for who, zone in zip(people, zones, strict=True):
        office.contact_of(who)["zone"] = zone
        there = shift(now, ZONES[zone] - ZONES[ours])
        looks.append(("find_contact", {"name": who}))
        conversion = {"source_timezone": ours, "time": clock(now), "target_timezone": zone}
        conversions.append(("convert_time", conversion))
        if OPENS <= there < CLOSES:
            event = {"title": f"Call {who}", "day": day, "start": clock(now), "end": clock(now + 30)}
            changes.append(("create_event", {**event, "attendees": [who]}))
        else:
            changes.append(("add_observations", {"observations": [{"entityName": who, "contents": ["send an email"]}]}))
    slots = {"people": ", ".join(people), "ours": ours, "time": clock(now), "day": day, "end": clock(now + 30)}
    stages = (tuple(looks), tuple(conversions), tuple(changes))
    return Draft(slots=slots, stages=stages, other_branch=frozenset({"calendar", "memory"}))


def key_accounts(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to raise key accounts' tickets and assign them to the people whom the graph names; others wait."""
    rows = []
    changes: list[Call] = []
    asking = rng.sample(office.people, level + 1)
    carers = [name for name in office.people if name not in asking]
    for who in asking:
        row = office.ticket(f"{rng.choice(WORDS).title()} request", contact=who, assignee=carers[0])
        rows.append(row)
        carer = rng.choice(carers[1:])
        office.graph["relations"].append([carer, "looks after", who])
        if rng.random() < 0.5:
            office.graph["entities"][who][1].append("is a key account")
            changes.append(("set_ticket_priority", {"ticket": row["id"], "priority": "high"}))
            changes.append(("assign_ticket", {"ticket": row["id"], "assignee": carer}))
        else:
            changes.append(("set_ticket_status", {"ticket": row["id"], "status": "waiting"}))
    looks = tuple(("get_ticket", {"ticket": row["id"]}) for row in rows)
    known: Stage = (("open_nodes", {"names": asking}),)
    slots = {"tickets": ", ".join(row["id"] for row in rows)}
    return Draft(slots=slots, stages=(looks, known, tuple(changes)))


FAMILIES = {
    "if_free": Family(
        make=if_free,
        scope="multi",
        structure="conditional",
        bodies=(
            "book '{title}' on {day} from {start} to {end} with {people} and no room, if none of them has anything else"
            " then. Otherwise book nothing and open a ticket 'Find a time for {title}' for {first}",
            "if {people} can make it on {day}, {start} to {end}, create the event '{title}' for them (no room). If not,"
            " {first} gets a ticket 'Find a time for {title}' instead",
            "is this time free for {people}: {day}, {start}-{end}? Free: put '{title}' into the calendar with"
            " them, without a room. Not free: just a ticket 'Find a time for {title}', assigned to {first}",
        ),
    ),
    "if_paid": Family(
        make=if_paid,
        scope="multi",
        structure="conditional",
        bodies=(
            "go through the open tickets about invoices. Those that {ledger} lists as paid are to be closed; the others"
            " get high priority and the comment '{note}'",
            "compare the invoice tickets with {ledger}: close what is paid; what is due becomes high priority, with the"
            " comment '{note}'",
            "each open ticket names an invoice. If it is paid according to {ledger}, close the ticket, else set it to"
            " high and comment '{note}'",
        ),
    ),
    "if_merged": Family(
        make=if_merged,
        scope="multi",
        structure="conditional",
        bodies=(
            "see in the log whether {word} has been merged. If so, close {ticket} and write '{word}: shipped' to"
            " {path};"
            " if not, '{word}: pending' is written there{more}",
            "has {word} been merged into the repository? Then {ticket} is closed and {path} says '{word}: shipped'."
            " Otherwise it says '{word}: pending'{more}, and {ticket} stays open",
            "write '{word}: shipped' or '{word}: pending' to {path}, as the log has a merge of {word} or not. In the"
            " first case close {ticket}; in the second it is left open{more}",
        ),
    ),
    "office_hours": Family(
        make=office_hours,
        scope="multi",
        structure="conditional",
        bodies=(
            "on {day} at {time}, {ours} time, I could call {people}. Whoever has between 09:00 and 17:00 then (17:00 is"
            " too late; the zone is in the address book) gets an event 'Call NAME' from {time} to {end}, with that"
            " person and no room; on the others note 'send an email' in the graph",
            "{people}: what time is it there (the contacts have the zone) at {time} in {ours}? From 09:00 and"
            " before 17:00, create 'Call NAME' on {day}, {time} to {end}, that person attending, no room. Outside, add"
            " the observation 'send an email' to the person",
            "plan calls with {people} for {day}, {time}-{end} in {ours}, where the calendar is kept: an event"
            " 'Call NAME'"
            " with just that person, no room, but only where it is 09:00 or later and not yet 17:00 in the contact's"
            " zone; for anyone else the graph gets 'send an email'",
        ),
    ),
    "key_accounts": Family(
        make=key_accounts,
        scope="multi",
        structure="conditional",
        bodies=(
            "look at {tickets}. If the graph says that the contact 'is a key account', make the ticket high and give it"
            " to who looks after that contact; else set it to waiting",
            "{tickets}: key accounts (an observation in the graph) come first, with high priority and assigned to"
            " whoever looks after them; the tickets of all others wait",
            "sort {tickets} by who asks. Contact 'is a key account': priority high, assignee is who 'looks after'"
            " them in"
            " the graph. Anybody else: status waiting",
        ),
    ),
}
