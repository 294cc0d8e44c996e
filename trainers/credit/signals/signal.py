"""Signals: columns of recorded steps that take more than the record, each with what it needs and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats
from gymcp.types import Action, Tool

Need = Literal["model", "gold"]
"""model: the weights in training compute it. gold: it compares with the solutions of the tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalCost:
    """Forward passes of the model beyond those of the update."""

    per_step: float = 0.0
    """Passes over the context of one step, for each step."""
    per_episode: float = 0.0
    """Passes over a whole episode, for each episode."""

    def count(self, *, steps: int, episodes: int) -> float:
        """Passes for a batch of that size."""
        return self.per_step * steps + self.per_episode * episodes

    def __str__(self) -> str:
        parts = [f"{number:g} a{unit}" for number, unit in ((self.per_step, " step"), (self.per_episode, "n episode"))]
        shown = [part for part in parts if not part.startswith("0 ")]
        return f"forward passes: {' and '.join(shown)}" if shown else "no forward pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """Tokens whose log-probabilities after a context are asked for."""

    context: tuple[int, ...]
    """At least one token."""
    ids: tuple[int, ...]
    """[K], at least one."""
    group: int
    """Continuations of one number may share the encoding of the beginning of their contexts."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SignalColumns:
    """Columns that a signal has computed."""

    steps: Mapping[str, Floats]
    """By name, each [S]; NaN for a step that has no value."""
    tokens: Mapping[str, Floats] = field(default_factory=dict)
    """By name, each [K]: one value for each drawn token, step after step."""


HeadPlaces = Literal["step end", "token"]
"""step end: at the last token of each step, [S]. token: before every drawn token, [K]."""


class SignalModel(Protocol):
    """The values that a model gives to recorded steps and to tokens. Signals ask for nothing else."""

    def logprobs(self, continuations: Sequence[Continuation]) -> list[Floats]:
        """[K] log-probabilities (nats) of the tokens of each continuation."""
        ...

    def drawn_logprobs(self, batch: StepBatch) -> list[Floats]:
        """[S] steps -> the log-probabilities (nats) of the tokens drawn in each."""
        ...

    def drawn_entropies(self, batch: StepBatch) -> list[Floats]:
        """[S] steps -> the entropies (nats) of the distributions that the tokens of each were drawn from."""
        ...

    def entropies(self, batch: StepBatch) -> Floats:
        """[S]: mean entropy (nats) of the distributions that the step's tokens were drawn from."""
        ...

    def values(self, batch: StepBatch) -> Floats:
        """[S]: the critic's prediction of the return."""
        ...

    def head_values(self, name: str, places: HeadPlaces) -> Floats:
        """The values that the head of this name gives to the hidden states at these places, step after step."""
        ...

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """[K] tokens -> the text of each."""
        ...

    def encode_answer(self, action: Action, tools: Sequence[Tool]) -> tuple[int, ...]:
        """The tokens that the model would have to draw for this action."""
        ...

    def encode_text(self, text: str) -> tuple[int, ...]:
        """The tokens of a text."""
        ...

    @property
    def markup_ids(self) -> frozenset[int]:
        """Tokens of the chat template's own: they open and end turns."""
        ...


class Signal(Protocol):
    """A column of a batch that is computed after the rollouts and before their credit."""

    @property
    def name(self) -> str:
        """Name in `Preset.needs`, and of its column; further columns of the signal begin with it."""
        ...

    @property
    def describes(self) -> str:
        """Meaning of the column, for explanations."""
        ...

    @property
    def needs(self) -> frozenset[Need]: ...

    @property
    def cost(self) -> SignalCost: ...

    def compute(self, batch: StepBatch, model: SignalModel | None) -> SignalColumns:
        """The signal's columns. `model` is there if the signal needs one.

        Raises ConfigError for a step or a task that lacks what the signal reads.
        """
        ...
