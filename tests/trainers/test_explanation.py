from __future__ import annotations

import math
import re

import pytest

from gymcp.trainers.credit.assign import advantages
from gymcp.trainers.credit.explanation import explain_preset, write_formula
from gymcp.trainers.credit.presets import PRESETS, make_preset

OPTIONS = {"gdpo": {"components": ("a", "b"), "weights": (1.0, 0.5)}}

REWARDS, STATES = [[0.0, 1.0], [0.0, 0.0]], [["s", "a"], ["s", "b"]]
NUMBERS = {
    "mean of the other R": 0.0,
    "mean R": 0.5,
    "std R": math.sqrt(0.5),
    "R(i)": 1.0,
}
"""Values of the symbols for the first episode of the example: its task has the scores 1 and 0."""


@pytest.mark.parametrize("preset", ["grpo", "dr_grpo", "rloo", "loop"])
def test_the_formula_computes_the_advantage(preset: str) -> None:
    made = make_preset(preset)
    (term,) = made.advantage_terms
    text = write_formula(term)
    for symbol, value in NUMBERS.items():
        text = text.replace(symbol, str(value))
    assert re.fullmatch(r"[-+*/(). 0-9e]+", text), text
    assert eval(text) == pytest.approx(advantages(made, REWARDS, ["g", "g"], STATES)[0][0])  # noqa: S307 - numbers only


@pytest.mark.parametrize(
    ("preset", "formulas"),
    [
        ("gigpo", ["(R(i) - mean R) / (std R + 1e-06)", "(G(i,t) - mean G) / (std G + 1e-06)"]),
        ("reinforce_pp", ["(G(i,t) - mean G) / sqrt(var G + 1e-08)"]),
        ("bnpo", ["(R(i) - mean R) / density(mean R)"]),
        ("ppo", ["E(i,t)"]),
        ("hdpo", [
            "(R[accuracy](i) - mean R[accuracy]) / (std R[accuracy] + 1e-06)",
            "(economy(i,t) - mean economy) / (std economy + 1e-06)",
        ]),
    ],
)  # fmt: skip
def test_the_formulas_of_a_preset(preset: str, formulas: list[str]) -> None:
    assert [write_formula(term) for term in make_preset(preset).advantage_terms] == formulas


def test_a_penalty_stands_in_the_formula() -> None:
    episode, step = make_preset("gigpo", norm="mean", invalid_penalty=0.1).advantage_terms
    assert write_formula(episode) == "R(i) - invalid(i,t) - mean R"
    assert write_formula(step) == "G(i,t) - invalid(i,t) - mean (G - invalid)"


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_explained_in_words(preset: str) -> None:
    made = make_preset(preset, **OPTIONS.get(preset, {}))
    text = "\n".join(explain_preset(made))
    assert "advantage of step t of episode i" in text
    assert "loss (" in text
    for shaper in made.shapers:
        assert type(shaper).__name__ in text
    assert ("example: " in text) == (preset != "matchtir")  # the shaper of matchtir reads calls of records


def test_the_correction_of_a_decoupled_loss_is_explained() -> None:
    assert any("times p_old / p_rollout, 0 above 5" in line for line in explain_preset(make_preset("decoupled_ppo")))


def test_the_example_is_what_the_preset_computes() -> None:
    preset = make_preset("gigpo", norm="mean", step_weight=1.0, gamma=1.0)
    assert explain_preset(preset)[-1].endswith("advantages [1, 0.5], [-1, -0.5, -0.5]")
