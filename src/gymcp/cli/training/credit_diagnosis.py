"""``gymcp credit RUN --diagnose``: the sources of credit in a recorded run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from gymcp.cli.output import console, print_json
from gymcp.cli.training.credit_run import load_tasks
from gymcp.errors import GymcpError
from gymcp.store import TrajectoryStore
from gymcp.trainers.credit.diagnosis.advice import advise
from gymcp.trainers.credit.diagnosis.diagnosis import Diagnosis, diagnose
from gymcp.trainers.credit.diagnosis.rows import figure_rows, signal_rows
from gymcp.trainers.credit.presets import make_preset
from gymcp.types import Json, Task


def run(folder: Path, preset: str, options: Mapping[str, Json], *, env: str | None, as_json: bool) -> None:
    """Print the diagnosis of a recorded run. `env`: the run's environment file, for the comparison with gold calls."""
    chosen = make_preset(preset, **options)
    tasks = _find_gold(folder, env)
    with TrajectoryStore.open(folder) as store:
        diagnosis = diagnose(store.iter_trajectories(latest=True), tasks, chosen)
    if as_json:
        print_json(
            {**asdict(diagnosis), "steps_per_episode": diagnosis.steps_per_episode, "advice": list(advise(diagnosis))}
        )
    else:
        _print(diagnosis)


def _find_gold(folder: Path, env: str | None) -> Mapping[str, Task]:
    """Tasks by id; none if the user has named no environment and the run's own cannot be loaded."""
    try:
        return {task.id: task for task in load_tasks(folder, env)}
    except GymcpError:
        if env is not None:
            raise
        return {}


def _print(found: Diagnosis) -> None:
    _print_rows("where credit comes from", ("", ""), figure_rows(found))
    if found.signal.signals:
        _print_rows("signal-to-noise of the gradient, over GRPO's", ("preset", "ratio (95 %)"), signal_rows(found))
    for sentence in advise(found):
        console.print(sentence, highlight=False)


def _print_rows(title: str, headings: tuple[str, str], rows: tuple[tuple[str, str], ...]) -> None:
    table = Table(title=title, title_justify="left", header_style="bold", show_header=any(headings))
    table.add_column(headings[0])
    table.add_column(headings[1])
    for row in rows:
        table.add_row(*row)
    console.print(table)
