"""The Python files that a program of the user's own imports, found in the text of its import statements."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gymcp.errors import ConfigError
from gymcp.mcp_servers.packages.install_request import Program
from gymcp.mcp_servers.packages.own_source.files import SourceFiles
from gymcp.mcp_servers.packages.own_source.metadata import decode

MAX_PARSED_BYTES = 5_000_000
"""Bytes of the longest Python file that is parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imports:
    """Result of following the imports of a program."""

    roots: tuple[str, ...]
    """Folders to import from, relative to the source's folder; the first is the program's own."""
    foreign: tuple[str, ...]
    """Top-level modules that are neither Python's own nor the source's."""


def add_python_files(who: str, files: SourceFiles, folder: Path, program: Program, module: str) -> Imports:
    """Read the program and every module and package of its folder that it imports.

    `module`: dotted name of the module of a program that is not a file. A file stands for itself; of a package, every
    file is read, because its data and late imports are not named anywhere. Raises ConfigError.
    """
    roots = _list_roots(folder, program)
    if program.file:
        pending = [files.add_file(folder / program.file)]
    else:
        top = module.split(".", maxsplit=1)[0]
        pending = _add_module(files, [folder / root for root in roots], top)
        if not pending:
            raise ConfigError(f"{who}: no module '{top}' in {' or '.join(str(folder / root) for root in roots)}")
    seen, foreign = set[str](), set[str]()
    parsed = set[str]()
    while pending:
        name = pending.pop()
        if name in parsed or not name.endswith(".py"):
            continue
        parsed.add(name)
        for top in _find_imports(who, name, files.contents[name]) - seen:
            seen.add(top)
            added = _add_module(files, [folder / root for root in roots], top)
            pending += added
            if not added and top not in sys.stdlib_module_names:
                foreign.add(top)
    return Imports(roots=tuple(roots), foreign=tuple(sorted(foreign)))


def _list_roots(folder: Path, program: Program) -> list[str]:
    """The program's own folder, ``src`` if it is there, and the source's folder."""
    own = str(PurePosixPath(program.file).parent) if program.file else "."
    roots = [own, *(["src"] if (folder / "src").is_dir() else []), "."]
    return list(dict.fromkeys(roots if program.file else [*roots[1:-1], "."]))


def _add_module(files: SourceFiles, roots: Sequence[Path], top: str) -> list[str]:
    """Paths of the files of a module or a package; empty if no root has it, or Python itself comes first."""
    for root in roots:
        if (root / top / "__init__.py").is_file():
            return files.add_folder(root / top)
        if (root / f"{top}.py").is_file():
            return [files.add_file(root / f"{top}.py")]
    if top in sys.stdlib_module_names:
        return []
    for root in roots:  # a namespace package, which yields to every other module of its name
        if (root / top).is_dir() and any((root / top).glob("*.py")):
            return files.add_folder(root / top)
    return []


def _find_imports(who: str, name: str, content: bytes) -> set[str]:
    """Top-level names of all modules that the file imports, also inside functions."""
    if len(content) > MAX_PARSED_BYTES:
        raise ConfigError(
            f"{who}: '{name}' has more than {MAX_PARSED_BYTES:,} bytes; keep data in other files than code"
        )
    text = decode(who, name, content)
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(text, name)
    except SyntaxError as error:
        raise ConfigError(f"{who}: '{name}', line {error.lineno}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{who}: '{name}' cannot be parsed: {error}") from error
    return set(_top_names(tree))


def _top_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]
