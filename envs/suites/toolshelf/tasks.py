"""Tasks over several of the shelf's servers. The same arguments always make the same tasks."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gymcp.envs.suites.generation.single_turn import Call
from gymcp.envs.suites.toolshelf.parts import (
    SHARED_KINDS,
    NotApplicable,
    Part,
    TaskBuilder,
    draw_value,
    fill_gap,
    find_gap,
    make_conditional_part,
    make_direct_part,
    make_reading,
    make_transfer_part,
)
from gymcp.envs.suites.toolshelf.sheets import make_sheet
from gymcp.errors import ConfigError
from gymcp.types import GoldTurn, Json, Suite, Task, ToolCall

VERSION = "1"
TASKS_PER_FAMILY = 20
"""Tasks of each family in the suite."""
WORLDS = 5
"""Number of different seeds for the initial records: a fresh world that was proved clean serves many tasks."""
_FIRST = {"test": 0, "train": 10**9}
"""Number of the first task, by split, far enough apart that the splits share none."""
_MAX_TRIES = 60
_FILES = ("note", "memo", "letter", "hint", "message")
_FOLDERS = ("inbox", "desk", "today", "from_anna")
_NOUNS = {
    "person": "the person named",
    "city": "the city named",
    "day": "the date",
    "money": "the sum",
    "int": "the number",
}
"""Noun for the value in a file, by the kind of the field that it is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A request before it is a task."""

    text: str
    calls: tuple[Call, ...]
    states: Mapping[str, Json] = field(default_factory=dict)
    """Initial states of third-party servers."""
    files: Mapping[str, str] | None = None
    """All files of the filesystem server as they must be at the end; None if they must stay as they are."""


Family = Callable[[TaskBuilder], Draft]


def one(builder: TaskBuilder) -> Draft:
    """One thing to be done."""
    part = make_direct_part(builder)
    return Draft(text=_sentences(part), calls=part.calls)


def several(builder: TaskBuilder) -> Draft:
    """Three things in three services, in any order."""
    parts = [make_direct_part(builder) for _ in range(3)]
    return Draft(text=_sentences(*parts), calls=tuple(call for part in parts for call in part.calls))


def carry(builder: TaskBuilder) -> Draft:
    """A value from one service goes into another."""
    part = make_transfer_part(builder)
    return Draft(text=_sentences(part), calls=part.calls)


def choose(builder: TaskBuilder) -> Draft:
    """One of two things is to be done, depending on a value in a third service."""
    part = make_conditional_part(builder)
    return Draft(text=_sentences(part), calls=part.calls)


def file(builder: TaskBuilder) -> Draft:
    """The value is in a text file."""
    gap = find_gap(builder, (*SHARED_KINDS, "int"))
    value, path = draw_value(builder, gap), _path(builder.rng)
    part = fill_gap(builder, gap, value, f"{_NOUNS[gap[1].kind]} in the file /workspace/{path}")
    read: Call = ("read_text_file", {"path": f"/workspace/{path}"})
    state = {"filesystem": {"files": {path: f"{value}\n"}}}
    return Draft(text=_sentences(part), calls=(read, *part.calls), states=state)


def report(builder: TaskBuilder) -> Draft:
    """A value from a service is to be written into a file."""
    reading, name = make_reading(builder), _path(builder.rng).rpartition("/")[2]
    text = f"Write {reading.noun}, and nothing else, into the new text file /workspace/{name}."
    write: Call = ("write_file", {"path": f"/workspace/{name}", "content": str(reading.value)})
    return Draft(text=text, calls=(*reading.calls, write), files={name: str(reading.value)})


def sheet(builder: TaskBuilder) -> Draft:
    """The value is in a cell of a workbook."""
    gap = find_gap(builder, ("int", "money"))
    names = builder.rng.sample(("Alpha", "Beta", "Gamma", "Delta", "Omega"), 4)
    rows = [(name, draw_value(builder, gap)) for name in names]
    at = builder.rng.randrange(4)
    noun = f"the number beside {rows[at][0]} in the workbook /workspace/figures.xlsx"
    part = fill_gap(builder, gap, rows[at][1], noun)
    read: Call = ("read_range", {"path": "/workspace/figures.xlsx"})
    return Draft(
        text=_sentences(part), calls=(read, *part.calls), states={"excel": make_sheet(("name", "number"), rows)}
    )


def graph(builder: TaskBuilder) -> Draft:
    """The person is found in a knowledge graph."""
    gap = find_gap(builder, ("person",))
    value = str(draw_value(builder, gap))
    firm, other = builder.rng.sample(("Northwind", "Southbank", "Eastgate", "Westfield"), 2)
    part = fill_gap(builder, gap, value, f"the person who leads {firm} (see my notes on people and firms)")
    entities = [(value, "person"), ("Zoe Zander", "person"), (firm, "firm"), (other, "firm")]
    lines = [{"type": "entity", "name": n, "entityType": kind, "observations": []} for n, kind in entities]
    relations = [(value, firm), ("Zoe Zander", other)]
    lines += [{"type": "relation", "from": a, "to": b, "relationType": "leads"} for a, b in relations]
    notes = {"files": {"memory.jsonl": "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)}}
    search: Call = ("search_nodes", {"query": firm})
    return Draft(text=_sentences(part), calls=(search, *part.calls), states={"memory": notes})


def errand(builder: TaskBuilder) -> Draft:
    """A transfer, a conditional part and a report in one request."""
    first, second, third = make_transfer_part(builder), make_conditional_part(builder), report(builder)
    text = f"{_sentences(first, second)} {third.text}"
    return Draft(text=text, calls=(*first.calls, *second.calls, *third.calls), files=third.files)


FAMILIES: dict[str, tuple[Family, int, str]] = {
    "one": (one, 1, "sequential"),
    "several": (several, 2, "parallel"),
    "carry": (carry, 2, "sequential"),
    "file": (file, 2, "sequential"),
    "report": (report, 2, "sequential"),
    "sheet": (sheet, 2, "sequential"),
    "graph": (graph, 3, "sequential"),
    "choose": (choose, 3, "conditional"),
    "errand": (errand, 4, "conditional"),
}
"""Families by name: the function that makes a draft, the level, and the structure of the calls."""


def make_suite() -> Suite:
    """The suite of the test tasks, always the same."""
    tasks = tuple(make_tasks("test", count=TASKS_PER_FAMILY))
    return Suite(name="toolshelf", version=VERSION, tasks=tasks, source="generated")


def make_tasks(
    split: str,
    *,
    families: Sequence[str] | None = None,
    levels: Sequence[int] | None = None,
    count: int = TASKS_PER_FAMILY,
    first: int = 0,
) -> Iterator[Task]:
    """`count` tasks of each family, numbered from `first`; there is no last number.

    Splits are ``test`` and ``train``. Raises ConfigError for an unknown split or family.
    """
    if split not in _FIRST:
        raise ConfigError(f"toolshelf: no split '{split}'; have {', '.join(_FIRST)}")
    if unknown := [name for name in families or () if name not in FAMILIES]:
        raise ConfigError(f"toolshelf: no family '{unknown[0]}'; have {', '.join(FAMILIES)}")
    for name in families or FAMILIES:
        if levels is None or FAMILIES[name][1] in levels:
            for number in range(first, first + count):
                yield _task(split, name, number)


def _task(split: str, family: str, number: int) -> Task:
    make, level, structure = FAMILIES[family]
    rng = random.Random(f"{_FIRST[split] + number}-{family}")
    for _ in range(_MAX_TRIES):
        builder = TaskBuilder(rng=rng, seed=number % WORLDS)
        try:
            draft = make(builder)
        except NotApplicable:
            continue
        scope = "several" if len(_servers(builder, draft)) > 1 else "one"
        tags = (family, f"level {level}", f"scope {scope}", f"structure {structure}", f"split {split}")
        return _to_task(f"{split}-{family}-{number}", split, tags, builder, draft)
    raise RuntimeError(f"toolshelf: no records fit task {number} of {family}")


def _to_task(task_id: str, split: str, tags: tuple[str, ...], builder: TaskBuilder, draft: Draft) -> Task:
    builder.play(draft.calls)
    records: dict[str, Any] = {name: shelf.changes for name, shelf in builder.shelves.items() if shelf.changes}
    starts = {name: {"service": name, "seed": builder.seed} for name in builder.shelves}
    calls = tuple(
        ToolCall(id=f"call_{n}", name=name, arguments=arguments) for n, (name, arguments) in enumerate(draft.calls, 1)
    )
    return Task(
        id=task_id,
        prompts=(draft.text,),
        initial_state={**starts, **draft.states},
        target={"records": records, "files": None if draft.files is None else dict(draft.files)},
        gold=(GoldTurn(calls=calls, final_text="Done."),),
        last_necessary=(0, len(calls) - 1),  # every part ends with the call that changes something
        split=split,
        tags=tags,
    )


def _servers(builder: TaskBuilder, draft: Draft) -> set[str]:
    """Names of the servers that the calls reach."""
    owners = {tool: name for name, shelf in builder.shelves.items() for tool in shelf.service.operations}
    return {owners.get(tool, tool) for tool, _ in draft.calls}


def _path(rng: random.Random) -> str:
    return f"{rng.choice(_FOLDERS)}/{rng.choice(_FILES)}_{rng.randint(1, 99)}.txt"


def _sentences(*parts: Part) -> str:
    return " ".join(_sentence(number, part.text) for number, part in enumerate(parts))


def _sentence(number: int, text: str) -> str:
    if number:
        return f"Also, {text}."
    return f"{text[0].upper()}{text[1:]}." if text.startswith("if ") else f"Please {text}."
