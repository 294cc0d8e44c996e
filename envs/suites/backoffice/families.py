"""Kinds of requests. Each makes, from a company and a level of difficulty, a request's slots, its gold and its answer.

Levels: 1 names a record by its id; 2 by a person's name, or sets a condition in the request; 3 depends on a rule of the
handbook, or on one more table; 4 on more rules, or on still more tables; 5 on both, or asks for several things.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gymcp.envs.suites.backoffice.world import Call, NotApplicable, World
from gymcp.mcp_servers.programs.backoffice.company import TODAY, Row

DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A task without its wording."""

    slots: Mapping[str, object]
    """Values for the slots of the wording."""
    calls: tuple[Call, ...]
    answer: str
    rules: tuple[str, ...] = ()
    """Topics of the handbook on which the answer depends."""


Family = Callable[[World, random.Random, int], Draft]


def refusal(why: object) -> str:
    return f"refused: {why}"


def _by_name(customer: Row) -> tuple[Call, ...]:
    return (("find_customer", {"name": customer["name"]}),)


def contact(world: World, rng: random.Random, level: int) -> Draft:
    """A request for an email address, over more and more tables."""
    if level == 1:
        who = world.pick(rng, world.customers)
        return Draft(slots={"id": who["id"]}, calls=(("get_customer", {"customer": who["id"]}),), answer=who["email"])
    if level == 2:
        who = world.pick(rng, world.customers)
        calls = (*_by_name(who), ("get_customer", {"customer": who["id"]}))
        return Draft(slots={"name": who["name"]}, calls=calls, answer=who["email"])
    if level == 3:
        order = world.pick(rng, world.orders)
        who = world.customer_of(order)
        calls = (("get_order", {"order": order["id"]}), ("get_customer", {"customer": who["id"]}))
        return Draft(slots={"order": order["id"]}, calls=calls, answer=who["email"])
    ticket = world.pick(rng, world.tickets)
    if level == 4:
        employee = world.tables["employees"][ticket["agent"]]
        calls = (("get_ticket", {"ticket": ticket["id"]}), ("get_employee", {"employee": employee["id"]}))
        return Draft(slots={"ticket": ticket["id"]}, calls=calls, answer=employee["name"])
    order = world.tables["orders"][ticket["order"]]
    best = max(world.orders_of(world.customer_of(order)), key=lambda row: (row["total"], row["id"]))
    calls = (
        ("get_ticket", {"ticket": ticket["id"]}),
        ("list_orders", {"customer": ticket["customer"]}),
        ("get_order", {"order": best["id"]}),
    )
    return Draft(slots={"ticket": ticket["id"]}, calls=calls, answer=f"{best['id']} {_items(world, best)}")


def _items(world: World, order: Row) -> str:
    """The products of an order, as an answer lists them."""
    return " ".join(item["product"] for item in world.tables["items"].values() if item["order"] == order["id"])


def cancel(world: World, rng: random.Random, level: int) -> Draft:
    """A request to cancel one order (levels 1, 2), or open ones of a customer: the only one, all, old ones."""
    if level <= 2:
        states = ("open", "paid") if level == 1 else ("open", "paid", "shipped", "delivered", "cancelled")
        status = rng.choice(states)
        order = world.pick(rng, world.orders, lambda row: row["status"] == status)
        look: tuple[Call, ...] = (("get_order", {"order": order["id"]}),) if level == 2 else ()
        can = status in ("open", "paid")
        calls = (*look, *((("cancel_order", {"order": order["id"]}),) if can else ()))
        return Draft(slots={"order": order["id"]}, calls=calls, answer=DONE if can else refusal(status))
    counts = {3: (1, 1), 4: (2, 3), 5: (1, 3)}[level]
    who = world.pick(rng, world.customers, lambda row: counts[0] <= len(_open(world, row)) <= counts[1])
    doomed = _open(world, who)
    if level < 5:
        start: tuple[Call, ...] = _by_name(who)
        slots: dict[str, object] = {"name": who["name"]}
    else:
        ticket = world.pick(rng, world.tickets_of(who))
        before = rng.choice(doomed)["day"] + 1
        doomed = [row for row in doomed if row["day"] < before]
        start = (("get_ticket", {"ticket": ticket["id"]}),)
        slots = {"ticket": ticket["id"], "day": before}
    calls = (
        *start,
        ("list_orders", {"customer": who["id"]}),
        *(("cancel_order", {"order": row["id"]}) for row in doomed),
    )
    return Draft(slots=slots, calls=calls, answer=DONE)


