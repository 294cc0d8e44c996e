"""A table of methods: on how many seeds each is measured, what its paper claims, and which differences are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from scipy import stats

from comparisons.figures import FIGURES
from comparisons.packaging import ENDED
from comparisons.registration import Arm, Registration
from comparisons.results import RunResult, read_results
from comparisons.runs import Bench, Job, plan_rest
from comparisons.tuning import score_tuning
from comparisons.verdicts import Estimate, Results, estimate_gain
from gymcp.evaluators.statistics.paired import holm
from gymcp.trainers.run.run_state import FINISHED

Answer = Literal["shows", "does not show", "the opposite shows", "not measured yet", ""]
MAX_P = 0.05
"""Largest corrected p-value at which one method is ranked above another."""
COLLAPSED = 0.5
"""Share of the success before practice; a run that ends below it has collapsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedPair:
    """Two methods whose difference chance alone does not explain."""

    better: Arm
    worse: Arm
    gain: Estimate
    p: float
    """P-value of Student's paired test over seeds, corrected for all pairs of the ground."""


def find_tables(registrations: Sequence[Registration]) -> list[Registration]:
    """The registrations that are grounds of the table of methods."""
    return [each for each in registrations if any(arm.paper is not None for arm in each.arms)]


def choose_seeds(registration: Registration, results: Results, arm: Arm) -> tuple[int, ...]:
    """Seeds on which the arm is measured: the first ones, and all if on these it is near the best of those measured."""
    first = registration.seeds[: registration.shown_seeds]
    scores = {
        each.name: sum(known) / len(known)
        for each in registration.arms
        if len(known := _score_runs(registration, results, each, first)) == len(first)
    }
    is_near = arm.name in scores and scores[arm.name] >= max(scores.values()) - registration.near_best - 1e-9
    return registration.seeds if is_near else first


def _score_runs(registration: Registration, results: Results, arm: Arm, seeds: Sequence[int]) -> list[float]:
    runs = [results[arm.name, seed] for seed in seeds if (arm.name, seed) in results]
    scores = [score_tuning(registration, run) for run in runs if run.state_in(registration) in ENDED]
    return [score for score in scores if score is not None]


def plan_methods(bench: Bench, rates: Mapping[str, float], arms: Sequence[Arm]) -> list[Job]:
    """The jobs of these arms on the seeds that they are measured on, as far as the results so far decide that."""
    registration = bench.registration
    results = read_results(registration, bench.results)
    seeds = {arm.name: choose_seeds(registration, results, arm) for arm in arms}
    return [job for job in plan_rest(bench, rates, arms) if job.seed in seeds[job.arm.name]]


def select_ended(registration: Registration, results: Results) -> Results:
    """The results of runs that came to an end, which alone are in the table's figures."""
    return {key: run for key, run in results.items() if run.state_in(registration) in ENDED}


def judge_paper(registration: Registration, results: Results, arm: Arm) -> tuple[Answer, Estimate | None]:
    """An answer to the arm's paper, and the difference that it rests on; no answer if the paper claims none.

    The claim shows if the 95 % interval over at least `shown_seeds` paired seeds lies on the claimed side of 0.
    """
    if arm.paper is None:
        return "", None
    ended = select_ended(registration, results)
    gain = estimate_gain(registration, ended, arm, arm.paper.figure, arm.paper.over)
    if gain is None or gain.seeds < registration.shown_seeds or gain.ci95 is None:
        return "not measured yet", gain
    if arm.paper.direction == "none":
        return "", gain
    low, high = gain.ci95.low, gain.ci95.high
    is_higher = arm.paper.direction == "higher"
    if (low > 0) if is_higher else (high < 0):
        return "shows", gain
    return ("the opposite shows" if ((high < 0) if is_higher else (low > 0)) else "does not show"), gain


def rank_pairs(registration: Registration, results: Results, figure: str = "success") -> list[RankedPair]:
    """The pairs of measured arms of which one is better, the largest difference first.

    As ``gymcp compare`` ranks runs: the p-value is corrected for all pairs, and the 95 % interval excludes 0.
    """
    ended, found = select_ended(registration, results), {}
    for one, other in combinations(registration.arms, 2):
        gain = estimate_gain(registration, ended, one, figure, other.name)
        if gain is not None and gain.seeds >= registration.shown_seeds and gain.ci95 is not None and gain.sd:
            found[one.name, other.name] = gain
    corrected = holm({pair: _p_value(gain) for pair, gain in found.items()})
    pairs = []
    for (one_name, other_name), gain in found.items():
        assert gain.ci95 is not None
        p = corrected[one_name, other_name]
        if p < MAX_P and (gain.ci95.low > 0 or gain.ci95.high < 0):
            names = (one_name, other_name) if gain.mean > 0 else (other_name, one_name)
            better, worse = (registration.arm(name) for name in names)
            turned = estimate_gain(registration, ended, better, figure, worse.name)
            assert turned is not None
            pairs.append(RankedPair(better=better, worse=worse, gain=turned, p=p))
    return sorted(pairs, key=lambda pair: -pair.gain.mean)


def _p_value(gain: Estimate) -> float:
    assert gain.sd is not None
    return float(2 * stats.t.sf(abs(gain.mean) / (gain.sd / gain.seeds**0.5), gain.seeds - 1))


def has_collapsed(run: RunResult) -> bool:
    """True if training stopped before its last iteration, or success fell below half of what it was before."""
    before, after = (FIGURES[name].of(run.rows) for name in ("start", "success"))
    fell = before is not None and after is not None and after < COLLAPSED * before
    return fell or run.reason not in ("", FINISHED)
