"""Learning curves: the gain from step-level credit, with the same start, tasks and number of episodes.

Every run has a folder of its own under --out and resumes after a kill; a run that has ended is only read. Figures come
from the runs that have ended, and name the number of seeds.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from curve_figures import Curve, compare_pairs, curve_of, draw
from learning import Run, has_ended, read_rows, run_training, run_warm_start
from report_table import Result, options, show

from gymcp.envs.anchors import StateAnchor
from gymcp.trainers.recipe.load import load_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.types import Json

HERE = Path(__file__).parent
RECIPES = HERE / "curves"
PICTURES = HERE / "results"
METRICS = {"final": "success", "area": "success", "final_calls": "calls", "final_wasted": "calls"}
"""Figures of a curve, and their units."""
ANCHORS = ("singletons", "step_share")
"""Figures of the states in which steps are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    name: str
    credit: Mapping[str, Json]
    seeds: int = 1
    anchor: StateAnchor | None = None
    """Anchor of the run, or None for the environment's own, which is the world and the last observation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """One environment, and the presets that are compared in it."""

    name: str
    """Name of the ground, and of its recipe."""
    contenders: tuple[Contender, ...]


def _plain(name: str, seeds: int = 1) -> Contender:
    return Contender(name=name, credit={"preset": name}, seeds=seeds)


SEEDS = 5
GROUNDS = (
    Ground(
        name="textworld",
        contenders=(
            _plain("grpo", SEEDS),
            _plain("gigpo", SEEDS),
            _plain("loop"),
            _plain("matchtir"),
            Contender(name="gigpo, world alone", credit={"preset": "gigpo"}, anchor="world"),
            Contender(name="gigpo, whole history", credit={"preset": "gigpo"}, anchor="world+history"),
            Contender(name="gigpo, step index", credit={"preset": "gigpo", "anchor": ("group", "turn")}),
        ),
    ),
    Ground(name="thrift", contenders=(_plain("grpo"), _plain("otc"), _plain("hdpo"))),
    Ground(name="backoffice", contenders=(_plain("grpo"), _plain("gigpo"), _plain("loop"), _plain("matchtir"))),
)
"""Environments in which presets are compared; the first one is measured with paired seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    ground: str
    contender: Contender
    seed: int

    @property
    def run(self) -> str:
        return f"{self.contender.name.replace(', ', '-').replace(' ', '-')}-{self.seed}"


def places(quick: bool, grounds: Sequence[Ground] = GROUNDS) -> list[Place]:
    """The runs in their order: pairs first and together, so that an early end leaves whole pairs."""
    found = [
        Place(ground=ground.name, contender=contender, seed=seed)
        for seed in range(1 if quick else SEEDS)
        for ground in grounds
        for contender in ground.contenders
        if seed < contender.seeds and not (quick and contender not in ground.contenders[:2])
    ]
    return sorted(found, key=lambda place: place.contender.seeds == 1)


def recipe_of(ground: str, seed: int, quick: bool) -> Recipe:
    """The recipe of a ground before its warm start."""
    recipe = load_recipe(RECIPES / f"{ground}.toml", [("seed", seed)])
    if quick:
        recipe = replace(
            recipe,
            model=replace(recipe.model, hidden=32, layers=1, heads=2),
            warm_start=replace(recipe.warm_start, tasks=8, epochs=1),
            rollout=replace(recipe.rollout, groups=2, episodes=2),
            learn=replace(recipe.learn, iterations=2),
            evaluation=replace(recipe.evaluation, every=1, tasks=4),
        )
    return recipe


class ProgressPrinter:
    """Printer of a line for each iteration, with rates and time left."""

    def __init__(self, remaining: Sequence[Place], iterations: Mapping[str, int]) -> None:
        self._left = {(place.ground, place.run): iterations[place.ground] for place in remaining}
        self._started = time.perf_counter()
        self._done = 0
        self.now: Place | None = None

    def __call__(self, run: str, row: Mapping[str, Json]) -> None:
        if "iteration" not in row:
            if row.get("epoch") == row.get("of"):
                self._say(f"{run}: warm start of {row['examples']} examples, loss {row['loss']:.3f}")
            return
        if row["iteration"] and self.now is not None:
            self._done += 1
            self._left[self.now.ground, self.now.run] -= 1
        rate = (time.perf_counter() - self._started) / max(self._done, 1)
        test = row.get("test/seeds/success")
        held = f", held out {test:.2f}" if test is not None else ""
        practice = f", practised {row['success']:.2f}" if "success" in row else ""
        left = (
            f" · {rate:.0f} s an iteration, {sum(self._left.values()) * rate / 60:.0f} min left" if self._done else ""
        )
        self._say(f"{run} {row['iteration']}{practice}{held}{left}")

    def _say(self, text: str) -> None:
        ground = self.now.ground if self.now is not None else ""
        print(f"[{time.strftime('%H:%M:%S')}] {ground}: {text}", file=sys.stderr, flush=True)