def _open(world: World, customer: Row) -> list[Row]:
    return [row for row in world.orders_of(customer) if row["status"] == "open"]


def refund(world: World, rng: random.Random, level: int) -> Draft:
    """A request for money back, under more and more rules."""

    def is_paid(row: Row) -> bool:
        return row["status"] in ("paid", "shipped", "delivered")

    if level == 1:
        order = world.pick(rng, world.orders, is_paid)
        return Draft(slots={"order": order["id"]}, calls=(("refund_order", {"order": order["id"]}),), answer=DONE)
    if level == 2:
        order = world.pick(rng, world.orders, is_paid)
        limit = max(order["total"] + rng.choice((-50, -10, 0, 10, 50)), 5)
        return _refund_if({"order": order["id"], "limit": limit}, (), order, order["total"] <= limit, order["total"])
    days = world.policy("refund_days")
    if level == 3:
        order = world.pick(rng, world.orders, is_paid)
        return _refund_if(
            {"order": order["id"]}, ("refund_days",), order, TODAY - order["day"] <= days, f"day {order['day']}"
        )
    limit = world.policy("refund_limit")
    rules = ("refund_days", "refund_limit")
    if level == 4:
        order = world.pick(rng, world.orders, is_paid)
        slots: dict[str, object] = {"order": order["id"]}
        start: tuple[Call, ...] = ()
    else:
        who = world.pick(rng, world.customers, lambda row: any(map(is_paid, world.orders_of(row))))
        order = max(filter(is_paid, world.orders_of(who)), key=lambda row: (row["day"], row["id"]))
        slots = {"name": who["name"]}
        start = (*_by_name(who), ("list_orders", {"customer": who["id"]}))
    if TODAY - order["day"] > days:
        return _refund_if(slots, rules, order, False, f"day {order['day']}", start)
    if order["total"] > limit:
        calls: tuple[Call, ...] = (
            *start,
            ("get_order", {"order": order["id"]}),
            ("open_ticket", {"customer": order["customer"], "topic": "refund"}),
        )
        return Draft(slots=slots, calls=calls, answer=DONE, rules=rules)
    return _refund_if(slots, rules, order, True, "", start)


def _refund_if(
    slots: Mapping[str, object],
    rules: tuple[str, ...],
    order: Row,
    allowed: bool,
    why: object,
    start: tuple[Call, ...] = (),
) -> Draft:
    look: tuple[Call, ...] = (*start, ("get_order", {"order": order["id"]}))
    calls = (*look, ("refund_order", {"order": order["id"]})) if allowed else look
    return Draft(slots=slots, calls=calls, answer=DONE if allowed else refusal(why), rules=rules)


def amount(world: World, rng: random.Random, level: int) -> Draft:
    """A request for sums and extremes over a customer's orders."""
    least = 1 if level <= 2 else 2
    who = world.pick(rng, world.customers, lambda row: least <= len(world.orders_of(row)) <= level + 1)
    orders = world.orders_of(who)
    listing: tuple[Call, ...] = (("list_orders", {"customer": who["id"]}),)
    by_name = (*_by_name(who), *listing)
    latest = max(orders, key=lambda row: (row["day"], row["id"]))
    if level == 1:
        return Draft(slots={"id": who["id"]}, calls=listing, answer=str(latest["total"]))
    if level == 2:
        return Draft(slots={"name": who["name"]}, calls=by_name, answer=str(latest["total"]))
    if level == 3:
        return Draft(slots={"name": who["name"]}, calls=by_name, answer=str(max(row["total"] for row in orders)))
    if level == 4:
        return Draft(slots={"name": who["name"]}, calls=by_name, answer=str(sum(row["total"] for row in orders)))
    spent = sum(row["total"] for row in orders if row["status"] != "cancelled")
    return Draft(slots={"name": who["name"]}, calls=by_name, answer=f"{spent} in {len(orders)} orders")


