"""Values that the shell offers for an option, read from small tables and the file system."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import gymcp
from gymcp.cli import known_names
from gymcp.user_code import AGENT_PLUGINS, ENVIRONMENT_PLUGINS, PRESET_PLUGINS, find_plugins

MAX_OFFERED = 200
"""Most files or folders that are offered."""
MAX_SEARCHED = 1000
"""Most folders in which runs are searched."""
RUN_DEPTH = 3
"""Levels of folders below the typed one in which runs are searched."""
RUN_FILES = ("run.json", "training.json")
"""Files that mark the folder of a run, or of a training run."""
CATALOG = Path(gymcp.__file__).parent / "envs" / "catalog"


def offer(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Completer for a fixed list of names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def list_environments() -> list[str]:
    """Names in the catalog, without importing it."""
    return sorted(file.stem for file in CATALOG.glob("*.py") if file.stem != "__init__")


def complete_suite(incomplete: str) -> list[str]:
    """Names in the catalog, and of environments that installed packages bring."""
    own = list_environments()
    return offer([*own, *(name for name in find_plugins(ENVIRONMENT_PLUGINS) if name not in own)])(incomplete)


def complete_agent(incomplete: str) -> list[str]:
    """Names of agents, also of those that installed packages bring, and Python files in the folder that was typed."""
    return _complete_code(known_names.AGENTS, AGENT_PLUGINS, incomplete)


def complete_environment(incomplete: str) -> list[str]:
    """Names of environments, and Python files in the folder that was typed."""
    return [*complete_suite(incomplete), *_find_files(incomplete, ".py")]


def complete_run(incomplete: str) -> list[str]:
    """Run folders at most `RUN_DEPTH` levels below the folder that was typed; the nearest `MAX_OFFERED`."""
    typed, beginning = _split(incomplete)
    top = _expand(typed)
    runs = _find_runs(_list_folders(top, beginning))
    return sorted(f"{typed}{path.relative_to(top)}" for path in itertools.islice(runs, MAX_OFFERED))


def complete_preset(incomplete: str) -> list[str]:
    """Presets of credit, also those of installed packages, and Python files in the folder that was typed."""
    return _complete_code(known_names.PRESETS, PRESET_PLUGINS, incomplete)


def _complete_code(own: Sequence[str], plugins: str, incomplete: str) -> list[str]:
    """Names of gymcp's own objects and of plug-ins, and ``FILE.py:`` for the files in the folder that was typed."""
    files = [f"{file}:" for file in _find_files(incomplete, ".py")]
    return [*offer([*own, *(name for name in find_plugins(plugins) if name not in own)])(incomplete), *files]


def _find_files(incomplete: str, suffix: str) -> list[str]:
    typed, beginning = _split(incomplete)
    entries = _list_folder(_expand(typed))
    names = [entry.name for entry in entries if entry.name.startswith(beginning) and entry.name.endswith(suffix)]
    return [f"{typed}{name}" for name in names[:MAX_OFFERED]]


def _split(incomplete: str) -> tuple[str, str]:
    """The folder as it was typed, with its slash, and the beginning of a name in it.

    What is offered begins with the first, ``./`` and ``~/`` too, because the shell drops every other value.
    """
    folder, slash, beginning = incomplete.rpartition("/")
    return folder + slash, beginning


def _expand(typed: str) -> Path:
    """The folder that was typed, below the home if it begins with ``~``."""
    try:
        return Path(typed).expanduser()
    except RuntimeError:  # no such user
        return Path(typed)


def _find_runs(folders: Sequence[Path]) -> Iterator[Path]:
    """Runs among the folders and below them, level by level; at most `MAX_SEARCHED` folders are looked into."""
    searched = 0
    for _ in range(RUN_DEPTH):
        below: list[Path] = []
        for path in folders:
            if any(_is_file(path / name) for name in RUN_FILES):
                yield path
            elif searched < MAX_SEARCHED:
                searched += 1
                below += _list_folders(path)
        folders = below


def _list_folders(folder: Path, beginning: str = "") -> list[Path]:
    """Folders in a folder whose name begins like that, without hidden ones and links."""
    entries = [entry for entry in _list_folder(folder) if entry.name.startswith(beginning) and entry.name[0] != "."]
    return [folder / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def _is_file(path: Path) -> bool:
    """True for a file; False for anything that this user cannot see."""
    try:
        return path.is_file()
    except OSError:
        return False


def _list_folder(folder: Path) -> list[os.DirEntry[str]]:
    """Entries in the order of their names; none for a folder that cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(itertools.islice(entries, 10 * MAX_OFFERED), key=lambda entry: entry.name)
    except OSError:
        return []