def run_all(folder: Path, quick: bool, grounds: Sequence[Ground]) -> None:
    """Run the trainings that have not ended yet."""
    remaining = [place for place in places(quick, grounds) if not has_ended(folder / place.ground / place.run)]
    iterations = {name: recipe_of(name, 0, quick).learn.iterations for name in {p.ground for p in remaining}}
    tell = ProgressPrinter(remaining, iterations)
    for place in remaining:
        here = folder / place.ground
        tell.now = place
        recipe = replace(
            run_warm_start(recipe_of(place.ground, place.seed, quick), here, tell), credit=place.contender.credit
        )
        run_training(Run(name=place.run, recipe=recipe, anchor=place.contender.anchor), here, tell)


def curves(folder: Path, ground: Ground, quick: bool) -> dict[str, list[Curve]]:
    """By contender, a curve for each seed that has ended, in the order of the seeds."""
    found: dict[str, list[Curve]] = {}
    for place in places(quick, [ground]):
        here = folder / place.ground / place.run
        if has_ended(here):
            recipe = recipe_of(place.ground, place.seed, quick)
            episodes = recipe.rollout.groups * recipe.rollout.episodes
            found.setdefault(place.contender.name, []).append(curve_of(read_rows(here), episodes, seed=place.seed))
    return found


def results(ground: str, found: Mapping[str, Sequence[Curve]]) -> Iterator[Result]:
    """Figures of each contender at the end of its budget, and its gain over grpo with the same seeds."""
    theirs = {curve.seed: curve for curve in found.get("grpo", ())}
    for name, curves in found.items():
        what = f"{ground}: {name}, {len(curves)} seed{'s' * (len(curves) > 1)}"
        for metric, unit in METRICS.items():
            mean = float(np.mean([getattr(curve, metric) for curve in curves]))
            if math.isnan(mean):  # calls of solved episodes, where none was solved
                continue
            yield Result(metric=f"{what}: {metric}", value=mean, unit=unit)
            pairs = [
                (getattr(mine, metric), getattr(theirs[mine.seed], metric)) for mine in curves if mine.seed in theirs
            ]
            if name != "grpo" and pairs and not np.isnan(pairs).any():
                yield from gain_results(f"{what}: {metric} over grpo, {len(pairs)} paired", pairs, unit)
        for part in ANCHORS:
            mean = float(np.mean([getattr(curve, part) for curve in curves]))
            yield Result(metric=f"{what}: {part}", value=mean, unit="share")


def gain_results(what: str, pairs: Sequence[tuple[float, float]], unit: str) -> Iterator[Result]:
    """The mean difference of pairs against the mean of the baseline, and its interval, if there is one."""
    gain = compare_pairs(pairs)
    base = float(np.mean([theirs for _, theirs in pairs]))
    ratio = (base + gain.mean) / base if base else None
    yield Result(metric=what, value=gain.mean, unit=unit, baseline="grpo", baseline_value=base, ratio=ratio)
    if gain.low is not None and gain.high is not None:
        yield Result(metric=f"{what}, 95 % from", value=gain.low, unit=unit)
        yield Result(metric=f"{what}, 95 % to", value=gain.high, unit=unit)


def main() -> None:
    parser = options(__doc__, "one seed of two presets with a tiny model, only to see that it works")
    parser.add_argument("--out", type=Path, default=Path("runs/curves"), help="folder of the runs, which resume there")
    parser.add_argument(
        "--report", action="store_true", help="run nothing; show the figures of the runs that have ended"
    )
    parser.add_argument("--ground", choices=[ground.name for ground in GROUNDS], help="only this environment")
    args = parser.parse_args()
    chosen = [ground for ground in GROUNDS if args.ground in (None, ground.name)]
    folder = args.out / "quick" if args.quick else args.out
    if not args.report:
        run_all(folder, args.quick, chosen[:1] if args.quick else chosen)
    measured: list[Result] = []
    for ground in GROUNDS:
        found = curves(folder, ground, args.quick)
        if found:
            measured += results(ground.name, found)
            draw(found, (PICTURES if not args.quick else folder) / f"curves_{ground.name}.png", ground.name)
    show("credit", measured, as_json=args.json)


if __name__ == "__main__":
    main()