def correct(world: World, rng: random.Random, level: int) -> Draft:
    """A request to correct data that are wrong, as given or as the customer wrote it in a ticket."""
    if level <= 2:
        who = world.pick(rng, world.customers)
        city = world.city(rng, who["city"])
        start = _by_name(who) if level == 2 else ()
        slots = {"name": who["name"], "id": who["id"], "city": city}
        return Draft(slots=slots, calls=(*start, ("set_city", {"customer": who["id"], "city": city})), answer=DONE)

    def asks(row: Row) -> bool:
        return bool(row["status"] == "open" and row["text"] != "Please help.")

    if level == 3:
        ticket = world.pick(rng, world.tickets, asks)
        return Draft(
            slots={"ticket": ticket["id"]},
            calls=(("get_ticket", {"ticket": ticket["id"]}), _call_for(ticket)),
            answer=DONE,
        )
    who = world.pick(rng, world.customers, lambda row: sum(map(asks, _open_tickets(world, row))) == 1)
    open_tickets = _open_tickets(world, who)
    if level == 4 and len(open_tickets) > 1:
        raise NotApplicable
    request = next(filter(asks, open_tickets))
    reads = tuple(("get_ticket", {"ticket": row["id"]}) for row in open_tickets)
    closing: tuple[Call, ...] = (("close_ticket", {"ticket": request["id"]}),) if level == 5 else ()
    calls = (*_by_name(who), ("list_tickets", {"customer": who["id"]}), *reads, _call_for(request), *closing)
    return Draft(slots={"name": who["name"]}, calls=calls, answer=DONE)


def _open_tickets(world: World, customer: Row) -> list[Row]:
    return [row for row in world.tickets_of(customer) if row["status"] == "open"]


def _call_for(ticket: Row) -> Call:
    """The call that does what the text of a ticket asks for."""
    words = ticket["text"].rstrip(".").split()
    if "email" in words:
        return ("set_email", {"customer": ticket["customer"], "email": words[-1]})
    return ("set_city", {"customer": ticket["customer"], "city": words[-1]})


def credit(world: World, rng: random.Random, level: int) -> Draft:
    """A request for credit, which must be refused as often as not: the customer is blocked, or over a limit."""
    gift = rng.choice((5, 10, 15, 20, 25, 30))
    blocked = rng.random() < 0.5
    limit = world.policy("credit_limit")
    if level == 5:
        order = world.pick(rng, world.orders)
        who = world.customer_of(order)
    else:
        status = "blocked" if blocked else "active"
        who = world.pick(rng, world.customers, lambda row: row["status"] == status)
    look: tuple[Call, ...] = (("get_customer", {"customer": who["id"]}),)
    if 2 <= level <= 4:
        look = (*_by_name(who), *look)
    if level == 5:
        look = (("get_order", {"order": order["id"]}), *look)
    if level == 4:  # the account shall hold the amount of the request at the end
        total = who["credit"] + gift
        slots: dict[str, object] = {"name": who["name"], "amount": total}
    else:
        slots = {"id": who["id"], "name": who["name"], "amount": gift}
    if level == 5:
        slots = {"order": order["id"], "amount": gift}
    rules = ("credit_limit",) if level >= 3 else ()
    if who["status"] == "blocked":
        return Draft(slots=slots, calls=look, answer=refusal(f"blocked {who['email']}"), rules=rules)
    if level >= 3 and who["credit"] + gift > limit:
        return Draft(slots=slots, calls=look, answer=refusal(f"credit {who['credit']}"), rules=rules)
    calls = (*look, ("add_credit", {"customer": who["id"], "amount": gift}))
    return Draft(slots=slots, calls=calls, answer=DONE, rules=rules)


