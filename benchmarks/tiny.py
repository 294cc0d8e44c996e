"""The shipped policy `tiny` against what it should beat: more supervision of the same kind, and no learning at all.

Training runs are resumable; a run that has ended is not run again:

- ``recipe``: ``recipes/tiny.toml`` as it is, evaluated after its warm start and at its end.
- ``longer``: its warm start alone, with as many epochs as fill the wall-clock time of ``recipe``, which runs first.
- ``full``: supervised on many more of the oracle's episodes, for the same number of updates.
- ``absent``: no demonstration has two of the families, training has them all the same, with half as many iterations.
- ``nearest``: nothing is learnt: the agent follows the demonstration of the nearest request, with the task's values.
- ``shipped``: the checkpoint in the package, on tasks that no run of the recipe has used.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from baselines import nearest_template, play

from gymcp.agents.policies.models import TokenModel
from gymcp.agents.policies.specs import ModelOptions, open_model, parse_policy
from gymcp.agents.strategies.react import ReactSettings, react
from gymcp.envs import load_env, load_spec
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.suites.backoffice import make_tasks
from gymcp.evaluators.statistics.intervals import wilson
from gymcp.trainers.recipe.load import load_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curriculum import demonstration_tasks
from gymcp.trainers.run.loop import train
from gymcp.trainers.run.metrics_log import read_metrics
from gymcp.types import Sampling, Task, Trajectory

ROOT = Path(__file__).parents[1]
ABSENT = ("contact", "refund")
FULL = 12_000
"""Demonstrations by the oracle in ``full``."""
UNSEEN, FIRST_UNSEEN = 25, 1000
"""Number of test tasks for each family and level, and the first one's number: held-out tasks are numbered from 0."""
RUNS = ("recipe", "longer", "full", "absent")


