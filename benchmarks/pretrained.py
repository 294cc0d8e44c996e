"""A small pretrained model on tasks with tools, as it is and after the warm start of `recipes/smollm2.toml`.

Five parts, which run one by one and resume where they were cut off:

- ``base-bfcl``, ``trained-bfcl``: 60 tasks of BFCL whose tools are those of one class, so that the list is short.
- ``base-backoffice``, ``trained-backoffice``: 96 held-out tasks of `backoffice`, level 1: new companies, new wordings
  and new values, 32 of each.
- ``train``: the warm start, which the trained ones need first.

Greedy answers of at most 64 tokens, 8 of them in an episode. Success has Wilson's 95 % interval and n beside it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from parts import keep_part, list_left, make_part, read_parts, show_parts
from report_table import Result, options

from gymcp.agents.strategies.budgets import Budget
from gymcp.cli.configs import EvalConfig, ModelConfig
from gymcp.cli.evaluation.eval_run import run_eval
from gymcp.envs import load_env, load_spec
from gymcp.evaluators.statistics.intervals import wilson
from gymcp.store import TrajectoryStore
from gymcp.trainers.recipe.load import load_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.run.loop import train
from gymcp.trainers.run.model_files import FINAL
from gymcp.types import Json, Sampling, Task

ROOT = Path(__file__).parents[1]
NAME = "pretrained"
PARTS = ("base-bfcl", "base-backoffice", "train", "trained-bfcl", "trained-backoffice")
BFCL_TASKS, BACKOFFICE_TASKS = 60, 96
BACKOFFICE_SPLITS = ("seeds", "wordings", "values")
TAGS_OF_ONE_CLASS = 2
"""Tags of a BFCL task whose tools are those of one class: its category, and the class."""
QUICK_TASKS = 2
ANSWER_TOKENS, MAX_TURNS = 64, 8


def list_short(tasks: Sequence[Task], count: int) -> list[str]:
    """Ids of `count` tasks of one class, evenly spread."""
    short = [task.id for task in tasks if len(task.tags) == TAGS_OF_ONE_CLASS]
    return [short[at * len(short) // count] for at in range(count)]


def play(model: str, ground: str, folder: Path, *, quick: bool) -> list[Result]:
    """Success of the model on the tasks of a ground, with n and the interval; goes on with a run that was cut off."""
    if ground == "bfcl":
        tasks = load_env(load_spec("bfcl")).suite.tasks
        patterns, limit = list_short(tasks, QUICK_TASKS if quick else BFCL_TASKS), None
    else:
        patterns, limit = [f"{split}-*-1-*" for split in BACKOFFICE_SPLITS], QUICK_TASKS if quick else BACKOFFICE_TASKS
    config = EvalConfig(
        env=ground,
        agent="react",
        policy=model,
        tasks=patterns,
        limit=limit,
        out=folder,
        resume=folder.exists(),
        model=ModelConfig(sampling=Sampling(temperature=0.0, max_tokens=ANSWER_TOKENS), budget=Budget(turns=MAX_TURNS)),
    )
    run_eval(config)
    with TrajectoryStore.open(folder) as store:
        episodes = [row for row in store.summaries() if row.score is not None]
        records = list(store.iter_trajectories())
    solved = sum(bool(row.success) for row in episodes)
    calls = [call for record in records for step in record.steps for call in step.action.tool_calls]
    interval = wilson(solved, len(episodes))
    assert interval is not None, f"{folder}: no episode has a score"
    n = len(episodes)
    return [
        Result(metric=f"success, n = {n}", value=solved / n, unit="share"),
        Result(metric=f"success, n = {n}: 95 % from", value=interval.low, unit="share"),
        Result(metric=f"success, n = {n}: 95 % to", value=interval.high, unit="share"),
        Result(metric="tool calls", value=len(calls), unit="calls"),
        Result(metric="tool calls that are well-formed", value=sum(not c.parse_error for c in calls), unit="calls"),
    ]


def warm_start(recipe: Recipe, folder: Path) -> list[Result]:
    """Final loss and tokens/s of the warm start; goes on with a run that was cut off."""
    last: dict[str, Json] = {}

    def tell(row: Mapping[str, Json]) -> None:
        if row.get("phase") == "warm start":
            last.update(row)
            print(json.dumps({key: row[key] for key in ("epoch", "loss", "seconds")}), file=sys.stderr, flush=True)

    if not (folder / FINAL / "config.json").is_file():
        train(recipe, load_env(load_spec(recipe.env)), folder, resume=(folder / "training.json").exists(), on_row=tell)
    if not last:  # its rows were shown by a run that was cut off later
        return []
    return [
        Result(metric="demonstrations", value=last["examples"], unit="episodes"),
        Result(metric="loss of the last epoch", value=last["loss"], unit="nats"),
        Result(metric="training speed", value=last["tokens_per_second"], unit="tok/s"),
    ]


def main() -> None:
    parser = options(__doc__, f"{QUICK_TASKS} tasks of each kind, 4 demonstrations, one epoch")
    parser.add_argument("--only", default="", help="parts, separated by commas; default: those that are left")
    parser.add_argument("--model", default="smollm2", help="model.path of the recipe: a name, a folder or a hub id")
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "smollm2.toml")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "bench-pretrained", help="folder of the runs")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    names = args.only.split(",") if args.only else list_left(NAME, PARTS, args.out)
    if unknown := set(names) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; have {', '.join(PARTS)}")
    recipe = load_recipe(args.recipe, [("model.path", args.model)])
    if args.quick:
        recipe = replace(
            recipe,
            warm_start=replace(recipe.warm_start, tasks=4, epochs=1, batch_size=2),
            evaluation=replace(recipe.evaluation, tasks=1),
        )
    base = args.model if args.model == "smollm2" else f"local:{args.model}"
    trained = f"local:{args.out / 'train' / FINAL}"
    for name in names:
        began = time.perf_counter()
        if name == "train":
            results = warm_start(recipe, args.out / "train")
        else:
            who, _, ground = name.partition("-")
            if who == "trained" and not (args.out / "train" / FINAL).is_dir():
                parser.error(f"{name}: needs the part train first")
            results = play(base if who == "base" else trained, ground, args.out / name, quick=args.quick)
        taken = Result(metric="time of this run of the part", value=time.perf_counter() - began, unit="s")
        keep_part(NAME, name, make_part([*results, taken]), args.out)
    show_parts(NAME, read_parts(args.out / f"{NAME}.json"), as_json=args.json)


if __name__ == "__main__":
    main()
