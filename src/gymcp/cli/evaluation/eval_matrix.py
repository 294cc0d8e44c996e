"""Several environments by several policies: a run for each pair, one after the other, and one table of all."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from threading import Event

import typer
from rich.table import Table

from gymcp.agents.policies.pretrained.folders import check_hub_id, check_model_folder, is_hub_id, names_no_path
from gymcp.agents.runner.run import RunEnd, sum_cost
from gymcp.cli.agent_options import choose_agent
from gymcp.cli.configs import EvalConfig
from gymcp.cli.evaluation.eval_run import (
    NOT_IN_A_NAME,
    make_run_folder,
    run_eval,
)
from gymcp.cli.evaluation.run_report import summarize_recorded
from gymcp.cli.exit_codes import INTERRUPTED, LOST_TO_INFRA, OUT_OF_MONEY, USAGE_ERROR
from gymcp.cli.output import console, hint_at_debug, in_one_line, print_json, print_traceback
from gymcp.cli.policy_options import plan_policy
from gymcp.cli.progress import Progress
from gymcp.envs.environment_sources import load_named
from gymcp.envs.spec import load_env
from gymcp.errors import ConfigError, GymcpError, UsageError
from gymcp.evaluators.judge.answers import read_answers
from gymcp.evaluators.names import NET_OF_PRICE
from gymcp.evaluators.percent import format_bounds, format_percent
from gymcp.store import RUN_FILE, TrajectoryStore
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
class PlayedCell:
    """A cell after its run."""

    summary: Mapping[str, Json] | None
    """None: it has not begun, or has no episode."""
    has_begun: bool
    """False if it was refused, or interrupted, before it had its folder; episodes in it are of an earlier command."""
    error: GymcpError | None = None
    ended: RunEnd = RunEnd.FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Cells of the matrix after it has ended; the others were not reached."""

    summaries: Mapping[int, Mapping[str, Json]]
    """Number of the cell -> summary of its episodes, also of a run that broke off or was interrupted."""
    errors: Mapping[int, GymcpError]
    """Number of the cell -> reason why it was not run, or broke off."""
    broken_off: Set[int] = frozenset()
    """Numbers of the cells that had begun when their error came."""
    ended: RunEnd


def execute(config: EvalConfig, *, envs: Sequence[str], policies: Sequence[str], as_json: bool) -> None:
    """Run every environment by every policy into a folder of its own below ``--out``, and print one table.

    A pair that cannot be run does not stop the others; its error is printed when it is found, most of them before the
    first run. Ends the command with an exit code other than 0 if a pair was not run, or not to its end.
    """
    cells = _plan_cells(config, envs, policies)
    played = _play(cells, config.max_cost)
    if config.out is None:
        _remove_empty(_folder(cells))
    if as_json:
        failed = [_describe_failure(cells[n], played, n) for n in sorted(played.errors)]
        print_json({"runs": list(played.summaries.values()), "failed": failed, "ended": str(played.ended)})
    else:
        console.print(_table(cells, played))
        if played.summaries:
            console.print(f"runs: {_folder(cells)}", highlight=False, markup=False, soft_wrap=True)
    if played.ended is not RunEnd.FINISHED or played.broken_off:
        why, more = "not all runs have come to their end", ""
        if played.ended is RunEnd.INTERRUPTED:
            why = "interrupted"
        elif played.ended is RunEnd.OUT_OF_MONEY:
            why, more = f"--max-cost {config.max_cost:g} is spent", ", and a higher --max-cost"
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


def _find_faults(cells: Sequence[Cell]) -> dict[int, GymcpError]:
    """Number of the cell -> reason why it cannot be run, printed at once, as far as it shows without a server or model.

    Every environment is loaded, which may install a suite, and the options of every policy are read.
    """
    envs = {cell.config.env: cell.config for cell in cells}
    policies = {cell.config.policy: cell.config for cell in cells}
    of_envs = {env: _find_fault(lambda config: load_env(load_named(config.env)), each) for env, each in envs.items()}
    of_policies = {policy: _find_fault(_check_policy, each) for policy, each in policies.items()}
    faults: dict[int, GymcpError] = {}
    for n, cell in enumerate(cells):
        if fault := of_envs[cell.config.env] or of_policies[cell.config.policy]:
            faults[n] = fault
            _print_error(cell, f"will be left out: {fault}{hint_at_debug(fault)}")
    return faults


def _find_fault(check: Callable[[EvalConfig], object], config: EvalConfig) -> GymcpError | None:
    try:
        check(config)
    except GymcpError as error:
        print_traceback(error)
        return error
    return None


def _check_policy(config: EvalConfig) -> None:
    """Raise ConfigError if the policy cannot be read, lacks a price, is a folder of this machine without a model, or a
    hub id that is a mistake.
    """
    if config.policy is not None:
        spec = plan_policy(config.policy, config.model, concurrency=1, max_cost=config.max_cost).spec
        if config.ray is not None or spec.kind != "local":
            return
        if is_hub_id(spec.model):
            check_hub_id(spec.model, spec.who)
        elif not names_no_path(spec.model):
            check_model_folder(Path(spec.model), spec.who)


