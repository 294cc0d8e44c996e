"""Batches of any number of steps, and the seconds that a preset takes to give them credit: a part of `training.py`."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from gymcp.trainers.credit.assign import assign_credit
from gymcp.trainers.credit.presets import PRESETS, make_preset
from gymcp.trainers.credit.signals.registry import SIGNALS
from gymcp.trainers.credit.step_batch import StepBatch, codes

FURTHER = ("gold_logprob_after", "option_low", "option_high", "option_end")
"""Further columns of signals."""
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
    """Seconds of the fastest of some rounds."""
    preset = make_preset(name, **options)
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        assign_credit(steps, preset)
        best = min(best, time.perf_counter() - started)
    return best
