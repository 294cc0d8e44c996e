"""The pinned packages can be installed on every Python that this one supports."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]


def test_no_pinned_package_needs_a_newer_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    names = [line.partition("==")[0].strip() for line in lines if "==" in line and not line.startswith("#")]
    needs = {name: find_python(name) for name in names}
    assert any(needs.values())
    assert [name for name, python in needs.items() if python and oldest not in SpecifierSet(python)] == []


def find_python(name: str) -> str:
    """Versions of Python for which the installed package was made; empty if it is not installed or does not say."""
    try:
        return metadata(name)["Requires-Python"] or ""
    except PackageNotFoundError:
        return ""
