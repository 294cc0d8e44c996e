"""The tables of a fictional company, generated from a seed. Standard library only; the file enters the sandbox.

The tables have customers, orders and the like, but nothing about tasks or answers.
"""

from __future__ import annotations

import random
from typing import Any

Row = dict[str, Any]
Tables = dict[str, dict[str, Row]]

TODAY = 200
"""Day of the year on which every episode takes place."""
SIZES = {"customers": 200, "products": 120, "orders": 300, "tickets": 240, "employees": 100, "articles": 100}

FIRST = (
    "Ann Bob Cara Dan Eva Finn Gina Hugo Ida Jon Kim Leo Mia Ned Ola Pia Quin Rosa Sam Tia Uma Vic Wim Yan Zoe"
).split()
LAST = (
    "Abel Baker Chan Diaz Evans Fox Grant Hill Ivers Jones Klein Lopez Moore Nash Owens Price Quist Reyes Stone Tran"
    " Usher Vega Wolf Young Zimmer"
).split()
HELD_OUT_LAST = ("Usher", "Vega", "Wolf", "Young", "Zimmer")
"""Family names of customers that no training task is about."""
CITIES = (
    "Oslo Rome Lima Kyiv Bern Cairo Delhi Hanoi Paris Quito Riga Seoul Tunis Turin Vienna Warsaw Zagreb Athens Boston"
    " Dakar Dublin Geneva Havana Lisbon Madrid"
).split()
HELD_OUT_CITIES = ("Geneva", "Havana", "Lisbon", "Madrid", "Dublin")
TIERS = ("bronze", "silver", "gold")
ADJECTIVES = ("red", "blue", "green", "small", "large", "light", "solid", "smart", "quiet", "rapid")
THINGS = "lamp desk chair phone mouse cable stand case pen clock bag kettle".split()
CARRIERS = ("Swift", "Nord", "Atlas", "Pelican")
METHODS = ("card", "invoice", "transfer")
TOPICS = ("billing", "delivery", "damage", "account", "returns", "warranty", "discount", "privacy")
PRIORITIES = ("low", "normal", "high")
TEAMS = ("support", "finance", "logistics", "sales")
ORDER_STATES = ("open", "paid", "shipped", "delivered", "cancelled")
SHIPMENT_OF = {"shipped": ("transit", "lost"), "delivered": ("arrived",)}

POLICIES: dict[str, tuple[str, tuple[int, ...]]] = {
    "refund_days": ("An order can be refunded up to {} days after it was placed.", (10, 20, 30, 40, 60)),
    "refund_limit": ("Support refunds at most {} euros; more goes to finance as a ticket.", (100, 200, 300, 400)),
    "goodwill": ("A customer whose parcel was lost gets {} euros of credit.", (5, 10, 15, 20, 25)),
    "gold_spend": ("Customers who ever ordered for {} euros or more in one order are gold.", (300, 400, 500)),
    "reorder_level": ("Fewer than {} pieces in stock are too few.", (5, 10, 15, 20)),
    "reorder_amount": ("What is short is ordered up to {} pieces.", (40, 50, 60, 80)),
    "credit_limit": ("No account may hold more than {} euros of credit.", (60, 80, 100)),
    "urgent_days": ("A ticket open for {} days or longer is urgent: its priority is high.", (5, 10, 15, 20)),
}
"""Policies of the company: topic -> (sentence of the handbook, possible numbers)."""


def make_tables(seed: int) -> Tables:
    """All tables of the company; the same seed gives the same tables."""
    rng = random.Random(f"backoffice-{seed}")
    tables: Tables = {
        "customers": _customers(rng),
        "products": _products(rng),
        "employees": _employees(rng),
        "articles": {},
        "policies": {},
        "orders": {},
        "items": {},
        "payments": {},
        "shipments": {},
        "tickets": {},
        "notes": {},
    }
    for topic, (_, values) in POLICIES.items():
        tables["policies"][topic] = {"id": topic, "value": rng.choice(values)}
    _orders(rng, tables)
    _tickets(rng, tables)
    _articles(rng, tables)
    return tables


def handbook(tables: Tables, topics: list[str]) -> list[str]:
    """The handbook's sentences on these topics, with this company's numbers."""
    return [POLICIES[topic][0].format(tables["policies"][topic]["value"]) for topic in topics]


