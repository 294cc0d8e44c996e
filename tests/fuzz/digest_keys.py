"""Keys of random worlds: from a digester that has seen the world before, and from one that has not."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from gymcp.mcp_servers.programs.digest.server import DigestService, make_reader
from gymcp.mcp_servers.programs.digest.tree import Tree

LIMITS = {"bytes": 10_000_000, "entries": 10_000, "depth": 64, "seconds": 60.0}
Op = tuple[Any, ...]


def open_service(folder: Path, kind: str, path: str = ".") -> DigestService:
    """A digester of the folder, which keeps it open."""
    tree = Tree(LIMITS, [], time.time_ns())
    return DigestService(tree, make_reader(kind, tree), os.open(folder, os.O_RDONLY | os.O_DIRECTORY), path)


def ask_key(service: DigestService, *, again: bool = False) -> str:
    answer = service.answer({"op": "key", "again": again})
    assert "key" in answer, answer
    return str(answer["key"])


def ask_fresh_key(folder: Path, kind: str, path: str = ".") -> str:
    service = open_service(folder, kind, path)
    try:
        return ask_key(service)
    finally:
        os.close(service._root)


@contextlib.contextmanager
def make_folders(count: int) -> Iterator[list[Path]]:
    """Empty folders, and a folder for temporary files beside them."""
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        (Path(root) / "tmp").mkdir()
        patch.setenv("TMPDIR", f"{root}/tmp")
        made = [Path(root) / str(number) for number in range(count)]
        for folder in made:
            folder.mkdir(mode=0o755)
        yield made


fuzz_settings = settings(deadline=None, suppress_health_check=list(HealthCheck))
