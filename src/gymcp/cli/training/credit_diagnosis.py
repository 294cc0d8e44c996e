"""``gymcp credit RUN --diagnose``: the sources of credit in a recorded run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from gymcp.cli.output import console, print_json
from gymcp.cli.training.credit_run import find_environment, load_tasks
from gymcp.envs.spec import EnvSpec
from gymcp.errors import ConfigError, GymcpError
from gymcp.evaluators.percent import format_percent
from gymcp.evaluators.training_curves import read_held_out
from gymcp.paths import find_page
from gymcp.store import TrajectoryStore
from gymcp.store.metric_rows import read_metric_rows
from gymcp.store.run_folder import TRAINING_FILE
from gymcp.trainers.credit.diagnosis.advice import advise
from gymcp.trainers.credit.diagnosis.diagnosis import Diagnosis, diagnose
from gymcp.trainers.credit.diagnosis.gradient_factors import is_measurable, name_variant
from gymcp.trainers.credit.diagnosis.prediction import predict_success
from gymcp.trainers.credit.diagnosis.rows import figure_rows, prediction_rows, signal_rows
from gymcp.trainers.credit.diagnosis.signal import BASE
from gymcp.trainers.credit.preset_functions import short_name
from gymcp.trainers.credit.presets import PRESETS, make_preset
from gymcp.trainers.run.run_state import read_recipe_and_curriculum
from gymcp.types import Json, Task


def run(
    folder: Path, preset: str, options: Mapping[str, Json], *, env: str | None, as_json: bool, grpo: str | None = None
) -> None:
    """Print the diagnosis of a recorded run.

    `env`: the run's environment file, for the comparison with gold calls and for costs. `grpo`: held-out success before
    and after a training with GRPO, "20,50" in per cent; None: that of the run, if it is one. Raises ConfigError.
    """
    course = _find_course(folder) if grpo is None else _read_course(grpo)
    chosen = make_preset(preset, **options)
    if not is_measurable(short_name(preset), chosen):
        raise ConfigError(
            f"credit: --diagnose measures no signal of preset '{preset}', which would mislead"
            f" ({find_page('credit.md')}, 'When does step credit pay?'); without --diagnose its advantages are printed"
        )
    spec = find_environment(folder, env)
    tasks = {} if spec is None else _find_gold(folder, spec, is_named=env is not None)
    costs = None if spec is None else spec.costs
    name = name_variant(preset, options) if options or preset not in PRESETS else ""
    with TrajectoryStore.open(folder) as store:
        records = store.iter_trajectories(latest=True, graded=True)
        diagnosis = diagnose(records, tasks, chosen, name=name, costs=costs)
    predicted = predict_success(diagnosis, *course) if course else ()
    if as_json:
        more = {"advice": list(advise(diagnosis)), "predicted": [asdict(each) for each in predicted]}
        print_json({**asdict(diagnosis), "steps_per_episode": diagnosis.steps_per_episode, **more})
        return
    _print(diagnosis)
    if grpo is not None and not predicted:
        console.print(f"--grpo {grpo}: nothing to predict: success did not rise, or no signal could be measured")
    if course and predicted:
        start, end = (format_percent(share) for share in course)
        title = f"held-out success after as many episodes, if GRPO goes from {start} to {end}"
        _print_rows(title, ("preset", "predicted (95 %)"), prediction_rows(predicted))


def _read_course(text: str) -> tuple[float, float]:
    try:
        start, end = (float(part) / 100 for part in text.split(","))
    except ValueError:
        start = end = -1.0
    if not 0 <= start <= 1 or not 0 <= end <= 1:
        raise ConfigError(f"credit: --grpo {text}: must be success before and after in per cent, such as 20,50")
    return start, end


def _find_course(folder: Path) -> tuple[float, float] | None:
    """Held-out success before and after a training with GRPO; None for any other run, or without two evaluations."""
    if not (folder / TRAINING_FILE).is_file() or read_recipe_and_curriculum(folder)[0].preset_name != BASE:
        return None
    splits = read_held_out(read_metric_rows(folder))
    if not splits or splits[0].first is splits[0].last:
        return None
    return splits[0].first.success, splits[0].last.success


def _find_gold(folder: Path, spec: EnvSpec, *, is_named: bool) -> Mapping[str, Task]:
    """Tasks by id; none if the user has not named the environment and its tasks cannot be loaded."""
    try:
        return {task.id: task for task in load_tasks(folder, spec)}
    except GymcpError:
        if is_named:
            raise
        return {}


def _print(diagnosis: Diagnosis) -> None:
    _print_rows("where credit comes from", ("", ""), figure_rows(diagnosis))
    if diagnosis.signal.signals:
        _print_rows("signal-to-noise of the gradient, over GRPO's", ("preset", "ratio (95 %)"), signal_rows(diagnosis))
    for sentence in advise(diagnosis):
        console.print(sentence, highlight=False)


def _print_rows(title: str, headings: tuple[str, str], rows: tuple[tuple[str, str], ...]) -> None:
    table = Table(title=title, title_justify="left", header_style="bold", show_header=any(headings))
    table.add_column(headings[0])
    table.add_column(headings[1])
    for row in rows:
        table.add_row(*row)
    console.print(table)
