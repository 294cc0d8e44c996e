"""A small registered comparison and made-up results of it, for tests of benchmarks/comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from comparisons.registration import Registration, read_registration
from comparisons.results import RunResult

TEXT = """
recipe = "small"
title = "Small"
tuning_seed = 9
seeds = [1, 2, 3]
shown_seeds = 2
baseline = "grpo"
figures = ["start", "success", "needless"]
expected_start = [0.1, 0.2]
tuned_by = { success = 1.0 }
settings = { "evaluation.tasks" = 40 }
stop = { arm = "grpo", after = 8, min_success = 0.25, max_success = 0.75 }
[arms.grpo]
credit = { preset = "grpo" }
ranked = true
rates = [1e-3, 2e-3, 4e-3]
expected = { success = [0.6, 0.7] }
[arms.gigpo]
credit = { preset = "gigpo", step_weight = 3.0 }
ranked = true
rates = [1e-3, 2e-3, 4e-3]
[arms.world]
title = "gigpo, whole history"
credit = { preset = "gigpo" }
settings = { "learn.negative_scale" = 0.5 }
anchor = "world+history"
rate_of = "gigpo"
[[claims]]
says = "gigpo is 10 points over grpo"
arm = "gigpo"
over = "grpo"
figure = "success"
mean_min = 0.10
low_above = 0.0
expected = [0.12, 0.2]
power = { effect = 0.15, sd = 0.06 }
"""
RECIPE = 'env = "rounds"\n[rollout]\ngroups = 4\nepisodes = 2\n[learn]\niterations = 16\n'


def write_registration(folder: Path, text: str = TEXT, name: str = "small-1") -> Registration:
    """The registration of that text, which is written into the folder with its recipe."""
    path = folder / "registrations" / f"{name}.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    (folder / "small.toml").write_text(RECIPE)
    return read_registration(path, folder)


def make_result(
    registration: Registration,
    arm: str,
    seed: int,
    success: Sequence[float],
    *,
    reason: str = "finished",
    failures: tuple[str, ...] = (),
    needless: Sequence[float] = (),
) -> RunResult:
    """A result whose evaluations, after iterations 0, 8, 16, ..., had that success."""
    rows: list[dict[str, float]] = [
        {"iteration": 8 * number, "test/seeds/success": share, "seconds": 60.0} for number, share in enumerate(success)
    ]
    for row, looks in zip(rows, needless, strict=False):
        row["test/seeds/component_of_solved/needless_looks"] = looks
    return RunResult(
        registration=registration.name,
        digest=registration.digest,
        commit="",
        machine="two cores",
        arm=arm,
        seed=seed,
        rate=2e-3,
        done=max(8 * (len(success) - 1), 0),
        reason=reason,
        failures=failures,
        rows=tuple(rows),
    )


ENDS = {"grpo": {1: 0.50, 2: 0.60, 3: 0.70}, "gigpo": {1: 0.70, 2: 0.82, 3: 0.88}}
"""Arm -> seed -> success at the end: gigpo is 20, 22 and 18 points over grpo."""


def make_whole(registration: Registration) -> dict[tuple[str, int], RunResult]:
    """Results of all ranked runs, which end as in `ENDS`."""
    return {
        (arm, seed): make_result(registration, arm, seed, [0.15, end - 0.2, end])
        for arm, ends in ENDS.items()
        for seed, end in ends.items()
    }
