"""Requests to the back office for which acting at once, looking first or asking the user is best: a third each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from gymcp.envs.suites.backoffice.tasks import task_and_draft
from gymcp.envs.suites.backoffice.underspecified_requests import HIDDEN
from gymcp.envs.suites.backoffice.world import Call, World
from gymcp.envs.suites.generation.underspecified_pairs import HINT, make_twins
from gymcp.errors import ConfigError
from gymcp.evaluators.graders.questions import ASK_USER
from gymcp.types import Suite, Task, ToolCall

SPLITS = ("train", "seeds", "wordings", "values")
"""Splits, as `backoffice` has them."""
KINDS = ("act", "look", "ask")
"""Kinds of tasks, by what is best: they are the families of `make_tasks`."""
ASK_PRICE, LOOK_PRICE, ACT_PRICE = 0.2, 0.05, 0.02
PRICES = (
    f"A question to me with {ASK_USER} costs {ASK_PRICE:.2f}, a call that reads {LOOK_PRICE:.2f} and a call that"
    f" changes something {ACT_PRICE:.2f}. Spend as little as you can, and never guess."
)
VERSION = "1"
_TASKS_PER_KIND = 20
_MAX_TRIES, _NEXT_TRY = 10, 10_000
"""Drafts that a task may be made from, and how far apart their numbers are; neighbours share a company."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """A description of the record or value that a request names, and the call whose answer shows it."""

    words: str
    call: Call


def _find_order(world: World, slots: Mapping[str, Any]) -> Lookup | None:
    row = world.tables["orders"][slots["order"]]
    orders = world.orders_of(world.customer_of(row))
    if sum(each["day"] == row["day"] for each in orders) > 1:
        return None
    words = f"the order that customer {row['customer']} placed on day {row['day']}"
    return Lookup(words=words, call=("list_orders", {"customer": row["customer"]}))


def _find_ticket(world: World, slots: Mapping[str, Any]) -> Lookup | None:
    row = world.tables["tickets"][slots["ticket"]]
    tickets = world.tickets_of(world.customer_of(row))
    if sum((each["topic"], each["day"]) == (row["topic"], row["day"]) for each in tickets) > 1:
        return None
    words = f"the ticket of customer {row['customer']} about {row['topic']} from day {row['day']}"
    return Lookup(words=words, call=("list_tickets", {"customer": row["customer"]}))


def _find_city(world: World, slots: Mapping[str, Any]) -> Lookup | None:
    there = [row for row in world.customers if row["city"] == slots["city"] and row["id"] != slots["id"]]
    if not there:
        return None
    call = ("get_customer", {"customer": there[0]["id"]})
    return Lookup(words=f"the city in which customer {there[0]['id']} lives", call=call)


_LOOKUPS: Mapping[str, Callable[[World, Mapping[str, Any]], Lookup | None]] = {
    "cancel": _find_order,
    "refund": _find_order,
    "ticket": _find_ticket,
    "correct": _find_city,
}
"""Family of `backoffice` whose requests of level 1 need one call and no look -> how its record can be looked up."""


def make_tasks(
    split: str,
    *,
    families: Sequence[str] | None = None,
    levels: Sequence[int] | None = None,
    count: int = 4,
    first: int = 0,
) -> Iterator[Task]:
    """`count` tasks of each kind in `families`, numbered from `first`; tasks of one number differ in the request only.

    There is one level, 1. Raises ConfigError for an unknown split, kind or level.
    """
    for what, name, known in (
        ("split", split, SPLITS),
        *(("family", name, KINDS) for name in families or ()),
        *(("level", level, (1,)) for level in levels or ()),
    ):
        if name not in known:
            raise ConfigError(f"backoffice_choosing: no {what} '{name}'; have {', '.join(map(str, known))}")
    for number in range(first, first + count):
        three = make_three(split, number)
        yield from (three[kind] for kind in families or KINDS)


def make_suite() -> Suite:
    """Tasks of the split ``seeds``, as many of each kind."""
    tasks = tuple(make_tasks("seeds", count=_TASKS_PER_KIND))
    return Suite(name="backoffice_choosing", version=VERSION, tasks=tasks, source="generated")


def make_three(split: str, number: int) -> dict[str, Task]:
    """Kind -> task: the same work in the same company, with the record named, described, or known to the user only."""
    family = tuple(_LOOKUPS)[number % len(_LOOKUPS)]
    for attempt in range(_MAX_TRIES):
        task, draft = task_and_draft(split, family, 1, number + attempt * _NEXT_TRY)
        world = _world(task.initial_state["seed"], split == "values")
        if (lookup := _LOOKUPS[family](world, draft.slots)) is not None:
            break
    else:
        raise RuntimeError(f"backoffice_choosing: no draft of '{family}' can be looked up, number {number}")
    hidden = HIDDEN[family][1]
    ask, act = make_twins(task, draft.slots, hidden)
    value = str(draft.slots[hidden.fact])
    head, _, tail = act.prompts[0].rpartition(hidden.shown[0].format(**draft.slots))
    (turn,) = act.gold
    name, arguments = lookup.call
    look_call = ToolCall(id="call_0", name=name, arguments=arguments)
    look = replace(
        act,
        prompts=(f"{head}{lookup.words}{tail}",),
        gold=(replace(turn, calls=(look_call, *turn.calls)),),
        last_necessary=None if act.last_necessary is None else (0, act.last_necessary[1] + 1),
        target={**act.target, "to_find": {"value": value, "needed_by": [call.name for call in turn.calls]}},
    )
    tasks = {"act": act, "look": look, "ask": ask}
    return {kind: _label(each, kind, f"{split}-{family}-{number}") for kind, each in tasks.items()}


def _label(task: Task, kind: str, name: str) -> Task:
    split = next(tag for tag in task.tags if tag.startswith("split "))
    prompts = tuple(prompt.replace(HINT, PRICES) for prompt in task.prompts)
    return replace(task, id=f"{name}-{kind}", prompts=prompts, tags=(kind, split))


@lru_cache(maxsize=16)
def _world(seed: int, held_out: bool) -> World:
    return World(seed, held_out=held_out)
