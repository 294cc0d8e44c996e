"""Batches of any number of steps, and each preset that gives them credit: a part of `training.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from tree_speed import measure_seconds

from gymcp.trainers.credit.assign import assign_credit
from gymcp.trainers.credit.presets import PRESETS, make_preset
from gymcp.trainers.credit.signals.registry import SIGNALS
from gymcp.trainers.credit.step_batch import StepBatch, codes

FURTHER = ("gold_logprob_after", "option_low", "option_high", "option_end")
"""Further columns of signals."""
SPREAD = 0x9E3779B97F4A7C15
"""Odd number that makes digests of numbers of states: different ones of different states."""
COMPONENTS = ("answer", "form")
OPTIONS: Mapping[str, Mapping[str, object]] = {
    name: {"components": COMPONENTS} if name == "gdpo" else {} for name in PRESETS if name != "matchtir"
}
"""Options of each preset. matchtir is left out: it compares calls with gold, episode by episode, in Python."""


def batch(steps: int, seed: int = 0) -> StepBatch:
    """A batch of episodes of 1 to 39 steps in groups of 8; half of the states recur, as 64-character digests."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 40, steps // 20)
    starts = np.concatenate(([0], np.cumsum(lengths)))
    total, episodes = int(starts[-1]), len(lengths)
    group = np.repeat(np.arange(episodes) // 8, lengths)
    reward = np.zeros(total)
    reward[starts[1:] - 1] = rng.integers(0, 2, episodes)
    keys = [f"{g:032x}{s:032x}" for g, s in zip(group.tolist(), rng.integers(0, 60, total).tolist(), strict=True)]
    return StepBatch(
        starts=starts,
        columns={
            "reward": reward,
            "valid": np.ones(total),
            "calls": rng.integers(0, 3, total).astype(float),
            "errors": np.zeros(total),
            "tokens": rng.integers(1, 60, total).astype(float),
            **{name: rng.random(total) for name in (*SIGNALS, *FURTHER)},
            **{name: reward * rng.random(total) for name in COMPONENTS},
        },
        keys={
            "group": group,
            "trajectory": np.repeat(np.arange(episodes), lengths),
            "state": codes(keys),
            "turn": np.arange(total) - np.repeat(starts[:-1], lengths),
        },
        tasks=tuple(f"env/{n // 8}" for n in range(episodes)),
    )


def seconds(name: str, steps: StepBatch, options: Mapping[str, object], rounds: int = 3) -> float:
    """Seconds of the fastest of some rounds; `before_after.py` calls it at other commits."""
    return measure_seconds(partial(assign_credit, steps, make_preset(name, **options)), rounds)


@dataclass(frozen=True, slots=True)
class VisitedState:
    state_key: str


@dataclass(frozen=True, slots=True)
class VisitedStates:
    """An episode of which nothing but its states is known."""

    steps: Sequence[VisitedState]


def add_sources(steps: StepBatch) -> StepBatch:
    """The batch with the state keys of its steps, which a preset with a memory writes down."""
    states = range(1, int(steps.keys["state"].max()) + 2)
    known = [VisitedState(f"{state * SPREAD % 2**64:016x}{0:048x}") for state in states]
    visited = [known[state] for state in steps.keys["state"].tolist()]
    episodes: Any = tuple(VisitedStates(visited[start:end]) for start, end in pairwise(steps.starts.tolist()))
    return replace(steps, sources=episodes)


def list_work(steps: StepBatch) -> Mapping[str, Callable[[], object]]:
    """The presets on the batch by name, each as something to call; tigpo also with the memory of an equal batch."""
    found = {name: partial(assign_credit, steps, make_preset(name, **chosen)) for name, chosen in OPTIONS.items()}
    tigpo, seen = make_preset("tigpo"), add_sources(steps)
    memory = assign_credit(seen, tigpo).trackers
    return {**found, "tigpo with a memory": partial(assign_credit, seen, tigpo, memory)}