def _play(cells: Sequence[Cell], max_cost: float | None) -> Played:
    """Play the cells in order under one progress display. A budget is for all of them together.

    Ctrl-C ends it at any time, also before the first episode.
    """
    summaries: dict[int, Mapping[str, Json]] = {}
    errors: dict[int, GymcpError] = {}
    broken_off: set[int] = set()
    ended, spent = RunEnd.FINISHED, 0.0
    try:
        errors |= _find_faults(cells)
        with Progress("") as progress:
            for n, cell in enumerate(cells):
                if n in errors:
                    continue
                if max_cost is not None and spent >= max_cost:
                    ended = RunEnd.OUT_OF_MONEY
                    break
                left = None if max_cost is None else max_cost - spent
                progress.begin(f"run {n + 1} of {len(cells)} · {cell.row} · {cell.column}")
                result = _play_cell(replace(cell, config=replace(cell.config, max_cost=left)), progress)
                if result.summary is not None:
                    summaries[n] = result.summary
                    spent += 0.0 if max_cost is None else _read_cost(cell)
                if result.error is not None:
                    errors[n] = result.error
                    broken_off |= {n} if result.has_begun else set()
                ended = result.ended
                if ended is not RunEnd.FINISHED:
                    break
    except KeyboardInterrupt:
        ended = RunEnd.INTERRUPTED
    return Played(summaries=summaries, errors=errors, broken_off=broken_off, ended=ended)


def _read_cost(cell: Cell) -> float:
    """Money that a run has spent, as its own budget counts it."""
    assert cell.config.out is not None  # every cell has a folder
    with TrajectoryStore.open(cell.config.out) as store:
        return sum_cost(store, read_answers(cell.config.out))


def _play_cell(cell: Cell, progress: Progress) -> PlayedCell:
    """Run a cell. An error is printed; it, or Ctrl-C while no episode runs, keeps the episodes that are recorded.

    A run that was refused before it began has none, whatever an earlier command left in its folder.
    """
    folder = cell.config.out
    assert folder is not None  # every cell has a folder
    begun = Event()
    try:
        result = run_eval(cell.config, progress=progress, on_begin=begun.set)
    except GymcpError as error:
        print_traceback(error)
        summary = summarize_recorded(folder) if begun.is_set() else None
        recorded = "" if summary is None else f"; recorded episodes: {summary['episodes']}"
        _print_error(cell, f"{error}{hint_at_debug(error)}", recorded)
        return PlayedCell(summary=summary, has_begun=begun.is_set(), error=error)
    except KeyboardInterrupt:
        summary = summarize_recorded(folder) if begun.is_set() else None
        return PlayedCell(summary=summary, has_begun=begun.is_set(), ended=RunEnd.INTERRUPTED)
    return PlayedCell(summary=result.summary, has_begun=True, ended=result.ended)


def _print_error(cell: Cell, error: str, recorded: str = "") -> None:
    print(f"gymcp: {cell.row} by {cell.column}: {in_one_line(error)}{recorded}", file=sys.stderr)


def _describe_failure(cell: Cell, played: Played, number: int) -> dict[str, Json]:
    """Entry of ``failed`` for ``--json``."""
    recorded = played.summaries.get(number, {}).get("episodes", 0)
    error = str(played.errors[number])
    return {"env": cell.config.env, "policy": cell.config.policy, "error": error, "episodes": recorded}


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
    summary = played.summaries.get(number)
    if summary is None:
        if number in played.broken_off:
            return "broke off before its first episode"
        return "not run" if number in played.errors else "not reached"
    broken = f", broke off at {summary['episodes']} episodes" if number in played.broken_off else ""
    scored = f"{summary['scored']}/{summary['episodes']} scored"
    if summary.get("refused"):  # too few episodes have a score for a headline figure
        low, high = summary["success_bounds"]
        return f"{format_bounds(low, high)}, {scored}{broken}"
    success, interval = summary["success"], summary["ci95"]
    text = format_percent(success, missing="-")
    if interval is not None:
        text += f" ({100 * interval[0]:.1f} – {100 * interval[1]:.1f})"
    if summary["scored"] < summary["episodes"]:
        text += f", {scored}"
    if (net := summary.get("components", {}).get(NET_OF_PRICE)) is not None:
        text += f", net of price {format_percent(net)}"
    return text + broken


def _exit_code(played: Played) -> int:
    if played.ended is not RunEnd.FINISHED:
        return INTERRUPTED if played.ended is RunEnd.INTERRUPTED else OUT_OF_MONEY
    if played.errors:
        usage = any(isinstance(error, UsageError) for error in played.errors.values())
        return USAGE_ERROR if usage else HARNESS_FAILED
    lost = any(summary["scored"] < summary["episodes"] for summary in played.summaries.values())
    return LOST_TO_INFRA if lost else 0
