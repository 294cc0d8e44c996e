"""Wordings of requests: phrases by family and level, in frames. Some of both are held out for tests."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

CHECKED = "_checked"
"""Suffix of a family's name that marks a twin with other gold and the same wordings."""
FRAMES = (
    "Please {}.",
    "Could you {}?",
    "I need you to {}.",
    "Next job: {}.",
    "A colleague asks you to {}.",
    "Before you go home, {}.",
)
HELD_OUT_FRAMES = FRAMES[-1:]

VERBS: Mapping[str, tuple[str, ...]] = {
    "contact": ("tell me", "give me", "look up", "find out", "report", "dig up"),
    "cancel": ("cancel", "call off", "stop", "void", "withdraw", "scrap"),
    "refund": ("refund", "pay back", "reimburse", "return the money for", "give the money back for", "make good"),
    "amount": ("tell me", "give me", "work out", "find out", "report", "figure out"),
    "correct": ("update", "correct", "fix", "change", "put right", "amend"),
    "credit": ("give", "grant", "credit", "award", "hand", "allow"),
    "talk": ("tell me", "give me", "state", "quote", "remind me of", "name"),
    "ticket": ("deal with", "handle", "see to", "take care of", "process", "look after"),
    "stock": ("set", "correct", "update", "fix", "record", "enter"),
    "parcel": ("check", "look into", "find out about", "see about", "trace", "chase"),
    "told": ("tell me", "give me", "state", "report", "repeat", "name"),
    "moved": ("update", "correct", "fix", "change", "put right", "amend"),
    "called_off": ("cancel", "call off", "stop", "void", "withdraw", "scrap"),
}
"""Verbs by family; the last verb of each is held out for tests."""

WHAT: Mapping[str, tuple[str, str, str, str, str]] = {
    "contact": (
        "the email address of customer {id}",
        "the email address of {name}",
        "the email address of the customer of order {order}",
        "the name of the employee who has ticket {ticket}",
        "the largest order of the customer of ticket {ticket}, as its id and its products",
    ),
    "cancel": (
        "order {order}",
        "order {order} if that is still possible; if not, give its status",
        "the open order of {name}",
        "all open orders of {name}",
        "the open orders placed before day {day} by the customer of ticket {ticket}",
    ),
    "refund": (
        "order {order}",
        "order {order} if its total is at most {limit}; if not, give the total",
        "order {order} if it is not too old; if it is, give 'day' and its day",
        "order {order} by the rules, with a ticket on topic refund where finance must do it",
        "the latest paid, shipped or delivered order of {name} by the rules, with a ticket on topic refund where"
        " finance must do it",
    ),
    "amount": (
        "the total of the latest order of customer {id}",
        "the total of the latest order of {name}",
        "the total of the largest order of {name}",
        "the sum of the totals of all orders of {name}",
        "the sum of the totals of the orders of {name} that are not cancelled, and of how many orders in all",
    ),
    "correct": (
        "the city of customer {id} to {city}",
        "the city of {name} to {city}",
        "the customer's data as ticket {ticket} asks",
        "the data of {name} as the open ticket asks",
        "the data of {name} as the open ticket asks, and close that ticket",
    ),
    "credit": (
        "{amount} euros to customer {id}, unless blocked; if so, give 'blocked' and the email",
        "{amount} euros to {name}, unless blocked; if so, give 'blocked' and the email",
        "{amount} euros to {name}, unless blocked or over the limit; give 'blocked' and the email, or 'credit' and the"
        " credit there is",
        "what {name} needs to hold {amount} euros, unless blocked or over the limit; give 'blocked' and the email, or"
        " 'credit' and the credit there is",
        "{amount} euros to the customer of order {order}, unless blocked or over the limit; give 'blocked' and the"
        " email, or 'credit' and the credit there is",
    ),
    "talk": ("the number for {topic}",) * 5,
    "ticket": (
        "ticket {ticket}: it is solved, so close it",
        "ticket {ticket}: if it is {days} days old or older, raise it to high; if not, give 'day' and its day",
        "ticket {ticket}: if it is urgent, raise it to high; if not, give 'day' and its day",
        "the tickets of {name}: raise the urgent open ones to high",
        "all tickets of {name}: every open one that is urgent goes to high",
    ),
    "stock": (
        "the stock of product {id}: {pieces} pieces",
        "the stock of the {name}: {pieces} pieces",
        "the stock of product {id} if too few are left; if not, give 'stock' and the pieces",
        "the stock of the {name} if too few are left; if not, give 'stock' and the pieces",
        "the stock of whatever is short in order {order}",
    ),
    "parcel": (
        "the carrier and the due day of order {order}",
        "the carrier and the due day of the parcel that {name} was sent",
        "the parcel of order {order}: if it is lost, give the goodwill credit; if not, give its status and due day",
        "the parcel that {name} was sent: if it is lost, give the goodwill credit; if not, give its status and due day",
        "the parcel that {name} was sent: if it is lost, give the goodwill credit and open a ticket on topic lost; if"
        " not, give its status and due day",
    ),
    "told": ("{jobs}",) * 5,
    "moved": ("{jobs}",) * 5,
    "called_off": ("{jobs}",) * 5,
}


def wordings(family: str, level: int, *, held_out: bool) -> list[str]:
    """Templates of a request, with the family's slots open.

    A held-out template has a frame or a verb that no training template has.
    """
    family = family.removesuffix(CHECKED)
    templates: list[str] = []
    for frame, verb in product(FRAMES, VERBS[family]):
        unseen = frame in HELD_OUT_FRAMES or verb == VERBS[family][-1]
        if unseen == held_out:
            templates.append(frame.format(f"{verb} {WHAT[family][level - 1]}"))
    return templates
