"""Tasks of one turn over third-party servers, as the catalog's environments generate them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gymcp.types import GoldTurn, Json, Task, ToolCall

Call = tuple[str, dict[str, Any]]
"""Name of a tool, and its arguments."""


def one_turn(
    task_id: str,
    prompt: str,
    calls: Sequence[Call],
    *,
    target: Json,
    answer: str = "Done.",
    initial_state: Mapping[str, Json] | None = None,
) -> Task:
    """A task whose gold is `calls`, all of them necessary, and `answer`; its tag is its id without the number."""
    gold = tuple(
        ToolCall(id=f"call_{number}", name=name, arguments=arguments)
        for number, (name, arguments) in enumerate(calls, 1)
    )
    return Task(
        id=task_id,
        prompts=(prompt,),
        initial_state=initial_state,
        target=target,
        gold=(GoldTurn(calls=gold, final_text=answer),),
        last_necessary=(0, len(gold) - 1),
        tags=(task_id.rpartition("_")[0],),
    )
