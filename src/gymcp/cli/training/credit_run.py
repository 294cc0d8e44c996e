"""Print the credit of a recorded run's steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.table import Table

from gymcp.cli.output import console, in_one_line, print_json
from gymcp.envs.environment_sources import load_recorded
from gymcp.envs.spec import EnvSpec, load_env
from gymcp.envs.tool_costs import check_costs
from gymcp.envs.wrappers.registry import WrapperSelection
from gymcp.errors import ConfigError, GymcpError
from gymcp.store import TrajectoryStore, open_run
from gymcp.store.run_folder import TRAINING_FILE
from gymcp.trainers.credit.anchors import ANCHORS, anchor_codes
from gymcp.trainers.credit.assign import Credit, assign_credit, step_credits
from gymcp.trainers.credit.cautions import find_cautions
from gymcp.trainers.credit.diagnostics import anchor_statistics
from gymcp.trainers.credit.preset import Preset
from gymcp.trainers.credit.preset_functions import short_name
from gymcp.trainers.credit.presets import make_preset
from gymcp.trainers.credit.signals.registry import find_model_signals, needs_gold
from gymcp.trainers.credit.step_batch import StepBatch, batch_of
from gymcp.trainers.credit.tree.presets import TREE_PRESETS, make_tree_preset
from gymcp.trainers.credit.tree.tree_batch import join_episodes
from gymcp.trainers.rollouts.curricula.choose import tasks_so_far
from gymcp.trainers.run.run_state import read_recipe_and_curriculum
from gymcp.trainers.settings.arrays import Floats
from gymcp.types import Json, Task, Trajectory

MAX_EPISODES_PRINTED = 20
"""Episodes that are printed; ``--json`` prints all."""


def run(folder: Path, preset: str, options: Mapping[str, Json], *, env: str | None, save: bool, as_json: bool) -> None:
    """Print the advantages that a preset gives to the steps of a recorded run, and statistics of each kind of anchor.

    Scores are those of the newest grades, as in reports. A preset of trees also gets what branched off, and every step
    once; others get first episodes alone. `env`: the run's environment file, for presets that compare with gold or with
    costs. With `save`, the run's store keeps the advantages in place of all that it had of the preset, and ``gymcp
    view`` shows them.
    """
    is_tree = preset in TREE_PRESETS
    chosen = make_tree_preset(preset, **options) if is_tree else make_preset(preset, **options)
    preset = short_name(preset)
    places: Mapping[str, str] = {}
    if is_tree:
        batch, places = _tree_batch(folder, chosen, env)
    else:
        batch = _batch(folder, chosen, env)
    credit = assign_credit(batch, chosen)
    if save:
        with TrajectoryStore.open(folder, write=True, create=False) as store:
            store.add_credits(step_credits(credit, chosen, name=preset, options=options), forget=preset)
    anchors: dict[str, Json] = {
        name: asdict(anchor_statistics(credit.batch, anchor_codes(credit.batch.sources, name), chosen))
        for name in ANCHORS
        if len(credit.batch.tasks)
    }
    cautions = find_cautions(chosen)
    if as_json:
        print_json({**_to_json(preset, options, credit, anchors, places), "cautions": cautions})
    else:
        _print(preset, credit, anchors, places)
        for caution in cautions:
            console.print(f"caution: {caution}", markup=False, highlight=False)


def advantages_of(
    folder: Path, preset: str, options: Mapping[str, Json], env: str | None = None
) -> dict[str, list[float]]:
    """Trajectory id -> [T] advantages, for each trajectory that the preset gives credit to.

    Presets of trees give it to branches too, of their own steps: none, if a branch ended before the first of them.
    """
    is_tree = preset in TREE_PRESETS
    chosen = make_tree_preset(preset, **options) if is_tree else make_preset(preset, **options)
    batch, places = _tree_batch(folder, chosen, env) if is_tree else (_batch(folder, chosen, env), {})
    credit = assign_credit(batch, chosen)
    found: dict[str, list[float]] = {id: [] for id in places}
    rows = zip(credit.batch.sources, _split_by_episode(credit), strict=True)
    return found | {record.id: row.tolist() for record, row in rows}


def _split_by_episode(credit: Credit) -> list[Floats]:
    """One row [T] of advantages for each episode that the preset's filters left."""
    return np.split(credit.advantage, credit.batch.starts[1:-1]) if len(credit.batch.tasks) else []


def _check_signals(preset: Preset) -> None:
    """Raise ConfigError for a preset that a record alone cannot give its credit."""
    if signals := find_model_signals(preset):
        raise ConfigError(
            f"credit: the preset needs {', '.join(signal.name for signal in signals)} of every step, which only the"
            " model that learns gives: train with it, or give `advantages` the column"
        )


def _tree_batch(folder: Path, preset: Preset, env: str | None) -> tuple[StepBatch, dict[str, str]]:
    """First episodes and all that branched off them, each with its own steps only; id of a branch -> its place."""
    _check_signals(preset)
    with TrajectoryStore.open(folder) as store:
        rows = {row.episode.id: row for row in store.branches()}
        records = list(store.iter_trajectories(latest=True, graded=True))
        records += [store.load(id, graded=True) for id in rows]
    parents = {id: (row.episode.parent or "", row.shared) for id, row in rows.items()}
    spec = find_environment(folder, env)
    batch = join_episodes(records, parents, costs=None if spec is None else spec.costs)
    return batch, {id: row.branch for id, row in rows.items()}


