"""The policy of our own beside what it should beat: more supervision of the same kind, and no learning at all.

Five runs, each resumable; what is in the folder already is not run again:

- ``recipe``: ``recipes/tiny.toml`` as it is, looked at after its warm start and at its end.
- ``longer``: its warm start alone, with as many more passes as fill the wall-clock of the recipe.
- ``full``: supervised on many more of the oracle's episodes, for the same number of updates.
- ``absent``: two families are in no demonstration; they are practised all the same.
- ``template``: nothing is learnt: the nearest of the shown requests is answered as it was, with this one's values.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gymcp.envs import load_env, load_spec
from gymcp.envs.spec import LoadedEnv
from gymcp.trainers.curriculum import demonstrated_tasks, held_out
from gymcp.trainers.loop import train
from gymcp.trainers.progress import read_metrics
from gymcp.trainers.recipe import Recipe
from gymcp.trainers.recipe_file import load_recipe
from gymcp.types import Task, ToolCall

ROOT = Path(__file__).parents[1]
ABSENT = ("contact", "refund")
FULL = 12_000
"""Episodes of the oracle."""
VALUE = re.compile(r"[A-Z][0-9]+|[0-9]+|[A-Z][a-z]+ [A-Z][a-z]+|(?<=to )[A-Z][a-z]+")


def variants(recipe: Recipe, seconds: Mapping[str, float]) -> dict[str, Recipe]:
    """By name. `seconds`: what the recipe's warm start and the whole of it took, where that is known."""
    warm, learn = recipe.warm_start, replace(recipe.learn, iterations=0)
    longer = round(warm.epochs * seconds["all"] / max(seconds["warm start"], 1.0)) if seconds else warm.epochs
    shown = replace(warm, tasks=FULL, epochs=max(round(warm.epochs * warm.tasks / FULL), 1))
    rest = tuple(name for name in families(recipe) if name not in ABSENT)
    return {
        "recipe": recipe,
        "longer": replace(recipe, warm_start=replace(warm, epochs=longer), learn=learn),
        "full": replace(recipe, warm_start=shown, learn=learn),
        "absent": replace(recipe, warm_start=replace(warm, families=rest)),
    }


def families(recipe: Recipe) -> list[str]:
    tasks = demonstrated_tasks(
        load_env(load_spec(recipe.env)), replace(recipe, warm_start=replace(recipe.warm_start, families=()))
    )
    return sorted({task.tags[0] for task in tasks})


def run(recipe: Recipe, env: LoadedEnv, folder: Path) -> dict[str, Any]:
    """Trains, unless that is done, and gives what the held-out tasks showed before and after."""
    done = folder / "done.json"
    if not done.exists():
        seconds: dict[str, float] = {}
        began, cpu = time.perf_counter(), _cpu()

        def tell(row: Mapping[str, Any]) -> None:
            print(
                json.dumps({key: row[key] for key in ("phase", "epoch", "iteration", "success", "loss") if key in row})
            )
            if row.get("phase") == "warm start":
                seconds["warm start"] = float(row["seconds"])

        train(recipe, env, folder, resume=(folder / "training.json").exists(), tell=tell)
        rows = read_metrics(folder)
        seconds["all"] = time.perf_counter() - began
        found = {
            "seconds": seconds,
            "cpu_seconds": _cpu() - cpu,
            "load": os.getloadavg()[0],
            "shown": recipe.warm_start.tasks,
            "practised": len(rows[1:]) * recipe.rollout.groups * recipe.rollout.episodes,
            "before": tests(rows[0]),
            "after": tests(rows[-1]),
        }
        done.write_text(json.dumps(found, indent=1))
    loaded: dict[str, Any] = json.loads(done.read_text())
    return loaded


def tests(row: Mapping[str, Any]) -> dict[str, float]:
    return {key.removeprefix("test/"): value for key, value in row.items() if key.startswith("test/")}


def _cpu() -> float:
    """Of this process and those it has waited for."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def template(recipe: Recipe, env: LoadedEnv) -> dict[str, float]:
    """Success of the nearest shown request's answer, on the held-out tasks; it can read no result."""
    shown = [(task, frozenset(_plain(task).split())) for task in demonstrated_tasks(env, recipe)]
    found: dict[str, float] = {}
    splits = recipe.evaluation.whole_splits or recipe.evaluation.splits
    for split in splits:
        tasks = held_out(env, recipe, split, recipe.evaluation.whole_tasks or None)
        right = [(task, _right(task, shown)) for task in tasks]
        found[f"{split}/success"] = sum(good for _, good in right) / len(right)
        for level in sorted({task.tags[1] for task in tasks}):
            of_level = [good for task, good in right if task.tags[1] == level]
            found[f"{split}/{level}"] = sum(of_level) / len(of_level)
    return found


def _right(task: Task, shown: Sequence[tuple[Task, frozenset[str]]]) -> bool:
    words = frozenset(_plain(task).split())
    nearest = max(shown, key=lambda pair: len(words & pair[1]) / len(words | pair[1]))[0]
    values = dict(zip(_values(nearest), _values(task), strict=False))
    gold = nearest.gold[0]
    calls = [(call.name, {key: _put(value, values) for key, value in _arguments(call).items()}) for call in gold.calls]
    wanted = [(call.name, _arguments(call)) for call in task.gold[0].calls]
    return calls == wanted and _put(gold.final_text, values) == task.gold[0].final_text


def _arguments(call: ToolCall) -> dict[str, Any]:
    return {} if isinstance(call.arguments, str) else dict(call.arguments)


def _plain(task: Task) -> str:
    return VALUE.sub("?", task.prompts[0])


def _values(task: Task) -> list[str]:
    return VALUE.findall(task.prompts[0].split("\n", 1)[1])


def _put(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, int):
        return int(values.get(str(value), value))
    return values.get(value, value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "tiny.toml")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "bench-tiny", help="where unfinished runs go on")
    parser.add_argument("--only", default="", help="names, with commas between them")
    parser.add_argument("--json", action="store_true", help="the result alone on standard output")
    args = parser.parse_args()
    recipe = load_recipe(args.recipe)
    env = load_env(load_spec(recipe.env))
    wanted = args.only.split(",") if args.only else ["recipe", "longer", "full", "absent", "template"]
    args.out.mkdir(parents=True, exist_ok=True)
    known = args.out / "recipe" / "done.json"
    found: dict[str, Any] = {}
    for name in wanted:
        if name == "template":
            found[name] = {"after": template(recipe, env)}
            continue
        seconds = json.loads(known.read_text())["seconds"] if known.exists() else {}
        found[name] = run(variants(recipe, seconds)[name], env, args.out / name)
    if args.json:
        print(json.dumps(found, indent=1))
        return
    for name, result in found.items():
        for when in ("before", "after"):
            scores = {key: value for key, value in result.get(when, {}).items() if "/level" in key}
            print(f"{name:<9} {when:<6} " + "  ".join(f"{key} {100 * value:.1f} %" for key, value in scores.items()))


if __name__ == "__main__":
    main()
