"""Several environments by several policies: a run for each pair, one after the other, and one table of all."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import typer
from rich.table import Table

from gymcp.agents.runner.run import RunEnd
from gymcp.cli.agent_options import choose_agent
from gymcp.cli.configs import EvalConfig
from gymcp.cli.evaluation.eval_run import (
    NOT_IN_A_NAME,
    make_run_folder,
    run_eval,
)
from gymcp.cli.exit_codes import INTERRUPTED, LOST_TO_INFRA, OUT_OF_MONEY, USAGE_ERROR
from gymcp.cli.output import console, in_one_line, print_json
from gymcp.cli.progress import Progress
from gymcp.errors import ConfigError, GymcpError, UsageError
from gymcp.evaluators.names import NET_OF_PRICE
from gymcp.evaluators.percent import format_bounds, format_percent
from gymcp.store import RUN_FILE
from gymcp.types import Json

HARNESS_FAILED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of the matrix."""

    row: str
    """Name of the environment in the table."""
    column: str
    """Name of the model, or of the agent without one."""
    config: EvalConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Cells of the matrix after it has ended; the others were not reached."""

    summaries: Mapping[int, Mapping[str, Json]]
    """Number of the cell -> content of its ``summary.json``."""
    errors: Mapping[int, GymcpError]
    """Number of the cell -> reason why it has no run."""
    ended: RunEnd


def execute(config: EvalConfig, *, envs: Sequence[str], policies: Sequence[str], as_json: bool) -> None:
    """Run every environment by every policy into a folder of its own below ``--out``, and print one table.

    A pair that cannot be run does not stop the others. Ends the command with an exit code other than 0 if a pair was
    not run, or not to its end.
    """
    cells = _plan_cells(config, envs, policies)
    played = _play(cells, config.max_cost)
    if config.out is None:
        _remove_empty(_folder(cells))
    if as_json:
        failed = [
            {"env": cells[n].config.env, "policy": cells[n].config.policy, "error": str(error)}
            for n, error in played.errors.items()
        ]
        print_json({"runs": list(played.summaries.values()), "failed": failed, "ended": str(played.ended)})
    else:
        console.print(_table(cells, played))
        if played.summaries:
            console.print(f"runs: {_folder(cells)}", highlight=False, markup=False, soft_wrap=True)
    for n, error in played.errors.items():
        print(f"gymcp: {cells[n].row} by {cells[n].column}: {in_one_line(str(error))}", file=sys.stderr)
    if played.ended is not RunEnd.FINISHED:
        interrupted = played.ended is RunEnd.INTERRUPTED
        why = "interrupted" if interrupted else f"--max-cost {config.max_cost:g} is spent"
        more = "" if interrupted else ", and a higher --max-cost"
        go_on = f"to go on, type the same command with: --out {_folder(cells)} --resume{more}"
        print(f"gymcp: {why}; {go_on}", file=sys.stderr)
    if code := _exit_code(played):
        raise typer.Exit(code)


def _plan_cells(config: EvalConfig, envs: Sequence[str], policies: Sequence[str]) -> list[Cell]:
    """A cell for each pair. Raises ConfigError if one is named twice, or if the folder holds a single run."""
    for option, names in (("ENV", envs), ("--policy", policies)):
        if twice := next((name for name in names if list(names).count(name) > 1), None):
            raise ConfigError(f"{option}: '{twice}' is named twice")
    if config.resume and config.out is None:
        raise ConfigError("--resume: which runs? name their folder with --out")
    if config.out is not None and (config.out / RUN_FILE).exists():
        raise ConfigError(f"--out {config.out}: holds a single run; several runs need a folder above them")
    folder = config.out or make_run_folder(Path("runs") / f"eval-{datetime.now():%Y%m%d-%H%M%S}")
    rows, columns = _shorten(envs, _name_environment), _shorten(policies, _name_model)
    without_model = choose_agent(config.agent, None)
    cells: list[Cell] = []
    for env, row in rows.items():
        for policy, column in columns.items() or [(None, without_model)]:
            name = NOT_IN_A_NAME.sub("-", f"{row}-{column}").strip("-.") or "run"
            folders = {cell.config.out for cell in cells}
            numbers = (name if n == 1 else f"{name}-{n}" for n in range(1, len(cells) + 2))
            out = next(path for path in map(folder.joinpath, numbers) if path not in folders)
            cells.append(Cell(row=row, column=column, config=replace(config, env=env, policy=policy, out=out)))
    return cells


def _shorten(names: Sequence[str], shorten: Callable[[str], str]) -> dict[str, str]:
    """Name -> short name, or the name itself if the short one would stand for several."""
    short = {name: shorten(name) for name in names}
    return {name: each if list(short.values()).count(each) == 1 else name for name, each in short.items()}


def _name_environment(env: str) -> str:
    return Path(env).stem if env.endswith(".py") else env


def _name_model(policy: str) -> str:
    """Short name of a policy: its model, without the address."""
    kind, _, rest = policy.partition(":")
    if kind in ("openai", "vllm"):
        return rest.partition("#")[2] or policy
    return Path(rest).name or policy if kind == "local" else policy


def _play(cells: Sequence[Cell], max_cost: float | None) -> Played:
    """Play the cells in order under one progress display. A budget is for all of them together."""
    summaries: dict[int, Mapping[str, Json]] = {}
    errors: dict[int, GymcpError] = {}
    ended = RunEnd.FINISHED
    with Progress("") as progress:
        for n, cell in enumerate(cells):
            spent = sum(summary["cost"] for summary in summaries.values())
            if max_cost is not None and spent >= max_cost:
                ended = RunEnd.OUT_OF_MONEY
                break
            left = None if max_cost is None else max_cost - spent
            progress.begin(f"run {n + 1} of {len(cells)} · {cell.row} · {cell.column}")
            try:
                result = run_eval(replace(cell.config, max_cost=left), progress=progress)
            except GymcpError as error:
                errors[n] = error
                continue
            summaries[n] = result.summary
            ended = result.ended
            if ended is not RunEnd.FINISHED:
                break
    return Played(summaries=summaries, errors=errors, ended=ended)


def _folder(cells: Sequence[Cell]) -> Path:
    first = cells[0].config.out
    assert first is not None  # every cell has a folder
    return first.parent


def _remove_empty(folder: Path) -> None:
    """Remove the folder that was made for the runs, and the one above it, if no pair could be run."""
    with contextlib.suppress(OSError):  # it holds a run
        folder.rmdir()
        folder.parent.rmdir()


def _table(cells: Sequence[Cell], played: Played) -> Table:
    """Environments by models: success with its interval, and how many episodes it rests on if some have no score.

    Below the coverage floor, the bounds stand in place of the success.
    """
    rows, columns = (list(dict.fromkeys(names)) for names in ([c.row for c in cells], [c.column for c in cells]))
    table = Table(title="success, with its 95 % interval", title_justify="left", header_style="bold")
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    texts = {(cell.row, cell.column): describe_cell(n, played) for n, cell in enumerate(cells)}
    for row in rows:
        table.add_row(row, *(texts[row, column] for column in columns))
    return table


def describe_cell(number: int, played: Played) -> str:
    """Text of a cell of the table."""
    if number in played.errors:
        return "not run"
    summary = played.summaries.get(number)
    if summary is None:
        return "not reached"
    scored = f"{summary['scored']}/{summary['episodes']} scored"
    if summary.get("refused"):  # too few episodes have a score for a headline figure
        low, high = summary["success_bounds"]
        return f"{format_bounds(low, high)}, {scored}"
    success, interval = summary["success"], summary["ci95"]
    text = format_percent(success, missing="-")
    if interval is not None:
        text += f" ({100 * interval[0]:.1f} – {100 * interval[1]:.1f})"
    if summary["scored"] < summary["episodes"]:
        text += f", {scored}"
    if (net := summary.get("components", {}).get(NET_OF_PRICE)) is not None:
        text += f", net of price {format_percent(net)}"
    return text


def _exit_code(played: Played) -> int:
    if played.ended is not RunEnd.FINISHED:
        return INTERRUPTED if played.ended is RunEnd.INTERRUPTED else OUT_OF_MONEY
    if played.errors:
        usage = any(isinstance(error, UsageError) for error in played.errors.values())
        return USAGE_ERROR if usage else HARNESS_FAILED
    lost = any(summary["scored"] < summary["episodes"] for summary in played.summaries.values())
    return LOST_TO_INFRA if lost else 0