def talk(world: World, rng: random.Random, level: int) -> Draft:
    """A question that the handbook in the request answers: no tool is needed."""
    topics = rng.sample(
        ["refund_days", "refund_limit", "goodwill", "gold_spend", "reorder_level", "reorder_amount"], min(level, 3)
    )
    asked = rng.choice(topics)
    return Draft(
        slots={"topic": asked.replace("_", " ")}, calls=(), answer=str(world.policy(asked)), rules=tuple(topics)
    )


def ticket(world: World, rng: random.Random, level: int) -> Draft:
    """A request to close tickets, or to raise their priority by their age."""
    if level == 1:
        row = world.pick(rng, world.tickets, lambda row: row["status"] != "closed")
        return Draft(slots={"ticket": row["id"]}, calls=(("close_ticket", {"ticket": row["id"]}),), answer=DONE)

    def low(row: Row) -> bool:
        return bool(row["status"] == "open" and row["priority"] != "high")

    if level <= 3:
        row = world.pick(rng, world.tickets, low)
        age = TODAY - row["day"]
        days = max(age + rng.choice((-4, -1, 0, 1, 4)), 1) if level == 2 else world.policy("urgent_days")
        look: tuple[Call, ...] = (("get_ticket", {"ticket": row["id"]}),)
        slots: dict[str, object] = {"ticket": row["id"], "days": days}
        rules = ("urgent_days",) if level == 3 else ()
        if age < days:
            return Draft(slots=slots, calls=look, answer=refusal(f"day {row['day']}"), rules=rules)
        calls = (*look, ("set_priority", {"ticket": row["id"], "priority": "high"}))
        return Draft(slots=slots, calls=calls, answer=DONE, rules=rules)
    days = world.policy("urgent_days")

    def old(row: Row) -> bool:
        return bool(row["status"] == "open" and TODAY - row["day"] >= days)

    least = 1 if level == 4 else 2
    who = world.pick(rng, world.customers, lambda row: sum(map(old, world.tickets_of(row))) >= least)
    urgent = [row for row in world.tickets_of(who) if old(row)]
    raised = tuple(("set_priority", {"ticket": row["id"], "priority": "high"}) for row in urgent)
    calls = (*_by_name(who), ("list_tickets", {"customer": who["id"]}), *raised)
    if not any(row["priority"] != "high" for row in urgent):
        raise NotApplicable
    return Draft(slots={"name": who["name"]}, calls=calls, answer=DONE, rules=("urgent_days",))


def stock(world: World, rng: random.Random, level: int) -> Draft:
    """A request to correct the stock of a product, or to reorder what is short."""
    product = world.pick(rng, world.products)
    if level <= 2:
        pieces = rng.randint(1, 60)
        start: tuple[Call, ...] = (("find_product", {"name": product["name"]}),) if level == 2 else ()
        calls = (*start, ("set_stock", {"product": product["id"], "pieces": pieces}))
        return Draft(slots={"id": product["id"], "name": product["name"], "pieces": pieces}, calls=calls, answer=DONE)
    least, most = world.policy("reorder_level"), world.policy("reorder_amount")
    short = rng.random() < 0.5
    rules = ("reorder_level", "reorder_amount")
    if level <= 4:
        product = world.pick(rng, world.products, lambda row: (row["stock"] < least) == short)
        look: tuple[Call, ...] = (
            (("get_product", {"product": product["id"]}),)
            if level == 3
            else (("find_product", {"name": product["name"]}),)
        )
        slots: dict[str, object] = {"id": product["id"], "name": product["name"]}
        if not short:
            return Draft(slots=slots, calls=look, answer=refusal(f"stock {product['stock']}"), rules=rules)
        calls = (*look, ("set_stock", {"product": product["id"], "pieces": most}))
        return Draft(slots=slots, calls=calls, answer=DONE, rules=rules)

    def wanting(row: Row) -> list[Row]:
        items = [item for item in world.tables["items"].values() if item["order"] == row["id"]]
        products = [world.tables["products"][item["product"]] for item in items]
        return [product for product in products if product["stock"] < least]

    order = world.pick(rng, world.orders, wanting)
    items = [item["product"] for item in world.tables["items"].values() if item["order"] == order["id"]]
    calls = (
        ("get_order", {"order": order["id"]}),
        *(("get_product", {"product": name}) for name in items),
        *(("set_stock", {"product": row["id"], "pieces": most}) for row in wanting(order)),
    )
    return Draft(slots={"order": order["id"]}, calls=calls, answer=DONE, rules=rules)


