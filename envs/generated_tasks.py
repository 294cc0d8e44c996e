"""Tasks that an environment makes beyond its suite: each has a place in an endless sequence."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from gymcp.envs.spec import EnvSpec, MoreTasks
from gymcp.errors import ConfigError, GymcpError
from gymcp.types import Json, Task
from gymcp.user_code import describe_error

GENERATED = "generated"
"""Key of the request in the provenance of an episode of such a task."""
_KEPT_BLOCKS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedTask:
    """A request for one task; the same request always gives the same task."""

    split: str = "train"
    number: int = 0
    """Place among the tasks of these families and levels, from 0: one of each kind, then the next one of each."""
    families: tuple[str, ...] = ()
    """Task families; empty: all of the split."""
    levels: tuple[int, ...] = ()
    """Difficulty levels; empty: all."""

    def to_row(self) -> dict[str, Json]:
        """The request as a record stores it, for `read_generated`."""
        return {**asdict(self), "families": list(self.families), "levels": list(self.levels)}


def read_generated(provenance: Mapping[str, Json]) -> GeneratedTask | None:
    """The request in the provenance of an episode; None without one, or if it is malformed."""
    match provenance.get(GENERATED):
        case {"split": str(split), "number": int(number), "families": list(families), "levels": list(levels)}:
            if all(isinstance(name, str) for name in families) and all(isinstance(level, int) for level in levels):
                return GeneratedTask(split=split, number=number, families=tuple(families), levels=tuple(levels))
    return None


def generate_task(spec: EnvSpec, wanted: GeneratedTask) -> Task:
    """The task that was asked for. Making it may take a second.

    Raises ConfigError if the environment makes no tasks, or none of that split, family or level, or if its generator
    fails; another GymcpError if this machine lacks what the generator needs.
    """
    who = f"environment '{spec.name}'"
    if spec.more_tasks is None:
        raise ConfigError(f"{who}: makes no tasks, or none with these wrappers: name a task of its suite")
    if wanted.number < 0:
        raise ConfigError(f"{who}: number is {wanted.number}: tasks are numbered from 0")
    kind = (spec.more_tasks, wanted.split, wanted.families, wanted.levels)
    make_block = functools.partial(_make_block, *kind)  # type: ignore[arg-type]  # functions can be hashed
    try:
        size = len(make_block(0))
        block, at = divmod(wanted.number, size) if size else (0, 0)
        tasks = make_block(block)
        task = tasks[at] if at < len(tasks) else None
    except GymcpError:  # this machine lacks something, or the request is wrong: both say so
        raise
    except (Exception, SystemExit) as error:  # the environment's code, which may raise anything
        raise ConfigError(f"{who}: its more_tasks: {describe_error(error)}") from error
    if task is None:
        raise ConfigError(f"{who}: split '{wanted.split}' has no task {wanted.number} of these families and levels")
    return task


@functools.lru_cache(maxsize=_KEPT_BLOCKS)
def _make_block(
    more_tasks: MoreTasks, split: str, families: tuple[str, ...], levels: tuple[int, ...], number: int
) -> Sequence[Task]:
    """One task of each kind (family and level). A sequence stays as it is: it may make a task when it is taken."""
    tasks = more_tasks(split, families=families or None, levels=levels or None, count=1, first=number)
    return tasks if isinstance(tasks, Sequence) else tuple(tasks)
