"""Verdicts on registered claims, from the results of the runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import stdev
from typing import Literal

from comparisons.figures import FIGURES, success_after
from comparisons.registration import Arm, Claim, Registration
from comparisons.results import RunResult
from gymcp.evaluators.statistics import Interval, t_by_task

Verdict = Literal["met", "not met", "open"]
Results = Mapping[tuple[str, int], RunResult]
"""(arm, seed) -> result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Mean of a figure, or of a paired difference, over seeds."""

    seeds: int
    mean: float
    sd: float | None
    """Standard deviation over seeds; None with a single seed."""
    ci95: Interval | None
    """Student's interval over seeds; None with a single seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    claim: Claim
    found: Estimate | None
    """None: no seed has what the claim compares."""
    verdict: Verdict
    reason: str = ""
    """Why the claim is open, or cannot be met; empty: the figures say it."""


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean, deviation and interval of one value for each seed; None without a value."""
    if not values:
        return None
    return Estimate(
        seeds=len(values),
        mean=math.fsum(values) / len(values),
        sd=stdev(values) if len(values) > 1 else None,
        ci95=t_by_task({str(number): [value] for number, value in enumerate(values)}),
    )


def estimate_figure(registration: Registration, results: Results, arm: Arm, figure: str) -> Estimate | None:
    """The figure of an arm over its seeds. Its interval holds no value that the figure cannot have."""
    values = [_value(results, arm.name, seed, figure) for seed in registration.seeds_of(arm)]
    found = estimate([value for value in values if value is not None])
    if found is None or found.ci95 is None:
        return found
    low, high = max(found.ci95.low, 0.0), min(found.ci95.high, FIGURES[figure].most)
    return replace(found, ci95=replace(found.ci95, low=low, high=high))


def estimate_gain(
    registration: Registration, results: Results, arm: Arm, figure: str, over: str = ""
) -> Estimate | None:
    """The figure of an arm less that of arm `over` (empty: the baseline) of the same seed, over seeds."""
    claim = Claim(says="", arm=arm.name, over=over or registration.baseline, figure=figure)
    values = _differences(results, claim, registration.seeds_of(arm))
    return estimate([value for value in values.values() if value is not None])


def judge_claim(registration: Registration, results: Results, claim: Claim) -> Finding:
    """The claim on all registered seeds. It is open until every run has ended, and not met if one of them failed.

    A run that ended early counts with its last evaluation.
    """
    values = _differences(results, claim, registration.seeds)
    found = estimate([value for value in values.values() if value is not None])
    if reason := find_stop(registration, results):
        return Finding(claim=claim, found=found, verdict="not met", reason=reason)
    states = {
        f"{arm} {seed}": results[arm, seed].state_in(registration) if (arm, seed) in results else "not run"
        for seed in registration.seeds
        for arm in (claim.arm, claim.over)
        if arm
    }
    if failed := [name for name, state in states.items() if state == "failed"]:
        return Finding(claim=claim, found=found, verdict="not met", reason=f"failed: {', '.join(failed)}")
    if waiting := [name for name, state in states.items() if state in ("not run", "unfinished")]:
        return Finding(claim=claim, found=found, verdict="open", reason=f"not run yet: {', '.join(waiting)}")
    if lacking := [str(seed) for seed, value in values.items() if value is None]:
        reason = f"no {FIGURES[claim.figure].title}: seeds {', '.join(lacking)}"
        return Finding(claim=claim, found=found, verdict="not met", reason=reason)
    assert found is not None
    return Finding(claim=claim, found=found, verdict="met" if _holds(claim, found) else "not met")


def judge_all(findings: Sequence[Finding]) -> Verdict:
    """Verdict on a registration: met if all of its claims are, not met if one is not; open without a claim."""
    verdicts = {finding.verdict for finding in findings}
    return "not met" if "not met" in verdicts else "met" if verdicts == {"met"} else "open"


def find_stop(registration: Registration, results: Results) -> str:
    """Why nothing further is run; empty: the stop rule does not apply, or its runs are not all there yet."""
    rule = registration.stop
    if rule is None:
        return ""
    runs = [results.get((rule.arm, seed)) for seed in registration.seeds]
    after = [success_after(run.rows, rule.after) if run is not None else None for run in runs]
    values = [value for value in after if value is not None]
    if len(values) < len(after):
        return ""
    mean = math.fsum(values) / len(values)
    if rule.min_success <= mean <= rule.max_success:
        return ""
    return (
        f"stopped early: {rule.arm} at {mean:.1%} after {rule.after} iterations, outside of {rule.min_success:.0%} to"
        f" {rule.max_success:.0%}: this ground cannot tell the arms apart"
    )


def _value(results: Results, arm: str, seed: int, figure: str) -> float | None:
    result = results.get((arm, seed))
    return FIGURES[figure].of(result.rows) if result is not None else None


def _differences(results: Results, claim: Claim, seeds: Sequence[int]) -> dict[int, float | None]:
    """Seed -> value of the claim; None if a run of it lacks the figure."""
    found: dict[int, float | None] = {}
    for seed in seeds:
        mine = _value(results, claim.arm, seed, claim.figure)
        other = _value(results, claim.over, seed, claim.figure) if claim.over else 0.0
        found[seed] = mine - claim.times * other if mine is not None and other is not None else None
    return found


def _holds(claim: Claim, found: Estimate) -> bool:
    low, high = (found.ci95.low, found.ci95.high) if found.ci95 is not None else (-math.inf, math.inf)
    return (
        (claim.mean_min is None or found.mean >= claim.mean_min)
        and (claim.mean_max is None or found.mean <= claim.mean_max)
        and (claim.low_above is None or low > claim.low_above)
        and (claim.high_below is None or high < claim.high_below)
    )
