"""Requests that tell what a look-up would: whoever looks it up again, or looks whether it was done, wastes a call.

Requests of the same kinds twice: under their own names with gold that makes no such call, and as ``..._checked`` with
the gold of somebody who reads before and after, to be shown in a warm start. What a policy then unlearns is the
difference.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from gymcp.envs.suites.backoffice.families import DONE, Draft, Family
from gymcp.envs.suites.backoffice.wordings import CHECKED
from gymcp.envs.suites.backoffice.world import Call, World
from gymcp.mcp_servers.programs.backoffice.company import Row

Job = tuple[str, Call, Call | None, str]
"""What is asked, the look-up that tempts, the call that is needed if any, and the answer to give."""


def told(world: World, rng: random.Random) -> Job:
    """The city of a customer whose file is quoted."""
    who = world.pick(rng, world.customers)
    asked = f"the city of customer {who['id']} (on file: {_file(who)})"
    return asked, ("get_customer", {"customer": who["id"]}), None, who["city"]


def moved(world: World, rng: random.Random) -> Job:
    """A new city for a customer whose file is quoted."""
    who = world.pick(rng, world.customers)
    city = world.city(rng, who["city"])
    asked = f"the city of customer {who['id']} to {city} (on file: {_file(who)})"
    return asked, ("get_customer", {"customer": who["id"]}), ("set_city", {"customer": who["id"], "city": city}), DONE


def called_off(world: World, rng: random.Random) -> Job:
    """An order to be cancelled, of which the list entry is quoted."""
    order = world.pick(rng, world.orders, lambda row: row["status"] in ("open", "paid"))
    entry = f"{order['status']}, day {order['day']}, total {order['total']}"
    asked = f"order {order['id']} (on the list: {entry})"
    return asked, ("get_order", {"order": order["id"]}), ("cancel_order", {"order": order["id"]}), DONE


def _file(who: Row) -> str:
    return f"{who['name']}, {who['city']}, {who['tier']}"


def _family(job: Callable[[World, random.Random], Job], *, checked: bool) -> Family:
    """One job at levels 1 and 2, two at 3 and 4, three at 5."""

    def draft(world: World, rng: random.Random, level: int) -> Draft:
        jobs = [job(world, rng) for _ in range((level + 1) // 2)]
        calls: list[Call] = []
        for _, look, needed, _ in jobs:
            own = [needed] if needed else []
            calls += [look, *own, look] if checked else own
        answers = dict.fromkeys(answer for *_, answer in jobs)
        return Draft(
            slots={"jobs": " and ".join(asked for asked, *_ in jobs)}, calls=tuple(calls), answer=" ".join(answers)
        )

    return draft


_JOBS = {"told": told, "moved": moved, "called_off": called_off}
TEMPTING_FAMILIES: Mapping[str, Family] = {
    **{name: _family(job, checked=False) for name, job in _JOBS.items()},
    **{f"{name}{CHECKED}": _family(job, checked=True) for name, job in _JOBS.items()},
}
"""Only where they are asked for by name."""
