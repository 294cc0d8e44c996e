"""Training in several processes: the main one runs the loop, the others do what its learners do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs

from gymcp.errors import ConfigError, GymcpError
from gymcp.trainers.learner import Learner, LearnerSettings
from gymcp.trainers.models import Pupil, load_pupil
from gymcp.trainers.processes import Accelerated
from gymcp.trainers.recipe import ModelRecipe

LONGEST = timedelta(days=7)
"""That rollouts between two updates may take. A main process that dies is noticed at once, by its launcher too."""
_END, _LOAD, _MAKE = "end", "load", "make"


@dataclass(frozen=True, slots=True)
class _Said:
    """A method of the newest learner, or one of the above, and what it is called with."""

    name: str
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def processes_here() -> Accelerated | None:
    """Those that a launcher (`accelerate launch`, `torchrun`) has started with this one; None: it is alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    patience = InitProcessGroupKwargs(timeout=LONGEST)
    return Accelerated(Accelerator(cpu=not torch.cuda.is_available(), kwargs_handlers=[patience]))


@contextmanager
def leading(processes: Accelerated | None) -> Iterator[None]:
    """The main process's part: the others end when it does, also by an error of its user's."""
    try:
        yield
    except GymcpError:
        _say(processes, _Said(_END))
        raise
    _say(processes, _Said(_END))


def follow(processes: Accelerated) -> None:
    """The part of every other process, until the main one ends. What is raised there as well is left to it."""
    pupil: Pupil | None = None
    learner: Any = None
    while True:
        said: _Said = processes.told()
        with suppress(ConfigError, FloatingPointError):
            if said.name == _END:
                return
            if said.name == _LOAD:
                pupil = load_pupil(*said.arguments)
            elif said.name == _MAKE and pupil is not None:
                learner = Learner(pupil.model, said.arguments[0], processes)
            else:
                getattr(learner, said.name)(*said.arguments, **said.options)


def load_everywhere(recipe: ModelRecipe, folder: Path, seed: int, processes: Accelerated | None) -> Pupil:
    """`load_pupil`, in all processes."""
    _say(processes, _Said(_LOAD, (recipe, folder, seed)))
    return load_pupil(recipe, folder, seed)


def make_learner(pupil: Pupil, settings: LearnerSettings, processes: Accelerated | None) -> Learner:
    """One of the pupil's model. What the main process asks of the newest, all processes do."""
    _say(processes, _Said(_MAKE, (settings,)))
    learner = Learner(pupil.model, settings, processes)
    return learner if processes is None else cast(Learner, _Leader(learner, processes))


class _Leader:
    """A learner whose methods are called in all processes."""

    def __init__(self, learner: Learner, processes: Accelerated) -> None:
        self._learner, self._processes = learner, processes

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def everywhere(*arguments: Any, **options: Any) -> Any:
            _say(self._processes, _Said(name, arguments, options))
            return getattr(self._learner, name)(*arguments, **options)

        return everywhere


def _say(processes: Accelerated | None, said: _Said) -> None:
    if processes is not None:
        processes.told(said)
