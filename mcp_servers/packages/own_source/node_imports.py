"""The JavaScript files that a program of the user's own imports from its folder, found in the text of its imports."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from gymcp.mcp_servers.packages.install_request import Program
from gymcp.mcp_servers.packages.own_source.files import SourceFiles
from gymcp.mcp_servers.packages.own_source.metadata import decode
from gymcp.mcp_servers.packages.own_source.typescript import TYPESCRIPT

_CODE = (".js", ".mjs", ".cjs", *TYPESCRIPT)
_SUFFIXES = ("", ".js", ".mjs", ".cjs", ".json", ".ts", "/index.js", "/index.mjs", "/index.cjs", "/index.ts")
_COMPILED = re.compile(r"\.([cm]?)js$")
"""Ending under which TypeScript imports a file that is TypeScript, too."""
_IMPORT = re.compile(r"""(?:\bfrom|\bimport|\brequire)\s*\(?\s*["'](?P<path>\.{1,2}/[^"'\n]+|\.{1,2})["']""")


def add_node_files(who: str, files: SourceFiles, folder: Path, program: Program) -> None:
    """Read the program, its package.json, and every file of its folder that it imports by a relative path.

    Raises ConfigError.
    """
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
        candidates = (Path(name) for name in (*(stem + suffix for suffix in _SUFFIXES), _COMPILED.sub(r".\1ts", stem)))
        file = next((path for path in candidates if path.is_file()), None)
        if file is not None:
            yield file
