"""Rollouts beside updates against rollouts and updates in turn: episodes per second, and success in the end.

The embedded engine answers after a fixed delay, and the tools have a heavy tail (`slow_parts`), as remote ones have.
Both ways have the same recipe, seeds, number of updates and of episodes at a time, and start from the same warm start.
The rate is that of the episodes that were learnt from, without the first iterations and without evaluations. When
policy, tools and learner are busy is noted in both ways and summed up for each second; the JSON has it, and the ages of
tokens, for each run, and `--pictures FOLDER` draws the runs of the first seed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from learning import run_warm_start, start_from
from part_timeline import LEARNER, PARTS, SPANS, Span, Timeline, draw_timelines, make_timeline
from report_table import Result, against, options, show
from slow_parts import HeavyTail

from gymcp.envs import load_env, load_spec
from gymcp.envs.spec import LoadedEnv
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.run.loop import train
from gymcp.trainers.run.metrics_log import read_metrics
from gymcp.types import Json

SEEDS = (0, 1, 2)
STALENESS = 2
UNTIMED = STALENESS + 1
"""First iterations whose time does not count: the producer has a lead during the first evaluation."""
WAYS = ("in turn", "beside")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One training run."""

    rate: float
    """Episodes that were learnt from per second."""
    success: float
    """On held-out tasks, after the last update."""
    rows: tuple[Mapping[str, Json], ...]
    timeline: Timeline
    """Covers the time in which the rate was taken."""

    @property
    def ages(self) -> dict[int, int]:
        """Age in weight versions -> number of tokens that were learnt from; empty for a run in turn."""
        known = range(max((row.get("staleness/max", -1) for row in self.rows), default=-1) + 1)
        return {age: sum(row.get(f"staleness/{age}", 0) for row in self.rows) for age in known}


def make_base(seed: int, *, quick: bool) -> Recipe:
    size = {"hidden": 64, "layers": 2, "heads": 2} if quick else {"hidden": 128, "layers": 4, "heads": 4}
    table: dict[str, Json] = {
        "env": "backoffice",
        "name": "beside",
        "seed": seed,
        "model": {"style": "terse", "vocabulary": 700, "context": 1024, **size},
        "tasks": {"levels": [1]},
        "warm_start": {
            "tasks": 256 if quick else 512, "epochs": 6 if quick else 10, "batch_size": 24, "learning_rate": 3e-3,
            "prompt_loss_weight": 0.06,
        },
        "rollout": {
            "groups": 4 if quick else 16, "episodes": 4, "temperature": 0.8, "max_tokens": 24, "max_turns": 6,
            "concurrency": 16 if quick else 64, "agent": f"{Path(__file__).with_name('slow_parts.py')}:slow_react",
        },
        "credit": {"preset": "grpo"},
        "loss": {"decoupled": True},
        "learn": {"iterations": 8 if quick else 40, "learning_rate": 5e-4, "drop_uninformative": True},
        "evaluation": {"every": 0, "tasks": 16 if quick else 128},
    }  # fmt: skip
    return make_recipe(table)


def take_way(recipe: Recipe, way: str) -> Recipe:
    return replace(recipe, rollout=replace(recipe.rollout, staleness=STALENESS)) if way == "beside" else recipe


def measure(recipe: Recipe, env: LoadedEnv, folder: Path, name: str) -> Measured:
    ends: dict[int, float] = {}
    SPANS.spans.clear()

    def note(row: Mapping[str, Json]) -> None:
        if "phase" not in row:
            ends[row["iteration"]] = now = time.perf_counter()
            SPANS.spans.append(find_update(row, now))
            print(f"{name}: iteration {row['iteration']}", file=sys.stderr, flush=True)

    train(recipe, env, folder, resume=False, on_row=note)
    rows = read_metrics(folder)
    last = recipe.learn.iterations
    began, ended = ends[UNTIMED], ends[last] - rows[-1]["seconds/evaluation"]
    episodes = sum(row["outcome/scored"] for row in rows if row["iteration"] > UNTIMED)
    return Measured(
        rate=episodes / (ended - began),
        success=float(rows[-1]["test/seeds/success"]),
        rows=tuple(rows[1:]),
        timeline=make_timeline(SPANS.spans, began, ended),
    )