def _batch(folder: Path, preset: Preset, env: str | None) -> StepBatch:
    _check_signals(preset)
    tasks: Mapping[str, Task] = {}
    spec: EnvSpec | None
    if needs_gold(preset):
        spec = _load_environment(folder, env)
        tasks = {task.id: task for task in load_tasks(folder, spec)}
    else:
        spec = find_environment(folder, env)
    with TrajectoryStore.open(folder) as store:
        records = store.iter_trajectories(latest=True, graded=True)
        return batch_of(records, tasks, None if spec is None else spec.costs)


def find_environment(folder: Path, env: str | None) -> EnvSpec | None:
    """The environment of a run or of a training run, or the one that the user has named, with costs that are valid.

    No wrapper of a run changes its costs. None if the user has named no environment and the run's own cannot be loaded.
    Raises GymcpError.
    """
    try:
        spec = _load_environment(folder, env)
        check_costs(f"environment '{spec.name}'", spec.costs)
    except GymcpError:
        if env is not None:
            raise
        return None
    return spec


def load_tasks(folder: Path, spec: EnvSpec) -> Iterable[Task]:
    """Tasks that the run evaluated, or that a training run practised. Raises GymcpError if they are not at hand.

    `spec`: the run's environment.
    """
    if not (folder / TRAINING_FILE).is_file():
        return load_env(spec).suite.tasks
    recipe, curriculum = read_recipe_and_curriculum(folder)
    loaded = WrapperSelection(attack=recipe.wrappers.attack or None).apply(spec)  # the others change no task
    return tasks_so_far(loaded, recipe, curriculum)


def _load_environment(folder: Path, env: str | None) -> EnvSpec:
    """Raises GymcpError. Runs the environment's file, so a command does this once."""
    if not (folder / TRAINING_FILE).is_file():
        source = str(open_run(folder).config.get("source", ""))
        return load_recorded(source, given=env, where=f"run folder {folder}: run.json")
    recipe, _ = read_recipe_and_curriculum(folder)
    return load_recorded(recipe.env, given=env, where=f"training run {folder}: {TRAINING_FILE}")


def _to_json(
    preset: str, options: Mapping[str, Json], credit: Credit, anchors: Mapping[str, Json], places: Mapping[str, str]
) -> Json:
    rows = _split_by_episode(credit)
    return {
        "preset": preset,
        "options": options,
        "episodes": len(credit.batch.tasks),
        "steps": int(credit.batch.starts[-1]),
        "steps_without_tokens": _count_without_tokens(credit.batch),
        "dropped": credit.dropped,
        "anchors": anchors,
        "advantages": [
            {
                "id": record.id,
                "task": record.task,
                "trial": record.trial,
                "branch": places.get(record.id, ""),
                "score": record.score,
                "steps": row.tolist(),
            }
            for record, row in zip(credit.batch.sources, rows, strict=True)
        ],
    }


def _count_without_tokens(batch: StepBatch) -> int:
    return sum(step.sampled is None for record in batch.sources for step in record.steps)


def _sort_key(episode: tuple[Trajectory, Floats]) -> tuple[bool, str, int]:
    record, row = episode
    return not row.any(), record.task, record.trial


def _print(preset: str, credit: Credit, anchors: Mapping[str, Mapping[str, Json]], places: Mapping[str, str]) -> None:
    batch = credit.batch
    console.print(f"{preset}: {len(batch.tasks)} episodes, {int(batch.starts[-1])} steps, {credit.dropped} dropped")
    table = Table(title="advantages", title_justify="left", header_style="bold")
    for heading in ("task", "trial, branch" if places else "trial", "score", "steps"):
        table.add_column(heading)
    rows = _split_by_episode(credit)
    for record, row in sorted(zip(batch.sources, rows, strict=True), key=_sort_key)[:MAX_EPISODES_PRINTED]:
        steps = " ".join(f"{value:+.3f}" for value in row[:12]) + (f" ... {len(row)} in all" if len(row) > 12 else "")
        trial = f"{record.trial} {places.get(record.id, '')}".rstrip()
        score = "" if record.score is None else f"{record.score:.2f}"
        table.add_row(in_one_line(record.task), trial, score, steps)
    console.print(table)
    if len(rows) > MAX_EPISODES_PRINTED:
        console.print(f"{len(rows) - MAX_EPISODES_PRINTED} more episodes: --json prints all")
    means = Table(title="anchors: where steps can be compared", title_justify="left", header_style="bold")
    for heading in (
        "anchor", "states", "each", "most", "alone", "again", "weight", "index",
    ):  # fmt: skip
        means.add_column(heading, justify="left" if heading == "anchor" else "right", no_wrap=heading == "anchor")
    for name, found in anchors.items():
        shares = (f"{100 * found[key]:.0f} %" for key in ("singletons", "self_repeats", "step_share", "follows_turn"))
        means.add_row(name, str(found["states"]), f"{found['mean_group']:.1f}", str(found["largest_group"]), *shares)
    console.print(means)
    console.print(
        "each, most: steps in a state. alone: no other shares its state. again: an episode came back to it.\n"
        "weight: the share of all credit that gigpo's step part takes. index: how much of it the step's number alone"
        " explains."
    )
    if without := _count_without_tokens(batch):
        console.print(
            f"{without} steps have no recorded tokens and count as one each: they have credit, but nothing can be"
            " trained on them (policies local: and vllm: record tokens)"
        )
    if credit.dropped and not rows:
        console.print(f"the filters of '{preset}' dropped every episode; try more --trials, or other tasks")
    elif not np.any(credit.advantage):
        console.print("every advantage is 0: all episodes of each task scored alike; try more --trials, or other tasks")
