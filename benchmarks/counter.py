"""The environment of `rollouts.py`: a native server that counts. Other benchmarks take the server's class alone."""

from __future__ import annotations

from gymcp.envs import EnvSpec
from gymcp.evaluators.graders import final_state_equals
from gymcp.mcp_servers.native.server import native_server
from gymcp.types import Suite, Task

TURNS = 10
PROMPT = "Count."


class Counter:
    """A server whose state is one number."""

    def __init__(self, total: int = 0) -> None:
        self.total = total

    def add(self, number: int) -> str:
        """Add a number to the total."""
        self.total += number
        return str(self.total)


ENV = EnvSpec(
    name="counter",
    servers=(native_server("counter", Counter),),
    suite=Suite(
        name="counter",
        version="1",
        tasks=(
            Task(
                id="count",
                prompts=(PROMPT,),
                initial_state={"total": 0},
                target={"total": sum(range(TURNS - 1))},
            ),
        ),
    ),
    grade=final_state_equals(),
)
