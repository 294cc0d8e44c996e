"""Strategies for episodes, their records, and the credit that a preset gives to them or to an example."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from length import IS_FULL

from gymcp.trainers.credit.assign import assign_credit, spread_advantage
from gymcp.trainers.credit.presets import PRESETS, make_preset
from gymcp.trainers.credit.signals.registry import SIGNALS
from gymcp.trainers.credit.step_batch import StepBatch, batch_of, batch_of_columns
from gymcp.types import Action, GoldTurn, Observation, Step, Task, ToolCall, ToolResult, Trajectory

Rows = list[list[float]]
FURTHER = ("gold_logprob_after", "option_low", "option_high", "option_end")
"""Further columns of signals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """An episode as hypothesis draws it."""

    group: int
    score: float
    steps: Sequence[tuple[int, int, int]]
    """Number of calls, number of the state, and number of tokens of each step."""


episode = st.builds(
    Drawn,
    group=st.integers(0, 2),
    score=st.sampled_from([0.0, 0.5, 1.0]),
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=5),
)
episodes = st.lists(episode, min_size=1, max_size=8)
try_examples = settings(max_examples=50 if IS_FULL else 20, deadline=None)

MADE = (("find", {"q": 1}), ("buy", {"n": 2}), ("sell", {"n": 2}))
CALLS = tuple(ToolCall(id=str(n), name=name, arguments=arguments) for n, (name, arguments) in enumerate(MADE))
GOLD = {
    str(group): Task(id=str(group), prompts=("",), gold=(GoldTurn(calls=CALLS[:2], final_text="done"),))
    for group in range(8)
}
NEEDED: dict[str, dict[str, Any]] = {"gdpo": {"components": ["right", "half"]}}
UNDISCOUNTED: dict[str, dict[str, Any]] = {
    **{name: {"gamma": 1.0} for name in ("gigpo", "eapo", "rebn", "hgpo", "g2po", "gagpo")},
    "ppo": {"lam": 1.0},
    "poad": {"gamma": 1.0, "lam": 1.0},
}


def record_batch(drawn: Sequence[Drawn], padded: int = 0) -> StepBatch:
    """Batch of the recorded episodes, with the columns that only a model computes; `padded` empty steps follow each."""
    batch = batch_of([record_episode(each, padded) for each in drawn], GOLD)
    reward = np.zeros_like(batch.column("reward"))
    reward[batch.starts[1:] - 1 - padded] = [each.score for each in drawn]
    steps = [step for each in drawn for step in (*each.steps, *[(0, 0, 0)] * padded)]
    calls, _, tokens = np.array(steps, float).T
    likely = -0.1 * tokens - calls
    after = np.append(likely[1:], np.nan)
    for end in batch.starts[1:]:
        after[end - 1 - padded : end] = np.nan
    return batch.with_columns(
        reward=reward,
        tokens=tokens,
        entropy=calls + 0.1 * tokens,
        value=0.1 * calls,
        logprob=likely,
        gold_logprob=likely,
        gold_logprob_after=after,
        observation_gain=np.where(np.isnan(after), np.nan, 0.1 * tokens),
        critique=(calls > 1).astype(float),
        token_value=0.1 * calls,
        progress=0.05 * tokens,
        option_values=(calls > 1).astype(float),
        option_low=0.1 * calls,
        option_high=0.2 * calls,
        option_end=0.1 * calls,
    )


def signal_columns(rewards: Sequence[Sequence[float]]) -> dict[str, Rows]:
    """Every signal of the registry, 0 in each step."""
    return {name: [[0.0] * len(row) for row in rewards] for name in (*SIGNALS, *FURTHER)}


def record_episode(drawn: Drawn, padded: int) -> Trajectory:
    group, nothing = str(drawn.group), Observation(messages=(), tools=())
    steps = []
    for calls, state, _ in drawn.steps:
        own = tuple(replace(CALLS[(state + n) % len(CALLS)], id=str(n)) for n in range(calls))
        results = tuple(ToolResult(call_id=call.id, content="") for call in own)
        action = Action(text="" if own else "it is done", tool_calls=own)
        steps.append(Step(turn=0, observation=nothing, action=action, results=results, state_key=f"{group}-{state}"))
    empty = [Step(turn=0, observation=nothing, action=Action(text=""), state_key="empty")] * padded
    components = {"right": drawn.score, "half": 0.5 * drawn.score}
    whole = (*steps, *empty)
    return Trajectory(id="", env="shop", task=group, group=group, steps=whole, score=drawn.score, components=components)


def rows(batch: StepBatch, name: str, **options: Any) -> Rows:
    credit = assign_credit(batch, make_preset(name, **NEEDED.get(name, {}), **options))
    return [row.tolist() for row in np.split(spread_advantage(credit, batch), batch.starts[1:-1])]


def same(found: Rows, expected: Rows) -> bool:
    """Equal up to rounding; the smallest epsilon, 1e-9, amplifies it to 1e-7."""
    return all(a == pytest.approx(b, abs=1e-6) for a, b in zip(found, expected, strict=True))


def nothing(found: Rows, name: str) -> bool:
    """Exactly 0; for gdpo 0 up to rounding, since its whitening subtracts a mean that is 0 up to rounding."""
    return all(abs(value) <= (1e-12 if name == "gdpo" else 0.0) for row in found for value in row)


def again(drawn: Sequence[Drawn]) -> list[Drawn]:
    """The same episodes in groups of other names."""
    return [replace(each, group=each.group + 3) for each in drawn]


def but(exempt: Container[str]) -> list[str]:
    return [name for name in PRESETS if name not in exempt]


BY_HAND: dict[str, dict[str, Any]] = {
    **{name: {"gamma": 0.5} for name in ("gigpo", "eapo", "rebn", "hgpo", "g2po")},
    **{name: {"gamma": 0.5, "norm": "mean"} for name in ("graphgpo", "tigpo")},
    "ppo": {"lam": 0.5},
    "gagpo": {"gamma": 0.5, "lam": 0.5},
    "poad": {"gamma": 1.0, "lam": 0.5},
    "spa": {"lam": 0.5},
    "gdpo": {"components": ["right"]},
}
"""Options that make examples easy to follow by hand."""


def example(
    name: str, rewards: Rows, groups: str, anchors: Sequence[Sequence[str]] | None = None, **more: Rows
) -> Rows:
    """Credit of bare columns, with a discount of a half, and signals of 0, but for a progress head
    that knows the score."""
    none = [[0.0] * len(row) for row in rewards]
    columns = {**signal_columns(rewards), "progress": rewards, "matched": none, "right": rewards, **more}
    preset = make_preset(name, **BY_HAND.get(name, {}))
    if name == "matchtir":  # the column that its shaper would make of records is given
        preset = replace(preset, shapers=())
    batch = batch_of_columns(rewards, list(groups), anchors, **columns)
    return [row.tolist() for row in np.split(spread_advantage(assign_credit(batch, preset), batch), batch.starts[1:-1])]


def near(expected: Any) -> Any:
    return [pytest.approx(row, abs=5e-4) for row in expected]
