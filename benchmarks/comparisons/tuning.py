"""Learning rates of the arms, chosen from runs on a seed that is not measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from comparisons.figures import FIGURES
from comparisons.registration import Arm, Registration
from comparisons.results import RunResult, read_result, tuning_path
from gymcp.errors import ConfigError
from gymcp.mcp_servers.digest import digest


def tuning_digest(registration: Registration, arm: Arm) -> str:
    """Digest of all that a tuning run depends on but its rate: a change of it makes the arm's tuning void."""
    return digest(
        {
            "recipe": registration.recipe_digest,
            "settings": dict(registration.settings),
            "seed": registration.tuning_seed,
            "arm": [dict(arm.credit), dict(arm.settings), arm.anchor],
        }
    )


def find_rate_arm(registration: Registration, arm: Arm) -> Arm:
    """The arm whose tuning gives this one its learning rate."""
    return registration.arm(arm.rate_of) if arm.rate_of else arm


def tuning_files(registration: Registration, arm: Arm, folder: Path) -> list[Path]:
    """Files of the tuning runs that decide on the arm's rate."""
    tuned = find_rate_arm(registration, arm)
    return [tuning_path(folder, tuned.name, rate) for rate in sorted(tuned.rates)]


def find_rate(registration: Registration, arm: Arm, folder: Path) -> float:
    """The arm's rate, from its tuning runs in `folder`. Raises ConfigError if they are missing or of another recipe."""
    tuned = find_rate_arm(registration, arm)
    who = f"registration '{registration.name}': arm '{tuned.name}'"
    scores = {}
    for rate in sorted(tuned.rates):
        path = tuning_path(folder, tuned.name, rate)
        result = read_result(path)
        if result is None:
            raise ConfigError(f"{who}: has not been tuned at rate {rate:g}: python benchmarks/credit.py --tune")
        if result.digest != tuning_digest(registration, tuned):
            raise ConfigError(f"{who}: {path} is the tuning of another recipe: python benchmarks/credit.py --tune")
        score = score_tuning(registration, result)
        if score is None:
            raise ConfigError(f"{who}: {path} has no result: python benchmarks/credit.py --tune --retry")
        scores[rate] = score
    return choose_rate(scores, who)


def score_tuning(registration: Registration, result: RunResult) -> float | None:
    """The weighted sum of figures by which a rate is chosen; None if one of them is missing."""
    values = [(weight, FIGURES[name].of(result.rows)) for name, weight in registration.tuned_by.items()]
    if not result.reason or any(value is None for _, value in values):
        return None
    return sum(weight * value for weight, value in values if value is not None)


def choose_rate(scores: Mapping[float, float], who: str) -> float:
    """The rate with the highest score, the lower one of two equals.

    Raises ConfigError if it is an end of the grid: a rate beyond it may be better.
    """
    rates = sorted(scores)
    best = max(rates, key=lambda rate: (scores[rate], -rate))
    if best in (rates[0], rates[-1]):
        side = "lower" if best == rates[0] else "higher"
        listed = ", ".join(f"{rate:g}: {scores[rate]:.3g}" for rate in rates)
        raise ConfigError(f"{who}: the best rate is an end of the grid ({listed}): add a {side} one, and tune again")
    return best
