"""Folders with programs of one's own, and what is read of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gymcp.mcp_servers.packages.commands import parse_command
from gymcp.mcp_servers.packages.install_request import InstallRequest
from gymcp.mcp_servers.packages.own_source.source import OwnSource, read_source

SCRIPT = """\
# /// script
# requires-python = ">=3.9"
# dependencies = ["mcp>=2", "rich"]
# ///
import json
import store
from deep.inner import thing
"""
PROJECT = """\
[project]
name = "weather-tools"
version = "1.4"
dependencies = ["mcp"]
scripts = {weather = "weather.cli:main"}
"""


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def request(line: str, folder: Path, **more: object) -> InstallRequest:
    return replace(parse_command(line, base=folder), **more)  # type: ignore[arg-type]


def source(line: str, folder: Path, **more: object) -> OwnSource:
    return read_source(request(line, folder, **more))


def write_shop(folder: Path) -> Path:
    """A program, what it imports, and files beside it that are not its business."""
    tree = {
        "kv_server.py": SCRIPT,
        "store.py": "import helper_of_store",
        "helper_of_store.py": "",
        "deep/__init__.py": "",
        "deep/inner.py": "",
        "deep/data.json": "{}",
        "deep/__pycache__/inner.cpython-311.pyc": "",
        "gold.py": "SECRET = 'gold'",
        "notes.txt": "mine",
    }
    return write(folder, tree)
