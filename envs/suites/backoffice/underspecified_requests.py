"""Requests to the back office that leave out what only the user knows, beside the same requests in full."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from gymcp.envs.suites.backoffice.tasks import task_and_draft
from gymcp.envs.suites.generation.underspecified_pairs import VERSION, Hidden, ask_which, ask_who, make_pairs
from gymcp.types import Suite

ORDER = Hidden(
    shown=("order {order}",),
    vague="the order that I have on my desk",
    fact="order",
    words=ask_which("order", "orders"),
    question="Which order is it?",
    tools=(
        *("get_order", "get_payment", "get_shipment", "cancel_order", "refund_order"),
        *("get_customer", "add_credit", "open_ticket"),  # for the customer whose order it is
    ),
)
TICKET = Hidden(
    shown=("ticket {ticket}",),
    vague="the ticket that came in this morning",
    fact="ticket",
    words=ask_which("ticket", "tickets"),
    question="Which ticket is it?",
    tools=("get_ticket", "close_ticket", "set_priority"),
)
NAME = Hidden(
    shown=("{name}",),
    vague="the customer on the phone",
    fact="name",
    words=ask_who("customer", "caller", "calling", "called", "phone", "person"),
    question="What is the name of the customer?",
    tools=("find_customer", "get_customer", "list_orders", "get_order"),
)
CITY = Hidden(
    shown=("{city}",),
    vague="the new one",
    fact="city",
    words=(
        *ask_which("city", "town", "place"),
        "where customer",
        "where live",
        "where lives",
        "where move",
        "where moved",
    ),
    question="Which city is the new one?",
    tools=("set_city",),
)
AMOUNT = Hidden(
    shown=("{amount} euros",),
    vague="the sum that I promised",
    fact="amount",
    words=("how much", "how many euros", *ask_which("amount", "sum"), "how high"),
    question="How much is the sum?",
    tools=("add_credit",),
)
PIECES = Hidden(
    shown=("{pieces} pieces",),
    vague="as many as were counted",
    fact="pieces",
    words=("how many", "which count", "what count", "what quantity", "which quantity", "number pieces", "what counted"),
    question="How many pieces were counted?",
    tools=("set_stock",),
)
HIDDEN: Mapping[str, Mapping[int, Hidden]] = {
    "contact": {2: NAME, 3: ORDER},
    "cancel": {1: ORDER, 2: ORDER},
    "refund": {1: ORDER, 2: ORDER, 3: ORDER, 4: ORDER},
    "amount": {2: NAME, 3: NAME, 4: NAME, 5: NAME},
    "correct": {1: CITY, 2: CITY},
    "credit": {1: AMOUNT, 2: AMOUNT, 3: AMOUNT, 4: AMOUNT, 5: AMOUNT},
    "ticket": {1: TICKET, 2: TICKET, 3: TICKET},
    "stock": {1: PIECES, 2: PIECES},
    "parcel": {1: ORDER, 3: ORDER},
}
"""The part that is left out, by family and level."""


def make_suite() -> Suite:
    kinds = [
        (partial(task_and_draft, "seeds", family, level), hidden)
        for family, levels in HIDDEN.items()
        for level, hidden in levels.items()
    ]
    return Suite(name="backoffice_asking", version=VERSION, tasks=tuple(make_pairs(kinds, 2)), source="generated")
