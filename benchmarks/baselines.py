"""What a recipe's policy stands against, on the same held-out tasks: no model at all, and supervised learning alone.

Three baselines: the nearest demonstration (of those that the recipe's warm start shows), the recipe's supervised part
alone for as long as practice took, and supervised on many more demonstrations. Runs are kept under --out and gone on
with.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from learning import ENDED, Run, environment, played
from report_table import Result, options, show

from gymcp.agents.nearest import nearest
from gymcp.agents.rollout import Job
from gymcp.agents.scheduler import Schedule, run_jobs
from gymcp.agents.scripted import SCRIPTED
from gymcp.cli.train import parsed
from gymcp.envs.spec import LoadedEnv
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.warm import warmed
from gymcp.protocols import AgentFactory
from gymcp.trainers.curriculum import demonstrated_tasks, held_out
from gymcp.trainers.recipe import Recipe, load_recipe
from gymcp.types import Json, Task, Trajectory


def played_by(env: LoadedEnv, recipe: Recipe, agent: AgentFactory, tasks: Sequence[Task]) -> list[Trajectory]:
    """The scored records of one episode of each task, in the order in which they ended."""
    found: list[Trajectory] = []

    async def play() -> None:
        async with warmed(get_sandbox(recipe.rollout.sandbox)) as warm:
            jobs = [Job(task=task, trial=0, seed=0) for task in tasks]
            schedule = Schedule(concurrency=recipe.rollout.concurrency)
            await run_jobs(env, warm, agent, jobs, schedule, lambda done, last: found.append(done.trajectory))

    asyncio.run(play())
    return [record for record in found if record.outcome.has_score]


def nearest_template(recipe: Recipe) -> Iterator[tuple[str, float]]:
    """(split, success) of the nearest demonstration, among those of the recipe's warm start."""
    env = environment(recipe.env)
    shown = played_by(env, recipe, SCRIPTED["oracle"], demonstrated_tasks(env, recipe))
    agent = nearest([record for record in shown if record.success])
    rule = recipe.evaluation
    for split in rule.whole_splits or rule.splits:
        records = played_by(env, recipe, agent, held_out(env, recipe, split, rule.whole_tasks or rule.tasks))
        yield split, float(np.mean([bool(record.success) for record in records]))


def supervised(name: str, recipe: Recipe, folder: Path) -> tuple[dict[str, float], float]:
    """Success by split of the recipe's warm start alone, and the seconds it took, its last look included."""
    alone = replace(recipe, learn=replace(recipe.learn, iterations=0))
    (row,) = played(Run(name=name, recipe=alone), folder, tell)
    seconds = json.loads((folder / name / ENDED).read_text(encoding="utf-8"))["seconds"]
    return {key.split("/")[1]: value for key, value in row.items() if key.endswith("/success")}, seconds


def tell(run: str, row: Mapping[str, Json]) -> None:
    """One line a row, on standard error."""
    kept = {key: value for key, value in row.items() if key in ("epoch", "of", "loss", "iteration", "seconds")}
    print(f"{run}: {kept}", file=sys.stderr, flush=True)


def practice_s(folder: Path) -> float:
    """Seconds that a training run's iterations took."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return sum(float(row.get("seconds", 0.0)) for row in map(json.loads, lines))


def main() -> None:
    parser = options(__doc__, "some tasks, one epoch: that all works")
    parser.add_argument("recipe", type=Path, nargs="?", default=Path(__file__).parents[1] / "recipes" / "tiny.toml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of gymcp train")
    parser.add_argument("--run", type=Path, help="the recipe's training run: supervised learning gets as long")
    parser.add_argument("--full", type=int, default=4000, help="demonstrations of the supervised run on many")
    parser.add_argument("--out", type=Path, default=Path("runs/baselines"))
    asked = parser.parse_args()
    settings = list(parsed(asked.set).items())
    if asked.quick:
        settings += [("warm_start.tasks", 16), ("warm_start.epochs", 1), ("evaluation.tasks", 8)]
        settings += [("model.hidden", 32), ("model.layers", 1), ("model.heads", 2)]
    recipe = load_recipe(asked.recipe, settings)
    warm = recipe.warm_start
    results = [
        Result(metric=f"nearest of {warm.tasks} demonstrations: {split}", value=success, unit="success")
        for split, success in nearest_template(recipe)
    ]
    few, seconds = supervised("few", recipe, asked.out)
    runs = {f"supervised, {warm.tasks} demonstrations, {warm.epochs} epochs": few}
    if asked.run is not None:
        epochs = max(round(warm.epochs * (1 + practice_s(asked.run) / seconds)), 1)
        longer = replace(recipe, warm_start=replace(warm, epochs=epochs))
        runs[f"supervised as long as practice, {epochs} epochs"], _ = supervised("long", longer, asked.out)
    if not asked.quick:
        full = replace(recipe, warm_start=replace(warm, tasks=asked.full))
        runs[f"supervised, {asked.full} demonstrations"], _ = supervised("full", full, asked.out)
    for name, scores in runs.items():
        results += [Result(metric=f"{name}: {split}", value=value, unit="success") for split, value in scores.items()]
    show("baselines", results, as_json=asked.json)


if __name__ == "__main__":
    main()
