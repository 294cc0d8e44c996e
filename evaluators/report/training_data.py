"""Training runs that differ by seed only, and the spread of their held-out success."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gymcp.evaluators.report.run_data import Evidence
from gymcp.evaluators.training_curves import read_held_out


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeGroup:
    """Training runs whose recipes differ in nothing but seed and name."""

    name: str
    runs: tuple[Evidence, ...]


def group_by_recipe(runs: Sequence[Evidence]) -> tuple[RecipeGroup, ...]:
    """The runs by recipe, in the order given; a group is named by its recipe, or by its runs if names repeat."""
    groups: dict[str, list[Evidence]] = {}
    for each in runs:
        rest = {key: value for key, value in (each.recipe or {}).items() if key not in ("seed", "name")}
        groups.setdefault(json.dumps([each.run.config.get("env"), rest], sort_keys=True), []).append(each)
    names = [str((of_group[0].recipe or {}).get("name", of_group[0].name)) for of_group in groups.values()]
    return tuple(
        RecipeGroup(
            name=name if names.count(name) == 1 else ", ".join(each.name for each in of_group), runs=tuple(of_group)
        )
        for name, of_group in zip(names, groups.values(), strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Held-out success of a recipe's runs after one iteration."""

    iteration: int
    mean: float
    low: float
    """Lowest of the runs."""
    high: float
    seeds: int


def spread_of(group: RecipeGroup, split: str) -> tuple[Spread, ...]:
    """Mean and range over the runs of a group, for each iteration that every run with this split has evaluated."""
    of_runs = [
        {each.iteration: each.success for each in held.evaluations}
        for run in group.runs
        for held in read_held_out(run.curves, run.heldout)
        if held.split == split
    ]
    return spread_over(of_runs)


def spread_over(lines: Sequence[Mapping[int, float]]) -> tuple[Spread, ...]:
    """Mean and range over lines, iteration -> success each, for each iteration that all of them have."""
    shared = set.intersection(*map(set, lines)) if lines else set()
    spreads = []
    for iteration in sorted(shared):
        values = [line[iteration] for line in lines]
        mean = math.fsum(values) / len(values)
        spreads.append(Spread(iteration=iteration, mean=mean, low=min(values), high=max(values), seeds=len(values)))
    return tuple(spreads)
