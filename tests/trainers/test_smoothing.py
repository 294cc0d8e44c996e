"""EPO: smoothing of the entropy, against the vector and hand computation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from vectors import VECTORS, near

from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.signals.smoothing import (
    ENTROPY_WEIGHT,
    EntropySmoothing,
    phase_weight,
)
from gymcp.trainers.credit.step_batch import batch_of_columns


def hinge_penalty(entropy: float, mean: float, *, low: float, high: float) -> float:
    """Distance (nats) of the entropy from the band between `low` and `high` times the mean; 0 inside."""
    return max(low * mean - entropy, entropy - high * mean, 0.0)


def test_epo_penalty_hinge_and_phases() -> None:
    vector = VECTORS["epo_penalty"]
    low, high = vector["params"]["kappa_l"], vector["params"]["kappa_r"]
    rule = EntropySmoothing(low=low, high=high, weight=1.0)
    for row in vector["table"]:
        assert row["P"] in (0.0, vector["params"]["alpha"]), "a constant on each side, so without a gradient"
        known = Trackers(turn_entropy={"0": (row["avg"], 1)})
        assert smooth(replace(rule, hinge=False), [[row["H"]]], known)[0] == [1.0]
    for row in vector["hinge_alternative"]:
        assert hinge_penalty(row["H"], row["avg"], low=low, high=high) == near(row["P_hinge"])
        known = Trackers(turn_entropy={"0": (row["avg"], 1)})
        assert smooth(rule, [[row["H"]]], known)[0] == [0.0 if row["P_hinge"] else 1.0]
    for done, weight in vector["phase_weight_by_epoch_fraction"].items():
        assert phase_weight(float(done)) == near(weight)


def smooth(rule: EntropySmoothing, entropy: list[list[float]], trackers: Trackers) -> tuple[list[float], Trackers]:
    batch = batch_of_columns([[0.0] * len(row) for row in entropy], ["g"] * len(entropy), entropy=entropy)
    shaped, after = rule(batch, trackers)
    return shaped.column(ENTROPY_WEIGHT).tolist(), after


def test_smoothing_is_the_gradient_of_the_penalised_entropy() -> None:
    """The history of index 0 is 1 nat, of index 1 it is 2 nats; index 2 has none."""
    rule = EntropySmoothing(low=0.8, high=1.2, weight=2.0)
    first, after = smooth(rule, [[1.0, 3.0], [1.0, 1.0]], Trackers())
    assert first == [1.0] * 4
    assert after.turn_entropy == {"0": (2.0, 2), "1": (4.0, 2)}
    entropies = [0.5, 1.9, 5.0]
    second, later = smooth(rule, [entropies], after)
    assert second == [3.0, 1.0, 1.0]
    assert smooth(rule, [[1.5, 2.5]], after)[0] == [-1.0, -1.0]
    assert later.turn_entropy == {"0": (2.5, 3), "1": (5.9, 3), "2": (5.0, 1)}
    for entropy, mean, factor in ((0.5, 1.0, 3.0), (1.0, 1.0, 1.0), (1.5, 1.0, -1.0)):

        def keep(at: float, mean: float = mean) -> float:
            return at - rule.weight * hinge_penalty(at, mean, low=rule.low, high=rule.high)

        assert (keep(entropy + 1e-6) - keep(entropy - 1e-6)) / 2e-6 == pytest.approx(factor)


def test_the_published_penalty_leaves_the_plain_bonus_which_fades_with_the_run() -> None:
    rule, trackers = EntropySmoothing(hinge=False, iterations=4), Trackers()
    found = []
    for entropy in (1.0, 5.0, 0.1, 9.0, 9.0):
        (weight,), trackers = smooth(rule, [[entropy]], trackers)
        found.append(weight)
    assert found == near(
        [VECTORS["epo_penalty"]["phase_weight_by_epoch_fraction"][str(at)] for at in (0, 0.25, 0.5, 0.75, 1.0)]
    )
