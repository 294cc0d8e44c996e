"""What the machine may lack: tests that need it are skipped, or fail when GYMCP_REQUIRE_ALL=1."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import settings

from gymcp.errors import SandboxUnavailable
from gymcp.mcp_servers.sandbox import check_images, get_sandbox

settings.register_profile("gymcp", deadline=None)  # how long an example takes says how busy the machine is
settings.load_profile("gymcp")


@pytest.fixture(scope="session")
def node() -> None:
    """node where the sandbox shows it, and npm."""
    if not Path("/usr/bin/node").exists() or shutil.which("npm") is None:
        if os.environ.get("GYMCP_REQUIRE_ALL") == "1":
            pytest.fail("no /usr/bin/node, or no npm: apt-get install nodejs npm")
        pytest.skip("no /usr/bin/node, or no npm")


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser that pages are looked at with."""
    if found := shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome"):
        return found
    if os.environ.get("GYMCP_REQUIRE_ALL") == "1":
        pytest.fail("no chromium: apt-get install chromium")
    pytest.skip("no chromium")


@pytest.fixture(scope="session")
def engine() -> None:
    """A Docker engine with the base image."""
    docker = get_sandbox("docker")
    try:
        docker.check()
        check_images(docker, [None])
    except SandboxUnavailable as error:
        if "1" in (os.environ.get("GYMCP_REQUIRE_ALL"), os.environ.get("GYMCP_REQUIRE_DOCKER")):
            pytest.fail(str(error))
        pytest.skip(str(error))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the figures that tests have recorded, such as the agreement with a third party's own checker."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{name}: {value}")
