"""``gymcp view``: show runs in a browser."""

from __future__ import annotations

import contextlib
import html
import os
import signal
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from gymcp.agents.policies.pretrained.folders import find_model
from gymcp.agents.policies.pretrained.smollm2 import NAME
from gymcp.agents.policies.specs import TRAINED
from gymcp.cli.evaluation.run_report import make_task_finder, rewrite_report
from gymcp.cli.known_names import EXPORT_LIMIT
from gymcp.cli.output import console, in_one_line
from gymcp.cli.progress import CountProgress
from gymcp.cli.runs.report import NOT_ALL_READ
from gymcp.errors import ConfigError, StoreError
from gymcp.evaluators.report import REPORT_FILE
from gymcp.evaluators.report.links import EXPORT_FOLDER
from gymcp.evaluators.viewer.discovery import find_runs, holds_runs_below
from gymcp.evaluators.viewer.episode import Decode
from gymcp.evaluators.viewer.export.export import export_viewer
from gymcp.evaluators.viewer.export.run_data import Choice
from gymcp.evaluators.viewer.serve import serve_viewer
from gymcp.evaluators.viewer.task_facts import FindTasks
from gymcp.store import open_run
from gymcp.store.notes import InvalidNote, Note, check_note

MAX_RUNS_SEARCHED = 100
"""Listed runs in which a tokenizer is looked for."""
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_FOLDERS = ("final", "model", ".")
"""Folders of a training run that may hold a tokenizer, in the order of the search."""


def execute(
    runs: list[Path],
    *,
    find: str,
    port: int,
    tokenizer: Path | None,
    env: list[str] | None,
    no_open: bool,
    name: str,
    export: Path | None,
    limit: int | None,
) -> None:
    """Show one run, two side by side, or a list of runs, in a browser on this machine, until Ctrl-C; or export them."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    listed = len(runs) > 2 or any(holds_runs_below(folder) for folder in runs)
    decode = find_decoder(tokenizer, find_runs(runs).folders[:MAX_RUNS_SEARCHED] if listed else runs)
    find_tasks = make_task_finder(env or [])
    if export is not None:
        choice = Choice(limit=EXPORT_LIMIT if limit is None else limit, find=find)
        export_pages(runs, export, choice, listed=listed, decode=decode, find_tasks=find_tasks)
        return
    if limit is not None:
        raise ConfigError("view: --limit is for --export; the viewer itself shows every episode")

    def ready(new_address: Callable[[], str], problems: Sequence[str]) -> None:
        for problem in problems:
            console.print(in_one_line(problem), style="yellow", highlight=False, markup=False, soft_wrap=True)
        # the address is alone on its line, for programs that read it
        print(new_address(), flush=True)
        if not no_open and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            webbrowser.open(private_page(private, new_address()).as_uri())

    who = read_name(name) if name else user_name()
    with tempfile.TemporaryDirectory(prefix="gymcp-view-") as private, contextlib.suppress(KeyboardInterrupt):
        serve_viewer(
            runs, port=port, decode=decode, find_tasks=find_tasks, who=who, find=find, listed=listed, ready=ready
        )
    console.print("stopped", highlight=False)


def user_name() -> str:
    """The name under which this user notes: $USER, or the number of the user if that is no name."""
    try:
        return read_name(os.environ.get("USER", ""))
    except ConfigError:
        return f"user {os.getuid()}"


def read_name(name: str) -> str:
    """The name, if notes can be kept under it. Raises ConfigError."""
    try:
        return check_note(Note(episode="", who=name)).who
    except InvalidNote as error:
        raise ConfigError(f"view: --name: {error}") from error


def export_pages(
    runs: Sequence[Path], out: Path, choice: Choice, *, listed: bool, decode: Decode | None, find_tasks: FindTasks
) -> None:
    """Write the runs as static pages, and print the page to open and what is left out.

    Exit code 1 if a run or an episode could not be read; the others are exported.
    """
    with CountProgress() as progress:
        done = export_viewer(
            runs, out, listed=listed, choice=choice, decode=decode, find_tasks=find_tasks, report=progress.report
        )
    if out.resolve() == runs[0].resolve() / EXPORT_FOLDER and (runs[0] / REPORT_FILE).is_file():
        # its links lead into the export from now on
        rewrite_report(runs[0])
    for note in done.notes:
        console.print(in_one_line(note), style="yellow", highlight=False, markup=False, soft_wrap=True)
    size = f"{done.episodes:,} episodes of {done.runs:,} runs, {done.files:,} files, {done.bytes / 1e6:.1f} MB"
    console.print(in_one_line(f"exported {size}"), highlight=False, markup=False)
    # the page is alone on its line, for programs that read it
    print(in_one_line(str(done.page)), flush=True)
    for problem in done.problems:
        print(f"gymcp: view: not exported: {in_one_line(problem)}", file=sys.stderr)
    if done.problems:
        raise typer.Exit(NOT_ALL_READ)


def private_page(folder: str, address: str) -> Path:
    """A file that only this user can read and that redirects to the address: all users see a browser's arguments."""
    page = Path(folder) / "open.html"
    with open(page, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(address)}">\n')
    return page


def find_decoder(named: Path | None, folders: Sequence[Path]) -> Callable[[Sequence[int]], list[str]] | None:
    """Function from token ids to text; None without a tokenizer. Raises ConfigError if the named one does not exist."""
    if named is not None:
        file = named / TOKENIZER_FILE if named.is_dir() else named
        if not file.is_file():
            raise ConfigError(f"view: --tokenizer {named}: there is no {TOKENIZER_FILE}")
    else:
        files = [file for folder in folders for file in _list_tokenizers(folder) if file.is_file()]
        if not files:
            return None
        file = files[0]
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 - of the extra `train`; without it tokens are shown as numbers
    except ModuleNotFoundError:
        return None
    try:
        reader = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare exceptions
        if named is None:
            return None
        raise ConfigError(f"view: --tokenizer {named}: {error}") from error
    return lambda ids: [reader.decode([id], skip_special_tokens=False) for id in ids]


def _list_tokenizers(folder: Path) -> list[Path]:
    """Possible tokenizer files of a run: in a training run's folder, or in that of the model that played."""
    files = [folder / place / TOKENIZER_FILE for place in TOKENIZER_FOLDERS]
    try:
        kind, _, model = str(open_run(folder).config.get("policy", "")).partition(":")
    except StoreError:
        return files
    named = {"local": model, NAME: NAME}.get(kind)
    played = TRAINED if kind == "tiny" else find_model(named) if named else None
    return files if played is None else [*files, played / TOKENIZER_FILE]
