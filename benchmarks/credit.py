"""Learning curves: what step-level credit is worth, at the same start, tasks and number of episodes.

Every run has a folder of its own under --out and goes on where it was killed; what has ended is only read. Figures are
made of what has ended, and say of how many seeds.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from curve_figures import Curve, curve_of, draw, paired
from learning import Run, has_ended, played, rows, warmed_up
from report_table import Result, options, show

from gymcp.envs.anchors import StateAnchor
from gymcp.trainers.recipe.load import load_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.types import Json

HERE = Path(__file__).parent
RECIPES = HERE / "curves"
PICTURES = HERE / "results"
METRICS = {"final": "success", "area": "success", "final_calls": "calls", "final_wasted": "calls"}
"""What is said of a curve, and its unit."""
ANCHORS = ("singletons", "step_share")
"""What is said of the states in which steps are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    name: str
    credit: Mapping[str, Json]
    seeds: int = 1
    anchor: StateAnchor | None = None
    """None: the environment's own, world and last observation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    name: str
    """Its recipe's, too."""
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
"""The first ground is the one that is measured with paired seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    ground: str
    contender: Contender
    seed: int

    @property
    def run(self) -> str:
        return f"{self.contender.name.replace(', ', '-').replace(' ', '-')}-{self.seed}"


def places(quick: bool, grounds: Sequence[Ground] = GROUNDS) -> list[Place]:
    """In the order in which they are run: pairs first and together, so that an early end leaves whole pairs."""
    found = [
        Place(ground=ground.name, contender=contender, seed=seed)
        for seed in range(1 if quick else SEEDS)
        for ground in grounds
        for contender in ground.contenders
        if seed < contender.seeds and not (quick and contender not in ground.contenders[:2])
    ]
    return sorted(found, key=lambda place: place.contender.seeds == 1)


def recipe_of(ground: str, seed: int, quick: bool) -> Recipe:
    """Before its warm start."""
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


class Teller:
    """Progress with rates and time left, a line an iteration."""

    def __init__(self, left: Sequence[Place], iterations: Mapping[str, int]) -> None:
        self._left = {(place.ground, place.run): iterations[place.ground] for place in left}
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
    """Plays what has not ended yet."""
    left = [place for place in places(quick, grounds) if not has_ended(folder / place.ground / place.run)]
    tell = Teller(left, {name: recipe_of(name, 0, quick).learn.iterations for name in {p.ground for p in left}})
    for place in left:
        here = folder / place.ground
        tell.now = place
        recipe = replace(
            warmed_up(recipe_of(place.ground, place.seed, quick), here, tell), credit=place.contender.credit
        )
        played(Run(name=place.run, recipe=recipe, anchor=place.contender.anchor), here, tell)


def curves(folder: Path, ground: Ground, quick: bool) -> dict[str, list[Curve]]:
    """Contender -> a curve for each seed that has ended, in the order of the seeds."""
    found: dict[str, list[Curve]] = {}
    for place in places(quick, [ground]):
        here = folder / place.ground / place.run
        if has_ended(here):
            recipe = recipe_of(place.ground, place.seed, quick)
            episodes = recipe.rollout.groups * recipe.rollout.episodes
            found.setdefault(place.contender.name, []).append(curve_of(rows(here), episodes, seed=place.seed))
    return found


def results(ground: str, found: Mapping[str, Sequence[Curve]]) -> Iterator[Result]:
    """Each contender at the end of its budget, and what it has over grpo of the same seeds."""
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
                yield from gained(f"{what}: {metric} over grpo, {len(pairs)} paired", pairs, unit)
        for part in ANCHORS:
            mean = float(np.mean([getattr(curve, part) for curve in curves]))
            yield Result(metric=f"{what}: {part}", value=mean, unit="share")


def gained(what: str, pairs: Sequence[tuple[float, float]], unit: str) -> Iterator[Result]:
    """The mean difference of pairs, beside what it is a difference to, and its interval where there is one."""
    gain = paired(pairs)
    base = float(np.mean([theirs for _, theirs in pairs]))
    ratio = (base + gain.mean) / base if base else None
    yield Result(metric=what, value=gain.mean, unit=unit, baseline="grpo", baseline_value=base, ratio=ratio)
    if gain.low is not None and gain.high is not None:
        yield Result(metric=f"{what}, 95 % from", value=gain.low, unit=unit)
        yield Result(metric=f"{what}, 95 % to", value=gain.high, unit=unit)


def main() -> None:
    parser = options(__doc__, "one seed of two presets with a model of nothing: that all works")
    parser.add_argument("--out", type=Path, default=Path("runs/curves"), help="where runs are kept and gone on with")
    parser.add_argument("--report", action="store_true", help="run nothing: figures of what has ended")
    parser.add_argument("--ground", choices=[ground.name for ground in GROUNDS], help="only this one")
    asked = parser.parse_args()
    wanted = [ground for ground in GROUNDS if asked.ground in (None, ground.name)]
    folder = asked.out / "quick" if asked.quick else asked.out
    if not asked.report:
        run_all(folder, asked.quick, wanted[:1] if asked.quick else wanted)
    measured: list[Result] = []
    for ground in GROUNDS:
        found = curves(folder, ground, asked.quick)
        if found:
            measured += results(ground.name, found)
            draw(found, (PICTURES if not asked.quick else folder) / f"curves_{ground.name}.png", ground.name)
    show("credit", measured, as_json=asked.json)


if __name__ == "__main__":
    main()
