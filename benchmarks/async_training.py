"""Rollouts beside updates against rollouts and updates in turn: episodes per second, and success in the end.

The embedded engine answers after a fixed delay, and the tools have a heavy tail (`slow_parts`), as remote ones have.
Both ways have the same recipe, seeds, number of updates and of episodes at a time, and start from the same warm start.
The rate is that of the episodes that were learnt from, without the first iterations and without evaluations.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from learning import run_warm_start, start_from
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


def make_base(seed: int, *, quick: bool) -> Recipe:
    size = {"hidden": 64, "layers": 2, "heads": 2} if quick else {"hidden": 128, "layers": 4, "heads": 4}
    table: dict[str, Json] = {
        "env": "backoffice",
        "name": "beside",
        "seed": seed,
        "model": {"style": "terse", "vocabulary": 700, "context": 1024, **size},
        "tasks": {"levels": [1]},
        "warm_start": {
            "tasks": 64 if quick else 512, "epochs": 2 if quick else 10, "batch_size": 24, "learning_rate": 3e-3,
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

    def note(row: Mapping[str, Json]) -> None:
        if "phase" not in row:
            ends[row["iteration"]] = time.perf_counter()
            print(f"{name}: iteration {row['iteration']}", file=sys.stderr, flush=True)

    train(recipe, env, folder, resume=False, on_row=note)
    rows = read_metrics(folder)
    last = recipe.learn.iterations
    seconds = ends[last] - ends[UNTIMED] - rows[-1]["seconds/evaluation"]
    episodes = sum(row["outcome/scored"] for row in rows if row["iteration"] > UNTIMED)
    return Measured(rate=episodes / seconds, success=float(rows[-1]["test/seeds/success"]), rows=tuple(rows[1:]))


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
            found[way].append(measure(take_way(start_from(model, recipe), way), env, folder / name, name))
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
    alone = [row for each in found["in turn"] for row in each.rows]
    share = sum(row["seconds/update"] for row in alone) / sum(row["seconds"] for row in alone)
    results.append(Result(metric="in turn: learner busy", value=100 * share, unit="% of the time"))
    rows = [row for each in found["beside"] for row in each.rows]
    for part in ("policy", "tools", "learner"):
        value = statistics.mean(row[f"utilisation/{part}"] for row in rows)
        results.append(Result(metric=f"beside: {part} busy", value=100 * value, unit="% of the time"))
    tokens = [sum(row[f"staleness/{age}"] for row in rows) for age in range(STALENESS + 1)]
    for age, count in enumerate(tokens):
        share = 100 * count / max(sum(tokens), 1)
        results.append(Result(metric=f"beside: tokens {age} versions old", value=share, unit="% of the tokens"))
    oldest = max(row["staleness/max"] for row in rows)
    results.append(Result(metric=f"beside: oldest token (bound {STALENESS})", value=oldest, unit="versions"))
    dropped = sum(row["staleness/dropped_episodes"] for row in rows)
    return [*results, Result(metric="beside: dropped as too stale", value=dropped, unit="episodes")]


def main() -> None:
    args = options(__doc__, "one seed, a smaller model, 8 updates").parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure_all(Path(folder), SEEDS[:1] if args.quick else SEEDS, quick=args.quick)
    show("async_training", report(found), as_json=args.json, title="rollouts beside updates, and in turn")


if __name__ == "__main__":
    main()
