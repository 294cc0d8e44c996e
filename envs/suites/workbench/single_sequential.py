"""Requests to one server; each call depends on what the call before it has read."""

from __future__ import annotations

import itertools
import random

from gymcp.envs.suites.generation.fixed_offset_zones import clock
from gymcp.envs.suites.workbench.draft import Draft, Family, one
from gymcp.envs.suites.workbench.office import DAYS, REPO, ROOT, Office

WORDS = ["amber", "basil", "cedar", "delta", "ember", "fjord", "grove", "heron", "indigo", "jasper", "kelp", "lotus"]


def handover(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to follow notes that each name the next; the last one holds a code."""
    names = rng.sample(WORDS, level + 4)
    chain, others = names[: level + 2], names[level + 2 :]
    code = f"{rng.choice('KLMNP')}{rng.randint(1000, 9999)}"
    for here, following in zip(chain, [*chain[1:], None], strict=True):
        text = f"The access code is {code}.\n" if following is None else f"Goes on in {following}.txt\n"
        office.files[f"{ROOT}/handover/{here}.txt"] = text
    for other in others:
        office.files[f"{ROOT}/handover/{other}.txt"] = f"The access code is K{rng.randint(1000, 9999)}.\n"
    out = f"{ROOT}/code-{rng.randint(10, 99)}.txt"
    reads = tuple(one("read_text_file", path=f"{ROOT}/handover/{name}.txt") for name in chain)
    return Draft(
        slots={"start": f"{ROOT}/handover/{chain[0]}.txt", "out": out},
        stages=(*reads, one("write_file", path=out, content=code)),
    )


def superior(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to find the person a number of steps up the line, and to add an observation to them."""
    line = rng.sample(office.people, level + 2)
    for low, high in itertools.pairwise(line):
        office.graph["relations"].append([low, "reports to", high])
    note = f"approves trip {rng.randint(100, 999)}"
    steps = "'s manager" * (level + 1)
    opened = tuple(one("open_nodes", names=[name]) for name in line[:-1])
    return Draft(
        slots={"person": f"{line[0]}{steps}", "note": note},
        stages=(*opened, one("add_observations", observations=[{"entityName": line[-1], "contents": [note]}])),
        answer=line[-1],
        reply="the name of that person",
    )


def culprit(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to find a file by the commit that changed it last, and to commit the pending change to that file."""
    names = rng.sample(WORDS, level + 3)
    files = {f"{name}.cfg": f"limit = {rng.randint(10, 99)}\n" for name in names}
    office.repo.change(files)
    office.repo.save("Add settings")
    topics = rng.sample(("login", "billing", "search", "export", "mail", "print", "backup"), len(names))
    made = {}
    for path, topic in zip(rng.sample(sorted(files), len(files)), topics, strict=True):
        office.repo.change({path: f"limit = {rng.randint(100, 199)}\n"})
        made[topic] = (path, office.repo.save(f"Raise the limit of {topic}"))
    office.repo.change({path: f"limit = {rng.randint(200, 299)}\n" for path in files})
    topic = rng.choice(topics)
    path, commit = made[topic]
    stages = [one("git_log", repo_path=REPO, max_count=20), one("git_show", repo_path=REPO, revision=commit)]
    stages.append(one("git_add", repo_path=REPO, files=[path]))
    message = f"Lower the limit of {topic}"
    stages.append(one("git_commit", repo_path=REPO, message=message))
    return Draft(slots={"topic": topic, "message": message}, stages=tuple(stages))


def back_to_back(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to move an event to the end of another, which is the second or last of its day; its length stays."""
    day = rng.choice(DAYS)
    titles = rng.sample(WORDS, level + 3)
    first = office.event(f"{titles[0].title()} review", day, 8 * 60 + rng.randrange(0, 90, 15), 45)
    last, minutes = first, 45
    for title in titles[1 : level + 1]:  # at level 1 one event follows, at the others one more each
        start = _minutes(last["end"]) + rng.randrange(15, 60, 15)
        last = office.event(f"{title.title()} review", day, start, minutes)
    length = rng.choice((30, 60, 90))
    moved = office.event(
        f"{titles[-1].title()} talk", rng.choice([other for other in DAYS if other != day]), 600, length
    )
    end = _minutes(last["end"])
    which = "last" if level > 1 else "second"
    stages = (
        one("find_events", text=first["title"]),
        one("list_events", day=day),
        one("find_events", text=moved["title"]),
        one("move_event", event=moved["id"], day=day, start=clock(end), end=clock(end + length)),
    )
    slots = {"moved": moved["title"], "which": which, "first": first["title"]}
    return Draft(slots=slots, stages=stages)


def _minutes(time: str) -> int:
    return int(time[:2]) * 60 + int(time[3:])


def duplicates(office: Office, rng: random.Random, level: int) -> Draft:
    """A request to close a ticket that repeats others, and to give the original to the assignee of that ticket."""
    for _ in range(level):
        office.ticket(f"{rng.choice(WORDS).title()} is slow")
    word = rng.choice(WORDS)
    who = rng.sample(office.people, 2)
    chain = [office.ticket(f"{word.title()} does not start", assignee=who[1])]
    for _ in range(level):
        chain.append(office.ticket(f"{word.title()} is broken", text=f"Same as {chain[-1]['id']}.", assignee=who[1]))
    chain[-1]["assignee"] = who[0]
    first, original = chain[-1]["id"], chain[0]["id"]
    stages = [one("get_ticket", ticket=row["id"]) for row in reversed(chain)]
    stages.append(
        (
            ("assign_ticket", {"ticket": original, "assignee": who[0]}),
            ("set_ticket_status", {"ticket": first, "status": "closed"}),
        )
    )
    return Draft(slots={"ticket": first}, stages=tuple(stages))


FAMILIES = {
    "handover": Family(
        make=handover,
        scope="single",
        structure="sequential",
        bodies=(
            "follow the handover notes from {start}: each says where it goes on. Put the access code that the last one"
            " gives into {out}, just the code",
            "find the access code: the trail of notes begins at {start}. Save the bare code as {out}",
            "write the access code, and nothing but it, to {out}. {start} is the first of a chain of notes that ends in"
            " it",
        ),
    ),
    "superior": Family(
        make=superior,
        scope="single",
        structure="sequential",
        bodies=(
            "look up in the knowledge graph who {person} is, along 'reports to', and add the observation '{note}' to"
            " that person",
            "note '{note}' as an observation on {person}; the graph's relation 'reports to' says who that is",
            "find {person} by following 'reports to' in the graph. That person gets the observation '{note}'",
        ),
    ),
    "culprit": Family(
        make=culprit,
        scope="single",
        structure="sequential",
        bodies=(
            "find the file that the commit about the limit of {topic} changed, and commit what has been changed in it"
            " since, that file alone, as '{message}'",
            "commit with the message '{message}' the pending change to one file only: the one that the commit on the"
            " limit of {topic} touched",
            "look in the log which file got a higher limit for {topic}. Stage and commit just that file, message"
            " '{message}'",
        ),
    ),
    "back_to_back": Family(
        make=back_to_back,
        scope="single",
        structure="sequential",
        bodies=(
            "move '{moved}' to the day of '{first}', to start when the {which} event of that day ends; keep its length",
            "put '{moved}' right after the {which} event on the day '{first}' takes place, as long as it is now",
            "'{moved}' shall directly follow the {which} event of the day that has '{first}', its length unchanged",
        ),
    ),
    "duplicates": Family(
        make=duplicates,
        scope="single",
        structure="sequential",
        bodies=(
            "ticket {ticket} repeats another one, and that may repeat a third. Give the original to whoever has"
            " {ticket}, then close {ticket}",
            "trace ticket {ticket} back to the ticket it all began with, assign that to the assignee of {ticket} and"
            " close {ticket}",
            "close {ticket} as a duplicate; its assignee takes over the original, to which 'same as' leads in the end",
        ),
    ),
}