def variants(recipe: Recipe, seconds: Mapping[str, float]) -> dict[str, Recipe]:
    """Recipes by name. `seconds`: times of the recipe's warm start and of its whole run; without them no ``longer``."""
    warm, learn = recipe.warm_start, replace(recipe.learn, iterations=0)
    more = replace(warm, tasks=FULL, epochs=max(round(warm.epochs * warm.tasks / FULL), 1))
    half = replace(recipe.learn, iterations=recipe.learn.iterations // 2)
    rest = tuple(name for name in families(recipe) if name not in ABSENT)
    recipes = {
        "recipe": recipe,
        "full": replace(recipe, warm_start=more, learn=learn),
        "absent": replace(recipe, warm_start=replace(warm, families=rest), learn=half),
    }
    if seconds:
        epochs = round(warm.epochs * seconds["all"] / max(seconds["warm start"], 1.0))
        recipes["longer"] = replace(recipe, warm_start=replace(warm, epochs=epochs), learn=learn)
    return recipes


def families(recipe: Recipe) -> list[str]:
    tasks = demonstration_tasks(
        load_env(load_spec(recipe.env)), replace(recipe, warm_start=replace(recipe.warm_start, families=()))
    )
    return sorted({task.tags[0] for task in tasks})


def run(recipe: Recipe, env: LoadedEnv, folder: Path) -> dict[str, Any]:
    """Results on the held-out tasks before and after training; trains first, if the run has not ended."""
    done, warm = folder / "done.json", folder / "warm_start.json"
    if not done.exists():
        cpu = _cpu()

        def tell(row: Mapping[str, Any]) -> None:
            line = {key: row[key] for key in ("phase", "epoch", "iteration", "success", "loss") if key in row}
            print(json.dumps(line), file=sys.stderr, flush=True)
            if row.get("phase") == "warm start":
                warm.write_text(json.dumps(row["seconds"]))

        train(recipe, env, folder, resume=(folder / "training.json").exists(), on_row=tell)
        rows, warm_s = read_metrics(folder), json.loads(warm.read_text())
        results = {
            "seconds": {"warm start": warm_s, "all": warm_s + sum(map(_seconds, rows))},
            "cpu_seconds": _cpu() - cpu,
            "load": os.getloadavg()[0],
            "shown": recipe.warm_start.tasks,
            "epochs": recipe.warm_start.epochs,
            "practised": len(rows[1:]) * recipe.rollout.groups * recipe.rollout.episodes,
            "before": tests(rows[0]),
            "after": tests(rows[-1]),
        }
        done.write_text(json.dumps(results, indent=1))
    loaded: dict[str, Any] = json.loads(done.read_text())
    return loaded


def _seconds(row: Mapping[str, Any]) -> float:
    return float(row.get("seconds", 0.0) + row.get("seconds/evaluation", 0.0))


def tests(row: Mapping[str, Any]) -> dict[str, float]:
    return {key.removeprefix("test/"): value for key, value in row.items() if key.startswith("test/")}


def _cpu() -> float:
    """CPU seconds of this process and of the children it has waited for."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


async def _episodes(env: LoadedEnv, recipe: Recipe, tasks: list[Task]) -> list[Trajectory]:
    async with open_model(parse_policy("tiny"), ModelOptions()) as model:
        assert isinstance(model, TokenModel)
        agent = react(model, ReactSettings(sampling=Sampling(max_tokens=32, temperature=0.0)))
        return await play(env, recipe, agent, tasks)


def evaluate_shipped(env: LoadedEnv, recipe: Recipe) -> dict[str, float]:
    """Success of the policy in the package, with greedy decoding, and its 95 % interval."""
    results: dict[str, float] = {}
    for split in recipe.evaluation.final_splits:
        for level in recipe.tasks.levels:
            tasks = list(make_tasks(split, levels=[level], count=UNSEEN, first=FIRST_UNSEEN))
            records = asyncio.run(_episodes(env, recipe, tasks))
            solved = sum(bool(record.success) for record in records)
            if (interval := wilson(solved, len(records))) is not None:
                name = f"{split}/level {level}"
                results |= {name: solved / len(records), f"{name} from": interval.low, f"{name} to": interval.high}
                results[f"{split}/tasks of level {level}"] = len(records)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "tiny.toml")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "runs" / "bench-tiny", help="folder of the runs, which resume there"
    )
    parser.add_argument("--only", default="", help="names of the runs, separated by commas")
    parser.add_argument("--json", action="store_true", help="print only the result, as JSON")
    args = parser.parse_args()
    recipe = load_recipe(args.recipe)
    env = load_env(load_spec(recipe.env))
    names = args.only.split(",") if args.only else [*RUNS, "nearest", "shipped"]
    args.out.mkdir(parents=True, exist_ok=True)
    known = args.out / "recipe" / "done.json"
    results: dict[str, Any] = {}
    for name in names:
        if name == "nearest":
            results[name] = {"after": {row.metric.partition(": ")[2]: row.value for row in nearest_template(recipe)}}
        elif name == "shipped":
            results[name] = {"after": evaluate_shipped(env, recipe)}
        else:
            seconds = json.loads(known.read_text())["seconds"] if known.exists() else {}
            recipes = variants(recipe, seconds)
            if name not in recipes:
                parser.error(f"{name}: there is no such run, or it takes as long as 'recipe', which must run first")
            results[name] = run(recipes[name], env, args.out / name)
    if args.json:
        print(json.dumps(results, indent=1))
        return
    for name, result in results.items():
        for when in ("before", "after"):
            scores = {key: value for key, value in result.get(when, {}).items() if _is_printed(name, key)}
            print(f"{name:<8} {when:<6} " + "  ".join(f"{key} {value:.3g}" for key, value in scores.items()))


def _is_printed(name: str, key: str) -> bool:
    """True for success by level and, in ``absent``, for success on the absent families; the JSON has the rest."""
    return "level" in key or (name == "absent" and key.endswith(ABSENT))


if __name__ == "__main__":
    main()
