"""The choice of the forward pass: C++, plain torch, or the modules of transformers, which compute every model."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from gymcp.agents.policies.engine.cpp_forward import CppForward, CppLibrary
from gymcp.agents.policies.engine.cpp_library import FORWARD_PASSES, FORWARD_VARIABLE, find_library, plan_build
from gymcp.agents.policies.engine.llama_model import find_obstacle, read_sizes, read_weights
from gymcp.agents.policies.engine.model import SlotModel, check_exact
from gymcp.agents.policies.engine.sampler import Drawn
from gymcp.agents.policies.engine.torch_forward import TorchForward
from gymcp.agents.policies.local_model import SMALL_MODEL_BYTES
from gymcp.errors import ConfigError
from gymcp.types import Sampling

log = logging.getLogger(__name__)


class SlotForward(Protocol):
    """Computes chunks of tokens over keys and values held in slots."""

    name: str
    max_context: int
    ragged: bool
    """True if chunks of different lengths cost no more than their tokens."""
    batch_invariant: bool
    """True if results are the same to the last bit whatever else is computed in the same call."""

    def forward(
        self, slots: Sequence[int], starts: Sequence[int], chunks: Sequence[Sequence[int]], *, window: bool
    ) -> Tensor:
        """Chunks of tokens, one per slot, at positions from `start` on -> logits [B, V] after the last of each chunk.

        `window` allows reading contiguous slots in place, without a copy.
        """
        ...

    def draw(self, logits: Tensor, rules: Sequence[Sampling], uniforms: Sequence[float]) -> Drawn:
        """Sample one token per row; equal to `sampler.draw` up to rounding."""
        ...

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the keys and values of the first `tokens` of one slot into another."""
        ...

    def reload(self) -> None:
        """Use the model's weights as they are at the next forward pass."""
        ...

    def close(self) -> None:
        """Release the keys and values."""
        ...


def open_forward(model: Any, slots: int, max_context: int, name: str = "") -> SlotForward:
    """The forward pass of this name, checked against the model's own; empty: the fastest that computes the model.

    If a faster one cannot be used, its reason is logged once. Raises ConfigError if the named one cannot be used, or
    none can.
    """
    name = name or os.environ.get(FORWARD_VARIABLE, "")
    if name not in ("", *FORWARD_PASSES):
        raise ConfigError(f"{FORWARD_VARIABLE}: no forward pass {name!r}; have {', '.join(FORWARD_PASSES)}")
    if name:
        return _open_checked(name, model, slots, max_context)
    for candidate in _choose_candidates(model):
        try:
            return _open_checked(candidate, model, slots, max_context)
        except ConfigError as error:
            _warn_once(f"{error}; the next slower one is used")
    return _open_checked("transformers", model, slots, max_context)


def _choose_candidates(model: Any) -> Sequence[str]:
    """The forward passes to try before that of transformers."""
    parameters = list(model.parameters())
    if any(parameter.device.type != "cpu" for parameter in parameters):
        return ()
    if sum(parameter.nbytes for parameter in parameters) >= SMALL_MODEL_BYTES:
        return ()  # nearly all time is in matrix products, which torch computes with several threads
    if obstacle := find_obstacle(model):
        _warn_once(f"embedded engine: the forward pass is that of transformers, the slowest: {obstacle}")
        return ()
    return FORWARD_PASSES[:2]


def _open_checked(name: str, model: Any, slots: int, max_context: int) -> SlotForward:
    make = _find_maker(name, model, max_context)
    check_exact(model, max_context, make(2))
    return make(slots)


def _find_maker(name: str, model: Any, max_context: int) -> Callable[[int], SlotForward]:
    """A function from the number of slots to the forward pass. Raises ConfigError if it cannot be used."""
    if name == "transformers":
        return lambda slots: SlotModel(model, slots, max_context)
    who = f"embedded engine: forward pass {name!r}"
    if obstacle := find_obstacle(model):
        raise ConfigError(f"{who} does not compute this model: {obstacle}")
    sizes = read_sizes(model)
    read = functools.partial(read_weights, model)
    if name == "torch":
        return lambda slots: TorchForward(read, sizes, slots, max_context)
    built = find_library(plan_build())
    if built.path is None:
        raise ConfigError(f"{who} cannot be used: {built.detail}")
    try:
        library = CppLibrary(built.path)
    except (OSError, AttributeError) as error:
        raise ConfigError(f"{who} cannot be loaded: {error}; remove {built.path}") from error
    return lambda slots: CppForward(library, read, sizes, slots, max_context)


@functools.cache
def _warn_once(line: str) -> None:
    log.warning("%s", line)
