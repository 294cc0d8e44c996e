"""Task records from what AgentDojo's code says of its tasks, and the parts that the injection wrapper needs."""

from __future__ import annotations

import re

from gymcp.envs.wrappers.placeholders import fill_placeholders
from gymcp.types import GoldTurn, Json, Task, ToolCall


def task_id(suite: str, upstream: str) -> str:
    """The task's id here: ``banking_user_task_3`` for ``user_task_3`` of banking."""
    return f"{suite}_{upstream}"


def to_task(name: str, suite: Json, row: Json) -> Task:
    """A user task in its world without an attack."""
    needed = row["last_necessary"]
    return Task(
        id=task_id(name, row["id"]),
        prompts=(row["prompt"],),
        initial_state={"suite": name, "environment": fill_placeholders(suite["environment"], suite["vectors"])},
        target={"suite": name, "user_task": row["id"], "injection_task": None},
        gold=(GoldTurn(calls=gold_calls(row["gold"]), final_text=row["output"] or "Done."),),
        last_necessary=None if needed is None else (0, needed),
        tags=(name, row["difficulty"]),
    )


def gold_calls(rows: Json, prefix: str = "gold") -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(id=f"{prefix}-{number}", name=row["name"], arguments=row["arguments"])
        for number, row in enumerate(rows)
    )


def fold_lines(text: str) -> str:
    """An injected text as upstream's worlds hold it.

    Upstream puts it between the quotes of a YAML scalar, which folds lines.
    """
    return re.sub(r"[ \t]*(\n[ \t]*)+", lambda found: "\n" * (found[0].count("\n") - 1) or " ", text)
