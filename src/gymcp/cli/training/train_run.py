"""Run a training on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import typer

from gymcp.agents.runner.concurrency import ConcurrencyChoice
from gymcp.cli.lazy_verbs import import_place
from gymcp.cli.output import console, print_json
from gymcp.envs.environment_sources import load_named
from gymcp.envs.spec import LoadedEnv
from gymcp.evaluators.metrics import MIN_COVERAGE, bound_held_out
from gymcp.evaluators.percent import format_bounds, format_percent
from gymcp.evaluators.training_curves import HeldOut, read_held_out
from gymcp.trainers.learner.distributed_processes import Accelerated
from gymcp.trainers.recipe.environment import wrap_environment
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.run.distributed_controller import controller, join_process_group, worker_loop
from gymcp.trainers.run.loop import Ending, train
from gymcp.trainers.run.metrics_log import CURVES, read_metrics
from gymcp.trainers.run.model_files import FINAL
from gymcp.trainers.run.run_state import FINISHED
from gymcp.trainers.run.training_run import OnRow, OpenPlayer
from gymcp.types import Json


def run(
    recipe: Recipe,
    out: Path | None,
    *,
    resume: bool,
    as_json: bool,
    replay: Path | None = None,
    ray: str | None = None,
    plan: Path | None = None,
) -> None:
    """Train, print a line for each iteration and then the paths of the results. Exit code 1 if the run stopped early.

    If a launcher has started several processes, the main one does this and the others help it.
    """
    processes = join_process_group()
    if processes is not None and not processes.is_main:
        worker_loop(processes)
        return
    with controller(processes):
        cluster = partial(_open_cluster, ray, plan)
        ending = _train(recipe, out, processes, cluster, resume=resume, as_json=as_json, replay=replay)
    if ending.reason != FINISHED:
        raise typer.Exit(1)


def folder_of(recipe: Recipe, out: Path | None) -> Path:
    """Folder of the training run: the given one, or that of the recipe's name."""
    return out or Path("runs") / f"train-{recipe.name}"


def _train(
    recipe: Recipe,
    out: Path | None,
    processes: Accelerated | None,
    open_cluster: Callable[[Recipe, LoadedEnv], AbstractContextManager[OpenPlayer | None]],
    *,
    resume: bool,
    as_json: bool,
    replay: Path | None,
) -> Ending:
    folder = folder_of(recipe, out)
    env = wrap_environment(recipe, load_named(recipe.env))

    def say_start(concurrency: ConcurrencyChoice) -> None:
        if as_json:
            return
        console.print(f"training '{recipe.name}' on {recipe.env} into {folder}", highlight=False, soft_wrap=True)
        if concurrency.is_chosen and open_player is None:
            console.print(concurrency.describe("rollout.concurrency"), highlight=False, soft_wrap=True)

    tell = (lambda row: None) if as_json else teller(recipe)
    with open_cluster(recipe, env) as open_player:
        ending = train(
            recipe,
            env,
            folder,
            resume=resume,
            on_row=tell,
            on_start=say_start,
            processes=processes,
            replay=replay,
            open_player=open_player,
        )
    last = read_metrics(folder)[-1]
    tests = {key: value for row in read_metrics(folder) for key, value in row.items() if key.startswith("test/")}
    if as_json:
        print_json({"run": str(folder), "iterations": ending.iterations, "ended": ending.reason, "last": last, **tests})
    else:
        console.print(f"{ending.reason} after {ending.iterations} iterations", highlight=False, soft_wrap=True)
        console.print(f"curves: {folder / CURVES}   policy: local:{folder / FINAL}", highlight=False, soft_wrap=True)
    return ending


def _open_cluster(
    address: str | None, plan: Path | None, recipe: Recipe, env: LoadedEnv
) -> AbstractContextManager[OpenPlayer | None]:
    """Nodes that play the episodes; None without an address. Raises ConfigError."""
    if address is None:
        return nullcontext()
    opened: AbstractContextManager[OpenPlayer] = import_place("training.cluster.driver:open_cluster")(
        address, plan, recipe, env
    )
    return opened


def teller(recipe: Recipe) -> OnRow:
    """Function that prints each row of metrics on a line."""
    return lambda row: _tell(row, recipe.learn.iterations)


def _tell(row: Mapping[str, Json], iterations: int) -> None:
    if "phase" in row:
        console.print(
            f"warm start {row['epoch']}/{row['of']}  loss {row['loss']:.4f}  {row['tokens_per_second']:.0f} tokens/s"
            f"  {row['seconds']:.0f} s, {row['left_seconds']:.0f} s left",
            highlight=False,
        )
        return
    parts = [f"{row['iteration']:>{len(str(iterations))}}/{iterations}"]
    if "success" in row:
        parts += [f"practice {100 * row['success']:5.1f} %", f"calls {row['calls']:.1f}"]
    if "entropy" in row:
        left = _format_time(row["seconds"] * (iterations - row["iteration"]))
        parts += [f"entropy {row['entropy']:.2f}", f"kl {row['kl']:.3f}", f"{row['seconds']:.0f} s, {left} left"]
    if "skipped" in row:
        parts.append(str(row["skipped"]))
    parts += [f"{held.split} {_describe_held_out(held)}" for held in read_held_out([row])]
    console.print("  ".join(parts), highlight=False, soft_wrap=True)


def _describe_held_out(held: HeldOut) -> str:
    """Held-out success, or its bounds if too few tasks have a score."""
    bounds = bound_held_out(held.newest, MIN_COVERAGE)
    return format_percent(held.last.success) if bounds is None else format_bounds(bounds.low, bounds.high)


def _format_time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
