"""The version of the package, and what the changelog says of it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import gymcp

ROOT = Path(__file__).parents[1]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_newest_section_of_the_changelog_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    sections = re.findall(r"^## (\d+\.\d+\.\d+)( \(unreleased\))?$", CHANGELOG, flags=re.MULTILINE)
    assert sections[0][0] == project["version"] == gymcp.__version__
    assert [mark for _, mark in sections[1:] if mark] == []  # only the newest can be unreleased


def test_the_page_on_installation_names_the_wheel_of_this_version() -> None:
    page = (ROOT / "docs" / "start" / "install.md").read_text(encoding="utf-8")
    assert f"dist/gymcp-{gymcp.__version__}-py3-none-any.whl" in page
