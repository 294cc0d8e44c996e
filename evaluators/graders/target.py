"""The value that a grader compares with."""

from __future__ import annotations

from collections.abc import Mapping

from gymcp.errors import GraderError
from gymcp.types import Json, Task


def target_of(task: Task, key: str | None) -> Json:
    """The task's target, or its entry `key`. Raises GraderError if it has no such key."""
    if key is None:
        return task.target
    if not isinstance(task.target, Mapping) or key not in task.target:
        raise GraderError(f"task '{task.id}': the target has no '{key}'")
    return task.target[key]
