"""Facts about an episode's task beside its record: gold calls, target, and the tools that were on offer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from gymcp.evaluators.viewer.episode import cut_text, find, format_arguments, load
from gymcp.evaluators.viewer.runs import OpenedRun, Runs
from gymcp.store import Run
from gymcp.types import GoldTurn, Json, Task, Tool, Trajectory

FindTasks = Callable[[Run], Mapping[str, Task]]
"""Function that finds the tasks of a run by id; it gives {} if they are not available."""
MAX_TOOLS = 500
"""Tools of one list that are shown."""
MAX_LISTS = 20
"""Different tool lists of one episode that are shown."""
MAX_TURNS = 50
"""User turns whose gold calls are shown."""
MAX_CALLS = 200
"""Gold calls of a turn that are shown."""

_NO_TASKS = (
    "gold and target are not in a run folder; they are shown for environments of the catalog, and for a file that you"
    " name with gymcp view --env FILE, if the tasks have not changed since the run"
)


def task_object(runs: Runs, n: int, find_tasks: FindTasks | None) -> dict[str, Json]:
    """Gold, target and tools of an episode's task for the page. Raises NotFound."""
    opened, id = find(runs, n)
    record = load(opened, id)
    task = _find_task(opened, record.task, find_tasks)
    return {
        "unknown": "" if task else _NO_TASKS,
        "gold": [_turn(turn) for turn in task.gold[:MAX_TURNS]] if task else [],
        "target": None if task is None or task.target is None else cut_text(_as_text(task.target)),
        "tools": _tool_lists(record),
    }


def _find_task(opened: OpenedRun, task: str, find_tasks: FindTasks | None) -> Task | None:
    if opened.run is None or find_tasks is None:
        return None
    if opened.tasks is None:
        opened.tasks = find_tasks(opened.run)
    return opened.tasks.get(task)


def _turn(turn: GoldTurn) -> dict[str, Json]:
    calls = [
        {"name": call.name, "arguments": cut_text(format_arguments(call.arguments))} for call in turn.calls[:MAX_CALLS]
    ]
    return {"calls": calls, "text": cut_text(turn.final_text)}


def _tool_lists(record: Trajectory) -> list[dict[str, Json]]:
    """Each list of tools that the agent saw, with the first step that had it."""
    lists: list[dict[str, Json]] = []
    before: tuple[Tool, ...] | None = None
    for at, step in enumerate(record.steps):
        tools = step.observation.tools
        if tools == before:
            continue
        before = tools
        if len(lists) < MAX_LISTS:
            lists.append({"at": at, "count": len(tools), "tools": [_tool(tool) for tool in tools[:MAX_TOOLS]]})
    return lists


def _tool(tool: Tool) -> dict[str, Json]:
    schema = cut_text(_as_text(dict(tool.input_schema))) if tool.input_schema else ""
    return {"name": tool.name[:300], "description": cut_text(tool.description), "schema": schema}


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=str)
