"""The simulated practice that the rule of predictions is compared with: its world, its policy, its gradient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from predicted_practice import NOTHING, RIGHT, ROOMS, SPOIL, TOOLS, WORLDS, Tables, find_gradient, make_tables, play

ROUNDS = WORLDS[0]


def sure(tables: Tables, effect: int) -> Tables:
    """The tables with a policy that always takes the first tool with this effect, and the way back from side rooms."""
    at_parcels = np.argmax(tables.effects == effect, axis=1)
    chosen = np.concatenate((at_parcels, tables.way_back))
    return replace(tables, logits=np.where(np.arange(TOOLS) == chosen[:, None], 50.0, 0.0))


@pytest.mark.parametrize(("effect", "success", "steps"), [(RIGHT, 1.0, 12), (NOTHING, 0.0, 30), (SPOIL, 0.0, 30)])
def test_a_policy_that_is_sure_plays_as_its_tool_does(effect: int, success: float, steps: int) -> None:
    tables = sure(make_tables(ROUNDS, 1), effect)
    played = play(ROUNDS, tables, tables.logits, 4, 2, np.random.default_rng(0))
    assert played.success == success
    assert np.diff(played.batch.starts).tolist() == [steps] * 8


def test_every_name_has_the_effects_of_its_world_and_the_start_knows_a_share_of_them() -> None:
    tables = make_tables(ROUNDS, 3)
    assert {tuple(sorted(row)) for row in tables.effects.tolist()} == {tuple(sorted(ROUNDS.effects))}
    right = np.exp(tables.logits[: ROUNDS.names])[tables.effects == RIGHT]
    assert set(np.round(right, 6)) == {0.95, 0.4}
    assert np.mean(right > 0.9) == pytest.approx(ROUNDS.known, abs=0.1)
    assert tables.logits.shape == (ROUNDS.names + ROOMS, TOOLS)


def test_the_gradient_is_that_of_the_log_probability() -> None:
    tables = make_tables(ROUNDS, 1)
    played = play(ROUNDS, tables, tables.logits, 2, 2, np.random.default_rng(0))
    factors = np.random.default_rng(1).normal(size=len(played.tools))

    def objective(logits: np.ndarray) -> float:
        chances = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return float((factors * chances[played.rows, played.tools]).sum())

    gradient = find_gradient(tables.logits, played, factors)
    row, tool = int(played.rows[0]), int(played.tools[0])
    nudge = np.zeros_like(tables.logits)
    nudge[row, tool] = 1e-5
    slope = (objective(tables.logits + nudge) - objective(tables.logits - nudge)) / 2e-5
    assert gradient[row, tool] == pytest.approx(slope, abs=1e-6)