def find_update(row: Mapping[str, Json], now: float) -> Span:
    """Credit and update of the iteration whose row was logged now, after its evaluation if it has one."""
    end = now - row.get("seconds/evaluation", 0.0)
    return Span(part=LEARNER, start=end - row.get("seconds/credit", 0.0) - row.get("seconds/update", 0.0), end=end)


def measure_all(folder: Path, seeds: tuple[int, ...], *, quick: bool) -> dict[str, list[Measured]]:
    """Runs by way; the order of the two ways changes from seed to seed."""
    spec = load_spec("backoffice")
    env = load_env(replace(spec, layers=(*spec.layers, HeavyTail())))
    found: dict[str, list[Measured]] = {way: [] for way in WAYS}
    for seed in seeds:
        recipe = make_base(seed, quick=quick)
        plain = replace(recipe, rollout=replace(recipe.rollout, agent=""))
        model = run_warm_start(plain, folder, lambda name, row: None)
        for way in WAYS if seed % 2 == 0 else reversed(WAYS):
            name = f"{way.replace(' ', '-')}-{seed}"
            found[way].append(each := measure(take_way(start_from(model, recipe), way), env, folder / name, name))
            print(f"{name}: {each.rate:.2f} episodes/s, success {each.success:.3f}", file=sys.stderr, flush=True)
    return found


def report(found: Mapping[str, list[Measured]]) -> list[Result]:
    means = {way: statistics.mean(each.rate for each in runs) for way, runs in found.items()}
    base = Result(metric="in turn", value=means["in turn"], unit="episodes/s")
    results = [base, against("beside", means["beside"], "episodes/s", base)]
    results += [
        Result(metric=f"{way}: success, seed {seed}", value=100 * each.success, unit="%")
        for way, runs in found.items()
        for seed, each in enumerate(runs)
    ]
    for way, runs in found.items():
        for part in PARTS:
            value = statistics.mean(each.timeline.mean_busy(part) for each in runs)
            results.append(Result(metric=f"{way}: {part} busy", value=100 * value, unit="% of the time"))
    rows = [row for each in found["beside"] for row in each.rows]
    ages = sum((Counter(each.ages) for each in found["beside"]), Counter())
    for age in range(max(STALENESS, *ages) + 1):
        share = 100 * ages[age] / max(ages.total(), 1)
        results.append(Result(metric=f"beside: tokens {age} versions old", value=share, unit="% of the tokens"))
    oldest = max(row["staleness/max"] for row in rows)
    results.append(Result(metric=f"beside: oldest token (bound {STALENESS})", value=oldest, unit="versions"))
    dropped = sum(row["staleness/dropped_episodes"] for row in rows)
    return [*results, Result(metric="beside: dropped as too stale", value=dropped, unit="episodes")]


def list_series(found: Mapping[str, list[Measured]]) -> dict[str, Json]:
    """Series of every run by its way and seed: the timeline, and the number of tokens by their age in versions."""
    return {
        f"{way}, seed {seed}": {"timeline": each.timeline.to_json(), "tokens_by_age": each.ages}
        for way, runs in found.items()
        for seed, each in enumerate(runs)
    }


def main() -> None:
    parser = options(__doc__, "one seed, a smaller model, 8 updates")
    parser.add_argument("--pictures", type=Path, help="folder for a picture of the timelines, light and dark")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure_all(Path(folder), SEEDS[:1] if args.quick else SEEDS, quick=args.quick)
    if args.pictures is not None:
        places = make_base(SEEDS[0], quick=args.quick).rollout.concurrency
        draw_timelines({way: runs[0].timeline for way, runs in found.items()}, places, args.pictures)
    title = "rollouts beside updates, and in turn"
    show("async_training", report(found), as_json=args.json, title=title, series=list_series(found))


if __name__ == "__main__":
    main()
