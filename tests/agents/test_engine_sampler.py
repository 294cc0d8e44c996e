"""Samples from distributions that can be worked out by hand, drawn in torch and in C++."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch

from gymcp.agents.policies.engine import sampler
from gymcp.agents.policies.engine.cpp_forward import draw_tokens
from gymcp.agents.policies.engine.sampler import Drawn, check_sampling
from gymcp.errors import ConfigError
from gymcp.types import Sampling

LOGITS = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.3]]))
PLAIN = Sampling()
Draw = Callable[[torch.Tensor, list[Sampling], list[float]], Drawn]


@pytest.fixture(params=["torch", "cpp"])
def draw(request: pytest.FixtureRequest) -> Draw:
    if request.param == "torch":
        return sampler.draw
    return functools.partial(draw_tokens, request.getfixturevalue("cpp_library"))


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.09, 0), (0.11, 1), (0.49, 1), (0.51, 2), (0.71, 3), (1.0, 3)]
)
def test_the_random_number_selects_the_token(draw: Draw, uniform: float, token: int) -> None:
    drawn = draw(LOGITS, [PLAIN], [uniform])
    assert drawn.ids == [token]
    assert drawn.logprobs == pytest.approx([math.log([0.1, 0.4, 0.2, 0.3][token])], abs=1e-6)


def test_frequencies_follow_the_distribution(draw: Draw) -> None:
    numbers = [(at + 0.5) / 1000 for at in range(1000)]
    ids = draw(LOGITS.expand(1000, 4), [PLAIN] * 1000, numbers).ids
    assert [ids.count(token) for token in range(4)] == pytest.approx([100, 400, 200, 300], abs=1)


def test_temperature_is_in_the_logprob(draw: Draw) -> None:
    squares = [0.01, 0.16, 0.04, 0.09]
    drawn = draw(LOGITS, [Sampling(temperature=0.5)], [0.5])
    assert drawn.ids == [1]
    assert drawn.logprobs == pytest.approx([math.log(squares[1] / sum(squares))], abs=1e-6)


def test_greedy_takes_the_likeliest_and_records_the_models_own_logprob(draw: Draw) -> None:
    drawn = draw(LOGITS.expand(2, 4), [Sampling(temperature=0.0), PLAIN], [0.99, 0.99])
    assert drawn.ids == [1, 3]
    assert drawn.logprobs == pytest.approx([math.log(0.4), math.log(0.3)], abs=1e-6)


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        (Sampling(top_k=1), {1}),
        (Sampling(top_k=2), {1, 3}),
        (Sampling(top_p=0.3), {1}),
        (Sampling(top_p=0.5), {1, 3}),
        (Sampling(top_p=0.85), {1, 2, 3}),
        (Sampling(top_k=2, top_p=0.5), {1}),  # the first of the two that are left has 4/7
        (Sampling(top_k=9), {0, 1, 2, 3}),
    ],
)
def test_top_k_then_top_p(draw: Draw, rule: Sampling, allowed: set[int]) -> None:
    """Logprobs stay those before the restriction; unrestricted rows of the same batch are not touched."""
    numbers = [(at + 0.5) / 200 for at in range(200)]
    drawn = draw(LOGITS.expand(400, 4), [rule] * 200 + [PLAIN] * 200, numbers * 2)
    assert set(drawn.ids[:200]) == allowed
    assert set(drawn.ids[200:]) == {0, 1, 2, 3}
    expected = [math.log([0.1, 0.4, 0.2, 0.3][token]) for token in drawn.ids]
    assert drawn.logprobs == pytest.approx(expected, abs=1e-6)


def test_a_token_without_probability_is_never_drawn(draw: Draw) -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    assert [draw(logits, [PLAIN], [number]).ids for number in (0.0, 1.0)] == [[1], [3]]


def test_nan_logits_give_a_nan_logprob(draw: Draw) -> None:
    assert math.isnan(draw(torch.full((1, 4), torch.nan), [PLAIN], [0.5]).logprobs[0])


@pytest.mark.parametrize(
    "wrong",
    [
        Sampling(max_tokens=0),
        Sampling(temperature=-0.1),
        Sampling(temperature=math.nan),
        Sampling(temperature=math.inf),
        Sampling(top_p=0.0),
        Sampling(top_p=1.1),
        Sampling(top_k=-1),
        Sampling(stop=("",)),
    ],
)
def test_parameters_out_of_range_are_refused(wrong: Sampling) -> None:
    with pytest.raises(ConfigError, match="sampling: "):
        check_sampling(wrong)
