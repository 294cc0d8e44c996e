"""Training in several processes: the main one runs the loop, the others do what its learners do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs

from gymcp.errors import ConfigError, GymcpError
from gymcp.trainers.learner.distributed_processes import Accelerated
from gymcp.trainers.learner.learner import Learner, LearnerSettings
from gymcp.trainers.recipe.model import TrainableModel, load_trainable
from gymcp.trainers.recipe.recipe import Recipe

LONGEST = timedelta(days=7)
"""That rollouts between two updates may take. A main process that dies is noticed at once, by its launcher too."""
_END, _LOAD, _MAKE = "end", "load the model", "make a learner"
_RAISED = (ConfigError, FloatingPointError)
"""By what a learner is asked: in all processes, if all have the same files."""
T = TypeVar("T")


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
        _end(processes)
        raise
    _end(processes)


def _end(processes: Accelerated | None) -> None:
    if processes is not None:
        processes.told(_Said(_END))


def follow(processes: Accelerated) -> None:
    """The part of every other process, until the main one ends."""
    pupil: TrainableModel | None = None
    learner: Any = None
    while True:
        said: _Said = processes.told()
        if said.name == _END:
            return
        try:
            if said.name == _LOAD:
                pupil = _load(*said.arguments)
            elif said.name == _MAKE and pupil is not None:
                learner = Learner(pupil.model, said.arguments[0], processes)
            else:
                getattr(learner, said.name)(*said.arguments, **said.options)
        except _RAISED as error:
            if _failures(processes, failed=True) < processes.parts:  # else the main process tells
                print(f"gymcp: one of {processes.parts} processes: {error}", file=sys.stderr, flush=True)
        else:
            _failures(processes, failed=False)


def load_everywhere(recipe: Recipe, folder: Path, processes: Accelerated | None) -> TrainableModel:
    """`load_trainable`, in all processes."""
    return _everywhere(processes, _Said(_LOAD, (recipe, folder)), lambda: _load(recipe, folder))


def make_learner(pupil: TrainableModel, settings: LearnerSettings, processes: Accelerated | None) -> Learner:
    """One of the pupil's model. What the main process asks of the newest, all processes do."""
    made = _everywhere(processes, _Said(_MAKE, (settings,)), lambda: Learner(pupil.model, settings, processes))
    return made if processes is None else cast(Learner, _Leader(made, processes))


def _load(recipe: Recipe, folder: Path) -> TrainableModel:
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled() or recipe.deterministic)
    return load_trainable(recipe.model, folder, recipe.seed)


class _Leader:
    """A learner whose methods are called in all processes."""

    def __init__(self, learner: Learner, processes: Accelerated) -> None:
        self._learner, self._processes = learner, processes

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def everywhere(*arguments: Any, **options: Any) -> Any:
            method = partial(getattr(self._learner, name), *arguments, **options)
            return _everywhere(self._processes, _Said(name, arguments, options), method)

        return everywhere


def _everywhere(processes: Accelerated | None, said: _Said, work: Callable[[], T]) -> T:
    """What comes of it here. Raises what it raises, or ConfigError where only other processes failed."""
    if processes is None:
        return work()
    processes.told(said)
    try:
        found = work()
    except _RAISED:
        _failures(processes, failed=True)
        raise
    if failed := _failures(processes, failed=False):
        raise ConfigError(
            f"training: {said.name}: {failed} of {processes.parts} processes failed, and the main one did not; they"
            " said why. Do all of them see the same model and run folder?"
        )
    return found


def _failures(processes: Accelerated, *, failed: bool) -> int:
    """In how many processes."""
    return int(processes.added(torch.tensor([float(failed)])))
