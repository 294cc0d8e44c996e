"""The task that a client asks for: one of the suite, or one that the environment makes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gymcp.agents.endpoint.http_server import RequestRefused
from gymcp.aio import keyed_lock
from gymcp.envs.generated_tasks import GeneratedTask, generate_task
from gymcp.envs.spec import EnvSpec
from gymcp.errors import ConfigError
from gymcp.host import wire
from gymcp.types import Task

_SHOWN_CHARS = 100
_NAMED_TASKS = 3


def read_generate(given: wire.GenerateTask) -> GeneratedTask:
    """The request for a generated task."""
    return GeneratedTask(split=given.split, number=given.number, families=given.families, levels=given.levels)


async def find_task(spec: EnvSpec, tasks: Mapping[str, Task], start: wire.StartEpisode) -> Task:
    """The task of the request; `tasks`: those of the suite, by id. Raises RequestRefused."""
    if (start.task is None) == (start.generate is None):
        why = "either 'task', the id of a task of the suite, or 'generate' must say which task"
        raise RequestRefused(400, why, "invalid_request")
    if start.generate is not None:
        return await _make_task(spec, read_generate(start.generate))
    assert start.task is not None
    if (task := tasks.get(start.task)) is None:
        some = ", ".join(list(tasks)[:_NAMED_TASKS])
        who = f"environment '{start.environment}'"
        why = f"{who}: no task '{start.task[:_SHOWN_CHARS]}'; the ids look like {some}, ..."
        raise RequestRefused(404, why, "unknown_task")
    return task


async def _make_task(spec: EnvSpec, wanted: GeneratedTask) -> Task:
    try:
        async with keyed_lock(f"tasks of {spec.name}"):  # the tasks made for one request are kept for the next
            return await asyncio.to_thread(generate_task, spec, wanted)
    except ConfigError as error:
        raise RequestRefused(404, f"generate: {error}", "unknown_task") from error
