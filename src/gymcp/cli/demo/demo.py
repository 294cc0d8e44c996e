"""``gymcp demo``: what gymcp does, in three parts, shown as it happens.

BFCL multi-turn, a third-party suite of 800 tasks, is benchmarked under bubblewrap with agents whose scores are known in
advance, and one whose score is not. Then `tiny`, the policy that the package ships, plays `backoffice`. Then a smaller
policy is trained on `rounds`, from random weights, while you watch.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import typer

from gymcp.cli.demo.commands import Part
from gymcp.cli.demo.parts import PartResult, Stage, play_bfcl, play_tiny, train
from gymcp.cli.evaluation.eval_run import make_run_folder
from gymcp.cli.exit_codes import INTERRUPTED
from gymcp.cli.output import OutputConsole, console, print_json
from gymcp.errors import ConfigError, StoreError

TRAIN_PACKAGE = "torch"
"""Package of the extra `train` without which no policy of this process works."""
PLAYS: Mapping[Part, Callable[[Stage, str], PartResult]] = {
    Part.BFCL: play_bfcl,
    Part.TINY: play_tiny,
    Part.TRAIN: train,
}


def execute(*, out: Path, only: Part | None, limit: int, as_json: bool) -> None:
    """Play the parts of the demo. Exit code 1 if a success is not what it must be, or an episode was lost.

    With `as_json` the text goes to standard error. An interrupt keeps what was played and gives exit code 130.
    """
    page = OutputConsole(stderr=True) if as_json else console
    parts = _choose_parts(only, page)
    folder = _make_folder(out)
    results: dict[Part, PartResult] = {}
    try:
        for number, part in enumerate(parts, start=1):
            results[part] = _play(Stage(page=page, folder=folder, limit=limit), part, f"{number}/{len(parts)}")
            if results[part].interrupted:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        print(f"gymcp: demo: interrupted; what was played is kept: {find_program()} view {folder}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    wrong = [name for result in results.values() for name in result.wrong]
    if as_json:
        runs = {str(part): dict(result.summaries) for part, result in results.items()}
        seconds = {str(part): round(result.seconds, 1) for part, result in results.items()}
        print_json({"folder": str(folder), "runs": runs, "seconds": seconds, "wrong": wrong})
    else:
        _print_pages(page, folder, list(results.values()))
    if wrong:
        print(f"gymcp: demo: not as it must be: {', '.join(wrong)}", file=sys.stderr)
        raise typer.Exit(1)


def _choose_parts(only: Part | None, page: OutputConsole) -> list[Part]:
    """The parts to play; without the extra `train` only the first. Raises ConfigError if another one was asked for."""
    if importlib.util.find_spec(TRAIN_PACKAGE) is not None:
        return list(Part) if only is None else [only]
    reason = "need the extra `train`: pip install 'gymcp[train]'"
    if only in (Part.TINY, Part.TRAIN):
        raise ConfigError(f"demo: the parts tiny and train {reason}")
    page.print(f"The parts tiny and train are left out: they {reason}\n", soft_wrap=True, highlight=False)
    return [Part.BFCL]


def _make_folder(out: Path) -> Path:
    """An empty folder of that name, or a new one beside it with a number. Raises StoreError."""
    try:
        if out.is_dir() and not any(out.iterdir()):
            return out
    except OSError as error:
        raise StoreError(f"demo: folder {out}: cannot be read: {error.strerror or error}") from error
    return make_run_folder(out)


def _play(stage: Stage, part: Part, number: str) -> PartResult:
    """Play one part under its heading, and say how long it took."""
    started = time.monotonic()
    result = PLAYS[part](stage, number)
    seconds = time.monotonic() - started
    stage.say(f"Part {number} took {seconds:.0f} s.\n", style="dim")
    return replace(result, seconds=seconds)


def _print_pages(page: OutputConsole, folder: Path, results: Sequence[PartResult]) -> None:
    """The pages to open, each with what is to be seen on it."""
    page.print("Pages to open in a browser", style="bold", highlight=False)
    for result in results:
        for path, content in result.pages.items():
            page.print(f"  {path}", highlight=False, soft_wrap=True)
            page.print(f"      {content}", highlight=False, soft_wrap=True)
    page.print("Every step of every episode, in the viewer (Ctrl-C ends it)", style="bold", highlight=False)
    page.print(f"  {find_program()} view {folder}", highlight=False, soft_wrap=True)


def find_program() -> str:
    """The command as a reader can type it: ``gymcp`` if the shell finds this one, else its path."""
    installed = Path(sys.executable).with_name("gymcp")
    path = shutil.which("gymcp")
    if path is not None and Path(path).resolve() == installed.resolve():
        return "gymcp"
    here = Path.cwd()
    return str(installed.relative_to(here)) if installed.is_relative_to(here) else str(installed)
