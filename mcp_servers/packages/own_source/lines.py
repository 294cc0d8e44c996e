"""Parse command lines that start a program of the user's own: ``python``, ``node`` and ``uv run``.

Nothing of the program is run or imported: its files are looked at by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gymcp.errors import ConfigError
from gymcp.mcp_servers.packages.install_request import InstallRequest, Program
from gymcp.mcp_servers.packages.own_source.files import to_plain_path
from gymcp.mcp_servers.packages.own_source.metadata import only_script, read_json, split_requirements
from gymcp.mcp_servers.packages.own_source.typescript import TYPESCRIPT

PYTHON_FILES, NODE_FILES = (".py",), (".js", ".mjs", ".cjs", *TYPESCRIPT)
PROJECT_FILES = ("pyproject.toml", "package.json")
MAX_PARENTS = 4
"""Folders above a JavaScript file in which its package.json is looked for."""
_PYTHON_WORDS = ("-u", "-s", "-B", "-I", "-E")
"""Options of the interpreter that change nothing inside the sandbox."""
_VERSIONED = re.compile(r"python(3\.\d+)")


def advise_source(text: str, otherwise: str) -> str:
    """Advice for a command that names a repository or a folder in place of a package; else the first line of
    `otherwise`."""
    if text.startswith("git+") or "://" in text:
        return "it is a repository or a file elsewhere: fetch it, and lock its folder with --path FOLDER"
    if text.startswith((".", "/", "~")):
        return f"it is a folder or a file of your own: lock it with --path {text}"
    return otherwise.splitlines()[0]


def parse_python(who: str, words: Sequence[str], base: Path, start: Path, *, project: bool = False) -> InstallRequest:
    """Parse the words after ``python``: a file, or ``-m`` and a module of the folder `start`.

    `base`: folder that the request's paths are relative to. `start`: folder that the paths in the words are relative
    to. `project`: the program is part of the project in `start`; otherwise a file's own folder is its root. Raises
    ConfigError.
    """
    rest = list(words)
    while rest and rest[0] in _PYTHON_WORDS:
        rest.pop(0)
    if rest[:1] == ["-m"] and len(rest) > 1:
        return _request(Program(folder=_relative(start, base), kind="module", name=rest[1]), rest[2:], "python")
    if not rest or rest[0].startswith("-"):
        raise ConfigError(f"{who}: python '{' '.join(words)}' is not understood; have python FILE.py, python -m MODULE")
    file = _find_file(who, start / rest[0], PYTHON_FILES)
    root = to_plain_path(start)
    folder = root if project and file.is_relative_to(root) else file.parent
    name = str(file.relative_to(folder))
    return _request(Program(folder=_relative(folder, base), kind="file", name=name), rest[1:], "python")


def parse_uv(who: str, words: Sequence[str], base: Path, start: Path) -> InstallRequest:
    """Parse the words after ``uv``: ``run`` of a file, a module or a console script. Raises ConfigError."""
    rest, added, project = list(words), list[str](), start if (start / "pyproject.toml").is_file() else None
    known = "have uv run [--directory FOLDER] [--with PACKAGE] [--python 3.N] FILE.py, python -m MODULE or SCRIPT"
    ran, version = False, ""
    while rest and (rest[0].startswith("-") or not ran):
        option, equals, value = rest.pop(0).partition("=")
        if option == "run" and not ran:
            ran = True
        elif option in ("--directory", "--project", "--with", "--python", "-p") and (equals or rest):
            value = value if equals else rest.pop(0)
            if option == "--with":
                added += split_requirements(value)
            elif option in ("--python", "-p"):
                version = value
            else:
                project = _find_folder(who, start / value)
        elif option not in ("--script", "-s", "--quiet", "-q", "--no-project", "--isolated", "--frozen", "--locked"):
            raise ConfigError(f"{who}: uv option '{option}' is not understood; {known}")
    if not rest:
        raise ConfigError(f"{who}: uv run of no program; {known}")
    return replace(_parse_program(who, rest, base, project, start), added=tuple(added), python=version)


def parse_node(who: str, words: Sequence[str], base: Path, start: Path) -> InstallRequest:
    """Parse the words after ``node``: a file, whose package.json is beside it or above. Raises ConfigError."""
    if not words or words[0].startswith("-"):
        raise ConfigError(f"{who}: node '{' '.join(words)}' is not understood; have node FILE.js")
    file = _find_file(who, start / words[0], NODE_FILES)
    parents = file.parents[:MAX_PARENTS]
    folder = next((parent for parent in parents if (parent / "package.json").is_file()), file.parent)
    name = str(file.relative_to(folder))
    return _request(Program(folder=_relative(folder, base), kind="file", name=name), list(words[1:]), "node")


def replace_runner(words: tuple[str, ...]) -> tuple[str, ...]:
    """The same line for a program that is known; else the same words.

    ``node FILE.ts`` for one that runs a TypeScript file by a program such as ``npx tsx``, ``uv run mcp run`` for ``mcp
    run``, ``uv run --python 3.12 python`` for ``python3.12``.

    The runner itself is not used: the sandbox leaves the types out by itself (`typescript`).
    """
    if words and (version := _VERSIONED.fullmatch(Path(words[0]).name)):
        return ("uv", "run", "--python", version[1], "python", *words[1:])
    if words[:1] in (("mcp",), ("fastmcp",)):
        return ("uv", "run", *words)
    rest = [word for word in words[1:] if word not in ("-y", "--yes")] if words[:1] == ("npx",) else list(words)
    runs = rest[:1] in (["tsx"], ["ts-node"]) and len(rest) > 1 and rest[1].endswith(TYPESCRIPT)
    return ("node", *rest[1:]) if runs else words


def words_of_folder(who: str, folder: Path, words: Sequence[str]) -> tuple[str, ...]:
    """Command line for ``--path FOLDER``; without `words`, the folder's only program is found.

    Raises ConfigError for a folder without metadata, or with several programs.
    """
    _find_folder(who, folder)
    there = [name for name in PROJECT_FILES if (folder / name).is_file()]
    words = replace_runner(tuple(words))
    if words and words[0] == "node":
        return ("node", str(folder / words[1]), *words[2:]) if words[1:] else ("node",)
    if words:
        if "pyproject.toml" not in there and not (folder / "requirements.txt").is_file():
            hint = f"name the dependencies there, or lock a file that names them itself: python {folder}/FILE.py"
            raise ConfigError(f"{who}: folder '{folder}' has no pyproject.toml and no requirements.txt; {hint}")
        words = words[2:] if words[:2] == ("uv", "run") else words
        return ("uv", "run", "--directory", str(folder), *words)
    if len(there) != 1:
        has = "has both pyproject.toml and package.json" if there else "has neither pyproject.toml nor package.json"
        program = f"say which program starts the server: gymcp servers add --path {folder} 'python -m MODULE'"
        hint = program if there else f"a single file: python {folder}/FILE.py"
        raise ConfigError(f"{who}: folder '{folder}' {has}; {hint}")
    if there == ["package.json"]:
        return ("node", str(folder / _node_entry(who, folder)))
    return ("uv", "run", "--directory", str(folder), only_script(who, folder))


def _node_entry(who: str, folder: Path) -> str:
    """File that package.json names as the program: its only ``bin``, else ``main``."""
    content = read_json(who, folder / "package.json")
    programs = content.get("bin", {})
    entries = [programs] if isinstance(programs, str) else list(programs.values()) if isinstance(programs, dict) else []
    entries = list(dict.fromkeys(entries)) or [content.get("main")]
    if len(entries) != 1 or not isinstance(entries[0], str):
        raise ConfigError(
            f"{who}: package.json of '{folder}' names {'no' if entries[0] is None else 'more than one'} program (bin,"
            f" main); say which file: gymcp servers add 'node {folder}/FILE.js'"
        )
    return entries[0]


def _parse_program(who: str, words: Sequence[str], base: Path, project: Path | None, start: Path) -> InstallRequest:
    """Request for the words after ``uv run`` and its options; `project`: folder of the project, if it is known."""
    folder = project or start
    if words[0].endswith(PYTHON_FILES):
        return parse_python(who, words, base, folder, project=project is not None)
    if words[0] in ("mcp", "fastmcp") and len(words) > 1:
        return _parse_run(who, words, base, folder, is_project=project is not None)
    if words[0] in ("python", "python3"):
        return parse_python(who, words[1:], base, folder, project=project is not None)
    return _request(Program(folder=_relative(folder, base), kind="script", name=words[0]), words[1:], "python")


def _parse_run(who: str, words: Sequence[str], base: Path, folder: Path, *, is_project: bool) -> InstallRequest:
    """Request for ``mcp run FILE.py[:NAME]``, which runs the server object of a file."""
    rest = [word for word in words[1:] if word not in ("--transport=stdio", "--no-banner")]
    if len(rest) != 2 or rest[0] != "run":
        raise ConfigError(f"{who}: '{' '.join(words)}' is not understood; have {words[0]} run FILE.py[:OBJECT]")
    path, _, name = rest[1].partition(":")
    if name and not name.isidentifier():
        raise ConfigError(f"{who}: '{name}' is not the name of an object of {path}")
    program = parse_python(who, [path], base, folder, project=is_project).own
    assert program is not None
    full = f"{program.name}:{name}" if name else program.name
    return _request(replace(program, kind="object", name=full), [], "python")


def _request(program: Program, args: Sequence[str], runtime: str) -> InstallRequest:
    return InstallRequest(
        name="",
        runtime="node" if runtime == "node" else "python",
        package=program.path,
        version=None,
        own=program,
        args=tuple(args),
    )


def _find_file(who: str, path: Path, endings: Sequence[str]) -> Path:
    """Absolute path of a file with one of the endings. Links stay as they are."""
    file = to_plain_path(path)
    if not file.is_file():
        raise ConfigError(f"{who}: file '{path}' is not there")
    if file.suffix not in endings:
        have = ", ".join(f"FILE{ending}" for ending in endings)
        raise ConfigError(f"{who}: file '{path}' is not a program; have {have}")
    return file


def _find_folder(who: str, path: Path) -> Path:
    folder = to_plain_path(path)
    if folder.is_file():
        raise ConfigError(f"{who}: '{path}' is a file, not a folder; give it as a command, such as python FILE.py")
    if not folder.is_dir():
        raise ConfigError(f"{who}: folder '{path}' is not there")
    return folder


def _relative(path: Path, base: Path) -> str:
    """Path from `base` on, which begins with a dot."""
    relative = os.path.relpath(path, base)
    return relative if relative.startswith(".") else f"./{relative}"
