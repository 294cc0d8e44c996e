"""Formulas of `benchmarks/search.py` against every outcome of a policy that errs, counted out."""

from __future__ import annotations

import itertools
import math

import search


def test_the_formula_of_agreement_counts_all_outcomes() -> None:
    right = search.RIGHT**search.KEYS
    for tries in (1, 2, 3, 5):
        total = 0.0
        for outcome in itertools.product((True, False), repeat=tries):
            chosen = sum(outcome) >= 2 or (sum(outcome) == 1 and outcome[0])
            total += chosen * math.prod(right if each else 1 - right for each in outcome)
        assert math.isclose(search.best_by_agreement(tries), total)


def test_the_formulas_of_one_way_are_those_of_one_try() -> None:
    one = search.RIGHT**search.KEYS
    assert math.isclose(search.depth_first(1)[0], one)
    assert math.isclose(search.look_ahead(1), one)
    assert math.isclose(search.best_by_verdict(1), one)
    # the calls of one try: it goes on as long as its keys are right
    assert math.isclose(search.depth_first(1)[1], sum(search.RIGHT**number for number in range(search.KEYS)))
    # two ways with one key left: 1 - (1 - q)^2, in 1 + (1 - q) calls
    assert math.isclose(search.depth_first(2, 1)[0], 1 - search.ERROR**2)
    assert math.isclose(search.depth_first(2, 1)[1], 1 + search.ERROR)


def test_the_rival_at_equal_calls_has_the_tries_that_they_pay_for_and_the_value_of_the_search() -> None:
    assert search.name_rival("lookahead,width=2", 4.7, 1.2) == "best_of_n,width=4,value=agreement"
    assert search.name_rival("lookahead,width=3,value=verdict", 26.0, 4) == "best_of_n,width=6,value=verdict"
    assert search.name_rival("dfsdt,width=3", 5.6, 4) == "best_of_n,width=1,value=clean"
    assert search.name_rival("dfsdt", 1.0, 4) == "best_of_n,width=1,value=clean"


def test_the_formula_of_a_beam_counts_all_outcomes() -> None:
    """The head sees which ways are right, so a path stays right if one of them is."""
    assert math.isclose(search.beam_by_steps(1), search.RIGHT**search.KEYS)
    for ways in (2, 3):
        total = 0.0
        for outcome in itertools.product((True, False), repeat=ways * search.KEYS):
            steps = [outcome[at : at + ways] for at in range(0, len(outcome), ways)]
            total += all(map(any, steps)) * math.prod(search.RIGHT if each else search.ERROR for each in outcome)
        assert math.isclose(search.beam_by_steps(ways), total)