def _customers(rng: random.Random) -> dict[str, Row]:
    names = [f"{first} {last}" for first in FIRST for last in LAST]
    rng.shuffle(names)
    rows = {}
    for number, name in enumerate(names[: SIZES["customers"]], 1):
        key = f"C{number:03d}"
        rows[key] = {
            "id": key,
            "name": name,
            "email": f"{name.split()[0].lower()}{rng.randint(10, 99)}@mail.com",
            "city": rng.choice(CITIES),
            "tier": rng.choice(TIERS),
            "status": "blocked" if rng.random() < 0.1 else "active",
            "credit": rng.randrange(0, 50, 5),
        }
    return rows


def _products(rng: random.Random) -> dict[str, Row]:
    names = [f"{adjective} {thing}" for adjective in ADJECTIVES for thing in THINGS]
    rng.shuffle(names)
    rows = {}
    for number, name in enumerate(names[: SIZES["products"]], 1):
        key = f"P{number:03d}"
        rows[key] = {"id": key, "name": name, "price": rng.randrange(5, 150, 5), "stock": rng.randint(0, 60)}
    return rows


def _employees(rng: random.Random) -> dict[str, Row]:
    rows = {}
    for number in range(1, SIZES["employees"] + 1):
        key = f"E{number:03d}"
        name = f"{rng.choice(FIRST)} {rng.choice(LAST)}"
        rows[key] = {"id": key, "name": name, "team": rng.choice(TEAMS), "on_duty": rng.random() < 0.5}
    return rows


def _orders(rng: random.Random, tables: Tables) -> None:
    customers, products = list(tables["customers"]), list(tables["products"])
    for number in range(1, SIZES["orders"] + 1):
        key = f"O{number:03d}"
        total = 0
        for position in range(1, rng.choice((1, 1, 2, 2, 3)) + 1):
            product, quantity = rng.choice(products), rng.randint(1, 4)
            total += quantity * tables["products"][product]["price"]
            item = f"{key}-{position}"
            tables["items"][item] = {"id": item, "order": key, "product": product, "quantity": quantity}
        status = rng.choice(ORDER_STATES)
        tables["orders"][key] = {
            "id": key,
            "customer": rng.choice(customers),
            "status": status,
            "day": rng.randint(TODAY - 90, TODAY - 1),
            "total": total,
        }
        settled = {"open": "pending", "cancelled": "refunded"}.get(status, "settled")
        payment = f"Y{number:03d}"
        tables["payments"][payment] = {
            "id": payment,
            "order": key,
            "amount": total,
            "method": rng.choice(METHODS),
            "status": settled,
        }
        if status in SHIPMENT_OF:
            shipment = f"S{number:03d}"
            tables["shipments"][shipment] = {
                "id": shipment,
                "order": key,
                "carrier": rng.choice(CARRIERS),
                "status": rng.choice(SHIPMENT_OF[status]),
                "due": rng.randint(TODAY, TODAY + 20),
            }


def _tickets(rng: random.Random, tables: Tables) -> None:
    orders, employees = list(tables["orders"].values()), list(tables["employees"])
    for number in range(1, SIZES["tickets"] + 1):
        key = f"T{number:03d}"
        order = rng.choice(orders)
        tables["tickets"][key] = {
            "id": key,
            "customer": order["customer"],
            "order": order["id"],
            "topic": rng.choice(TOPICS),
            "priority": rng.choice(PRIORITIES),
            "status": rng.choice(("open", "open", "pending", "closed")),
            "day": rng.randint(TODAY - 30, TODAY - 1),
            "agent": rng.choice(employees),
            "text": _ticket_text(rng),
        }


def _ticket_text(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return "Please help."
    if rng.random() < 0.5:
        return f"My new email is {rng.choice(FIRST).lower()}{rng.randint(100, 999)}@post.net."
    return f"I moved to {rng.choice(CITIES)}."


def _articles(rng: random.Random, tables: Tables) -> None:
    for number in range(1, SIZES["articles"] + 1):
        key = f"K{number:03d}"
        topic = rng.choice(TOPICS)
        code = f"{rng.choice('ABCDEFGH')}{rng.randint(100, 999)}"
        tables["articles"][key] = {
            "id": key,
            "topic": topic,
            "title": f"{topic} guide {number}",
            "text": f"Form {code} is used for {topic}.",
        }
