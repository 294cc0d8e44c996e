"""POAD: a backup of values within an action, token by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from vectors import VECTORS, near

from gymcp.trainers.credit.assign import assign_credit
from gymcp.trainers.credit.presets import make_preset
from gymcp.trainers.credit.returns import gae
from gymcp.trainers.credit.signals.token_backup import backup_tokens
from gymcp.trainers.credit.step_batch import batch_of_columns
from gymcp.trainers.recipe.build_preset import build_preset
from gymcp.trainers.recipe.load import make_recipe


def test_poad_backs_values_up_without_discount_within_an_action() -> None:
    """Two actions of two tokens and of one; values .5, .6, .4; the reward is 1 at the end; gamma .9, lam .5.

    d: .6 - .5 = .1; .9 * .4 - .6 = -.24; 1 - .4 = .6. Backwards: .6; -.24 + .9 * .5 * .6 = .03; .1 + .5 * .03 = .115.
    """
    counts, starts = np.array([2, 1]), np.array([0, 2])
    found = backup_tokens(np.array([0.0, 1.0]), np.array([0.5, 0.6, 0.4]), counts, starts, gamma=0.9, lam=0.5)
    assert found.tolist() == near([0.115, 0.03, 0.6])


def test_a_backup_without_discount_is_gae_over_all_tokens() -> None:
    """The tokens of tool output are no tokens of an action, so a trajectory of two actions has the vector's four."""
    vector = VECTORS["gae_tokens_skip_obs"]
    inputs = vector["inputs"]
    drawn_tokens = np.array(inputs["mask"][0]) == 1
    values = np.array(inputs["values"][0])[drawn_tokens]
    one = backup_tokens(np.array([1.0]), values, np.array([4]), np.array([0, 1]), gamma=1.0, lam=inputs["lam"])
    two = backup_tokens(np.array([0.0, 1.0]), values, np.array([2, 2]), np.array([0, 2]), gamma=1.0, lam=inputs["lam"])
    reward = np.array([0.0, 0.0, 0.0, 1.0])
    assert one.tolist() == two.tolist()
    assert one.tolist() == near(gae(reward, values, np.array([0, 4]), gamma=1.0, lam=inputs["lam"]).tolist())
    every = backup_tokens(reward, values, np.array([1] * 4), np.array([0, 4]), gamma=inputs["gamma"], lam=inputs["lam"])
    assert every.tolist() == near(np.array(vector["adv_unwhitened"][0])[drawn_tokens].tolist())


def test_an_action_has_the_same_return_however_many_tokens_it_takes() -> None:
    """With lam 1, what a first token gets is the discounted return less its value."""
    for counts in ([1, 1], [5, 1], [2, 7]):
        values = np.full(sum(counts), 0.25)
        rewards, starts = np.array([0.0, 1.0]), np.array([0, 2])
        found = backup_tokens(rewards, values, np.array(counts), starts, gamma=0.5, lam=1.0)
        assert found[0] == pytest.approx(0.5 - 0.25)


def test_episodes_and_steps_without_tokens_do_not_mix() -> None:
    """The first episode ends in a step without tokens, whose reward no token can get."""
    values, counts, starts = np.array([0.5, 0.1, 0.2]), np.array([1, 0, 2]), np.array([0, 2, 3])
    found = backup_tokens(np.array([0.25, 1.0, 0.5]), values, counts, starts, gamma=1.0, lam=1.0)
    assert found.tolist() == near([-0.25, 0.4, 0.3])


def test_poad_gives_every_token_its_own_advantage() -> None:
    batch = batch_of_columns([[0.0, 1.0], [0.0]], "gg").with_tokens(
        np.array([2, 1, 3]), token_value=np.array([0.5, 0.6, 0.4, 0.1, 0.2, 0.3])
    )
    preset = make_preset("poad", gamma=0.9, lam=0.5)
    credit = assign_credit(batch.with_columns(token_value=np.array([0.5, 0.4, 0.1])), preset)
    raw = np.array([0.115, 0.03, 0.6, 0.1 + 0.5 * (0.1 + 0.5 * -0.3), 0.1 + 0.5 * -0.3, -0.3])
    whitened = (raw - raw.mean()) / np.sqrt(raw.var(ddof=1) + 1e-8)
    (term,) = credit.terms
    assert term.token_advantage is not None
    assert term.token_advantage.tolist() == near(whitened.tolist())
    assert [own.tolist() for own in term.split_tokens(credit.batch)] == [
        near(list(own)) for own in np.split(whitened, [2, 3])
    ]
    assert term.advantage.tolist() == near([whitened[:2].mean(), whitened[2], whitened[3:].mean()])
    kept = credit.batch.keep(np.array([False, True]))
    assert kept.token_columns["token_value"].tolist() == [0.1, 0.2, 0.3]


def test_rules_of_a_recipe_reach_single_tokens() -> None:
    """A factor on negative advantages is of each token; the charge of a step is taken off each of its tokens."""
    batch = batch_of_columns([[0.0, 1.0]], "g", token_value=[[0.5, 0.5]], cost_calls=[[1.0, 0.0]]).with_tokens(
        np.array([2, 1]), token_value=np.array([0.5, 0.75, 0.5])
    )
    table: dict[str, Any] = {"env": "backoffice", "credit": {"preset": "poad", "gamma": 1.0, "lam": 0.0}}
    found = {}
    for name, rules in (
        ("plain", {}),
        ("scaled", {"learn": {"negative_scale": 0.5}}),
        ("charged", {"reward": {"calls": 0.5}}),
    ):
        (term,) = assign_credit(batch, build_preset(make_recipe({**table, **rules}))).terms
        assert term.token_advantage is not None
        found[name] = term.token_advantage
    plain = found["plain"]
    assert plain[1] < 0 < plain[2]
    assert found["scaled"].tolist() == near([own if own > 0 else 0.5 * own for own in plain.tolist()])
    assert found["charged"].tolist() == near([plain[0] - 0.5, plain[1] - 0.5, plain[2]])
