"""Run folders below the folders that a user names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gymcp.store.database import FILE_NAME
from gymcp.store.run_folder import RUN_FILE, TRAINING_FILE

_MARKS = (FILE_NAME, RUN_FILE, TRAINING_FILE)
"""Files of which every run folder holds at least one."""
MAX_DEPTH = 8
"""Levels of folders below a named one that are searched."""
MAX_FOLDERS = 20_000
"""Folders that one search looks into."""
MAX_RUNS = 1_000
"""Runs that are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRuns:
    folders: tuple[Path, ...]
    """Run folders in the order of their paths; a named folder without a run stays in it, to be shown as broken."""
    problems: tuple[str, ...] = ()
    """Reasons why the list may be incomplete."""


def is_run(folder: Path) -> bool:
    """True if the folder holds a file of a run, readable or not."""
    return any(os.path.lexists(folder / name) for name in _MARKS)


def holds_runs_below(folder: Path) -> bool:
    """True if the folder is not a run itself and holds at least one."""
    return folder.is_dir() and not is_run(folder) and next(_walk(folder, [0]), None) is not None


def find_runs(named: Sequence[Path]) -> FoundRuns:
    """Runs among the named folders and below them, each once. Links are not followed, and runs hold no runs."""
    folders: dict[Path, None] = {}
    problems: list[str] = []
    for folder in named:
        visits, any_below = [0], False
        for run in [folder] if is_run(folder) else _walk(folder, visits):
            any_below = True
            if len(folders) >= MAX_RUNS:
                problems.append(
                    f"folder {folder}: holds more runs; the first {MAX_RUNS:,} are listed: name a subfolder"
                )
                break
            folders[run] = None
        if visits[0] > MAX_FOLDERS:
            problems.append(f"folder {folder}: only its first {MAX_FOLDERS:,} folders were searched: name a subfolder")
        if not any_below:
            folders[folder] = None
    return FoundRuns(folders=tuple(folders), problems=tuple(problems))


def _walk(folder: Path, visits: list[int], depth: int = 0) -> Iterator[Path]:
    """Run folders below a folder, in the order of their names. `visits` counts the folders looked into."""
    visits[0] += 1
    if visits[0] > MAX_FOLDERS:
        return
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:  # a folder of another user: its runs cannot be read either
        return
    for name in names:
        inner = folder / name
        if is_run(inner):
            yield inner
        elif depth < MAX_DEPTH:
            yield from _walk(inner, visits, depth + 1)
