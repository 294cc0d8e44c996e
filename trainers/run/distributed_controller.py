"""Training in several processes: the main one runs the loop and broadcasts commands, the others carry them out."""

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
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.learner.learner_settings import LearnerSettings
from gymcp.trainers.recipe.model import TrainableModel, load_trainable
from gymcp.trainers.recipe.recipe import Recipe

COMMAND_TIMEOUT = timedelta(days=7)
"""Longest time between two commands, as rollouts between two updates may take long. A main process that dies is noticed
at once, by its launcher too."""
_END, _LOAD, _MAKE = "end", "load the model", "make a learner"
_RANK_ERRORS = (ConfigError, FloatingPointError)
"""Errors a learner raises on every rank, provided all ranks see the same files."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Command:
    """A call for all ranks: of a method of the newest learner, or one of the names above."""

    name: str
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def join_process_group() -> Accelerated | None:
    """The processes that a launcher (`accelerate launch`, `torchrun`) has started; None: this process is alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    timeout = InitProcessGroupKwargs(timeout=COMMAND_TIMEOUT)
    return Accelerated(Accelerator(cpu=not torch.cuda.is_available(), kwargs_handlers=[timeout]))


@contextmanager
def controller(processes: Accelerated | None) -> Iterator[None]:
    """Surrounds the main process's work: at its end, also by a `GymcpError`, the other processes leave their loop."""
    try:
        yield
    except GymcpError:
        _end_workers(processes)
        raise
    _end_workers(processes)


def _end_workers(processes: Accelerated | None) -> None:
    if processes is not None:
        processes.broadcast(_Command(_END))


def worker_loop(processes: Accelerated) -> None:
    """Carry out the main process's commands until it ends: the work of every other process."""
    trainable: TrainableModel | None = None
    learner: Any = None
    while True:
        command: _Command = processes.broadcast()
        if command.name == _END:
            return
        try:
            if command.name == _LOAD:
                trainable = _load(*command.arguments)
            elif command.name == _MAKE and trainable is not None:
                learner = Learner(trainable.model, command.arguments[0], processes)
            else:
                getattr(learner, command.name)(*command.arguments, **command.options)
        except _RANK_ERRORS as error:
            # if all ranks failed, the main process reports the error
            if _count_failures(processes, failed=True) < processes.world_size:
                print(f"gymcp: one of {processes.world_size} processes: {error}", file=sys.stderr, flush=True)
        else:
            _count_failures(processes, failed=False)


def load_on_all_ranks(recipe: Recipe, folder: Path, processes: Accelerated | None) -> TrainableModel:
    """`load_trainable` in all processes; the model of this one."""
    return _run_on_all_ranks(processes, _Command(_LOAD, (recipe, folder)), lambda: _load(recipe, folder))


def make_learner(trainable: TrainableModel, settings: LearnerSettings, processes: Accelerated | None) -> Learner:
    """A learner of the model. With several processes, all of them run each method that the main one calls."""
    command = _Command(_MAKE, (settings,))
    learner = _run_on_all_ranks(processes, command, lambda: Learner(trainable.model, settings, processes))
    return learner if processes is None else cast(Learner, _BroadcastingLearner(learner, processes))


def _load(recipe: Recipe, folder: Path) -> TrainableModel:
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled() or recipe.deterministic)
    return load_trainable(recipe.model, folder, recipe.seed)


class _BroadcastingLearner:
    """A learner whose methods are called in all processes."""

    def __init__(self, learner: Learner, processes: Accelerated) -> None:
        self._learner, self._processes = learner, processes

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            method = partial(getattr(self._learner, name), *arguments, **options)
            return _run_on_all_ranks(self._processes, _Command(name, arguments, options), method)

        return call


def _run_on_all_ranks(processes: Accelerated | None, command: _Command, work: Callable[[], T]) -> T:
    """Broadcast the command and do this process's `work`; its result.

    Raises what `work` raises, or ConfigError if only other processes failed.
    """
    if processes is None:
        return work()
    processes.broadcast(command)
    try:
        result = work()
    except _RANK_ERRORS:
        _count_failures(processes, failed=True)
        raise
    if failed := _count_failures(processes, failed=False):
        raise ConfigError(
            f"training: {command.name}: {failed} of {processes.world_size} processes failed, and the main one did not;"
            " they said why. Do all of them see the same model and run folder?"
        )
    return result


def _count_failures(processes: Accelerated, *, failed: bool) -> int:
    """Number of processes in which the command failed. A collective: every process calls it after each command."""
    return int(processes.all_reduce_sum(torch.tensor([float(failed)])))
