"""A server whose declared state can be made to hold anything: the program that runs in the sandbox."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from gymcp.mcp_servers.native.runtime import Server

server = Server("brittle")
world: dict[str, Any] = {"balance": 0}


class Sulking(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        raise LookupError("not today")


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def endless() -> int:
    sys.set_int_max_str_digits(0)
    return 10**4400


def circle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


HELD: dict[str, Any] = {
    "infinity": lambda: float("inf"),
    "infinity below": lambda: [{"a": -float("inf")}],
    "not a number": lambda: float("nan"),
    "endless integer": lambda: 10**4400,
    "endless integer as a key": lambda: {10**4400: 1},
    "endless integer in a program that allows it": endless,
    "tuple as a key": lambda: {(1, 2): 3},
    "infinity as a key": lambda: {float("inf"): 1},
    "bytes": lambda: b"\xff",
    "set": lambda: {1, 2},
    "object": object,
    "function": lambda: deep,
    "circle": circle,
    "deeper than any reader": lambda: deep(5000),
    "deeper than the harness reads": lambda: deep(250),
    "deep objects": lambda: {"a": {"b": deep(120)}},
    "half a character": lambda: "\ud800",
    "half a character as a key": lambda: {"\udfff": 1},
    "mapping that raises": lambda: Sulking(a=1),
    "long text": lambda: "x" * 3_000_000,
    "long text of wide characters": lambda: "\U0001f600" * 800_000,
    "many parts": lambda: [0] * 1_000_000,
}
RAISED: dict[str, Any] = {
    "state that raises": lambda: world["gone"],
    "state that exits": lambda: sys.exit("enough"),
    "state without end": lambda: time.sleep(10**6),
    "state of more memory than there is": lambda: len(bytearray(10**9) + bytearray(10**9)),
}


@server.setup
def setup(initial_state: Any, seed: int) -> None:
    world["balance"] = (initial_state or {}).get("balance", 0)
    if "hold" in (initial_state or {}):
        hold(initial_state["hold"])


@server.state
def state() -> Any:
    if world.get("held") in RAISED:
        RAISED[world["held"]]()
    return world


@server.tool()
def deposit(amount: float) -> str:
    """Add to the balance."""
    world["balance"] += amount
    return f"the balance is {world['balance']}"


@server.tool()
def scale(factor: int) -> str:
    """Multiply the balance."""
    world["balance"] *= factor
    return "scaled"


@server.tool()
def hold(what: str) -> str:
    """Keep something."""
    world["held"] = what if what in RAISED else HELD[what]()
    return "held"


@server.tool()
def pair() -> str:
    """Keep two halves of a character beside each other, which JSON makes one."""
    world["held"] = "".join(map(chr, (0xD83D, 0xDE00)))
    return "held"


@server.tool()
def say(what: str) -> Any:
    """Answer with something, and keep nothing."""
    return HELD[what]()


@server.tool()
def crash() -> str:
    """End the process."""
    os._exit(3)


def main() -> None:
    server.run()
