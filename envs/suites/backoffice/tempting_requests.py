"""Requests that already tell what a look-up would: an agent that looks it up, or checks the result, wastes a call.

Each kind exists twice: under its own name, with gold that makes no such call, and as ``..._checked``, with gold that
reads before and after, for the demonstrations of a warm start. The difference is what a policy then unlearns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from gymcp.envs.suites.backoffice.families import DONE, Draft, Family
from gymcp.envs.suites.backoffice.wordings import CHECKED
from gymcp.envs.suites.backoffice.world import Call, World
from gymcp.mcp_servers.programs.backoffice.company import Row

Job = tuple[str, Call, Call | None, str]
"""The request, the tempting look-up, the call that is needed or None, and the answer to give."""


def tell_city(world: World, rng: random.Random) -> Job:
    """A request for the city of a customer whose file is quoted."""
    who = world.pick(rng, world.customers)
    request = f"the city of customer {who['id']} (on file: {_file(who)})"
    return request, ("get_customer", {"customer": who["id"]}), None, who["city"]


def change_city(world: World, rng: random.Random) -> Job:
    """A request to change the city of a customer whose file is quoted."""
    who = world.pick(rng, world.customers)
    city = world.city(rng, who["city"])
    request = f"the city of customer {who['id']} to {city} (on file: {_file(who)})"
    return request, ("get_customer", {"customer": who["id"]}), ("set_city", {"customer": who["id"], "city": city}), DONE


def cancel_order(world: World, rng: random.Random) -> Job:
    """A request to cancel an order whose list entry is quoted."""
    order = world.pick(rng, world.orders, lambda row: row["status"] in ("open", "paid"))
    entry = f"{order['status']}, day {order['day']}, total {order['total']}"
    request = f"order {order['id']} (on the list: {entry})"
    return request, ("get_order", {"order": order["id"]}), ("cancel_order", {"order": order["id"]}), DONE


def _file(who: Row) -> str:
    return f"{who['name']}, {who['city']}, {who['tier']}"


def _family(job: Callable[[World, random.Random], Job], *, checked: bool) -> Family:
    """A family with one job at levels 1 and 2, two at 3 and 4, three at 5."""

    def draft(world: World, rng: random.Random, level: int) -> Draft:
        jobs = [job(world, rng) for _ in range((level + 1) // 2)]
        calls: list[Call] = []
        for _, look, needed, _ in jobs:
            needed_calls = [needed] if needed else []
            calls += [look, *needed_calls, look] if checked else needed_calls
        answers = dict.fromkeys(answer for *_, answer in jobs)
        return Draft(
            slots={"jobs": " and ".join(request for request, *_ in jobs)}, calls=tuple(calls), answer=" ".join(answers)
        )

    return draft


_JOBS = {"told": tell_city, "moved": change_city, "called_off": cancel_order}
TEMPTING_FAMILIES: Mapping[str, Family] = {
    **{name: _family(job, checked=False) for name, job in _JOBS.items()},
    **{f"{name}{CHECKED}": _family(job, checked=True) for name, job in _JOBS.items()},
}
"""Families that are made only if they are named."""