def parcel(world: World, rng: random.Random, level: int) -> Draft:
    """A request about parcels on their way, arrived or lost, and for what the company does about a lost one."""
    sent = [row for row in world.orders if row["status"] in ("shipped", "delivered")]
    order = world.pick(rng, sent)
    shipment = world.tables["shipments"]["S" + order["id"][1:]]
    look: tuple[Call, ...] = (("get_shipment", {"order": order["id"]}),)
    if level == 1:
        return Draft(slots={"order": order["id"]}, calls=look, answer=f"{shipment['carrier']} {shipment['due']}")
    if level == 2:
        who = world.pick(rng, world.customers, lambda row: len(_shipped_orders(world, row)) == 1)
        order = _shipped_orders(world, who)[0]
        shipment = world.tables["shipments"]["S" + order["id"][1:]]
        calls = (*_by_name(who), ("list_orders", {"customer": who["id"]}), ("get_shipment", {"order": order["id"]}))
        return Draft(slots={"name": who["name"]}, calls=calls, answer=f"{shipment['carrier']} {shipment['due']}")
    lost = rng.random() < 0.5
    if level == 3:
        order = world.pick(rng, sent, lambda row: (_shipment(world, row)["status"] == "lost") == lost)
        who = world.customer_of(order)
        start: tuple[Call, ...] = ()
        slots: dict[str, object] = {"order": order["id"]}
    else:

        def waits(row: Row) -> bool:
            return [_shipment(world, order)["status"] == "lost" for order in _shipped_orders(world, row)] == [lost]

        who = world.pick(rng, world.customers, waits)
        order = _shipped_orders(world, who)[0]
        start = (*_by_name(who), ("list_orders", {"customer": who["id"]}))
        slots = {"name": who["name"]}
    shipment = _shipment(world, order)
    look = (*start, ("get_shipment", {"order": order["id"]}))
    gift, rules = world.policy("goodwill"), ("goodwill",)
    if shipment["status"] != "lost":
        answer = refusal(f"{shipment['status']} {shipment['due']}")
        return Draft(slots=slots, calls=look, answer=answer, rules=rules)
    if level == 3:
        look = (*look, ("get_order", {"order": order["id"]}))
    ticket_too: tuple[Call, ...] = ()
    if level == 5:
        ticket_too = (("open_ticket", {"customer": who["id"], "topic": "lost"}),)
    calls = (*look, ("add_credit", {"customer": who["id"], "amount": gift}), *ticket_too)
    return Draft(slots=slots, calls=calls, answer=DONE, rules=rules)


def _shipped_orders(world: World, customer: Row) -> list[Row]:
    return [row for row in world.orders_of(customer) if row["status"] in ("shipped", "delivered")]


def _shipment(world: World, order: Row) -> Row:
    return world.tables["shipments"]["S" + order["id"][1:]]


_PRACTICE = (contact, cancel, refund, amount, correct, credit, talk, ticket)
FAMILIES: Mapping[str, Family] = {family.__name__: family for family in _PRACTICE}
"""Kinds of requests that a policy may be trained on; a function's name is part of its tasks' ids."""
HELD_OUT_FAMILIES: Mapping[str, Family] = {family.__name__: family for family in (stock, parcel)}
"""Kinds of requests for tests only."""
