"""The JavaScript files that a program of the user's own imports from its folder, found in the text of its imports."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from gymcp.errors import ConfigError
from gymcp.mcp_servers.packages.install_request import Program
from gymcp.mcp_servers.packages.node import NODE
from gymcp.mcp_servers.packages.own_source.files import SourceFiles
from gymcp.mcp_servers.packages.own_source.metadata import decode

TYPESCRIPT = (".ts", ".mts", ".cts")
RUNS_TYPESCRIPT = (22, 18)
"""Oldest version of node that runs TypeScript as it is, by leaving the types out."""
_CODE = (".js", ".mjs", ".cjs", *TYPESCRIPT)
_SUFFIXES = ("", ".js", ".mjs", ".cjs", ".json", ".ts", "/index.js", "/index.mjs", "/index.cjs", "/index.ts")
_IMPORT = re.compile(r"""(?:\bfrom|\bimport|\brequire)\s*\(?\s*["'](?P<path>\.{1,2}/[^"'\n]+|\.{1,2})["']""")


def add_node_files(who: str, files: SourceFiles, folder: Path, program: Program) -> None:
    """Read the program, its package.json, and every file of its folder that it imports by a relative path.

    Raises ConfigError, also for TypeScript that the node of this machine does not run.
    """
    if program.name.endswith(TYPESCRIPT):
        _refuse_typescript(who, program.name)
    pending = [files.add_file(folder / program.name)]
    if (folder / "package.json").is_file():
        files.add_file(folder / "package.json")
    parsed = set[str]()
    while pending:
        name = pending.pop()
        if name in parsed or not name.endswith(_CODE):
            continue
        parsed.add(name)
        text = decode(who, name, files.contents[name])
        pending += [files.add_file(path) for path in _find_imported((folder / name).parent, text)]


def _find_imported(folder: Path, text: str) -> Iterator[Path]:
    """Files that the relative imports of a text name. One that is missing is for node to report: it may be optional."""
    for match in _IMPORT.finditer(text):
        stem = os.path.normpath(folder / match["path"])
        candidates = (Path(stem + suffix) for suffix in _SUFFIXES)
        found = next((path for path in candidates if path.is_file()), None)
        if found is not None:
            yield found


def _refuse_typescript(who: str, name: str) -> None:
    """Raise ConfigError if the node that the sandbox shows does not run TypeScript."""
    version = _node_version()
    if version < RUNS_TYPESCRIPT:
        raise ConfigError(
            f"{who}: '{name}' is TypeScript, which node {version[0]}.{version[1]} does not run (22.18 and newer do); "
            "build it, and give the JavaScript: node dist/FILE.js"
        )


@functools.cache
def _node_version() -> tuple[int, int]:
    try:
        done = subprocess.run([str(NODE), "--version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0, 0
    match = re.match(r"v(\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)
