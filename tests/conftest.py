"""Programs and privileges that a machine may lack: tests that need them are skipped, or fail if GYMCP_REQUIRE_ALL=1."""

from __future__ import annotations

import gc
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from equipment import is_required, lacking, usable
from hypothesis import HealthCheck, settings
from tiers import mark

from gymcp.agents.policies.vllm.install import CPU, ensure_vllm, vllm_python
from gymcp.envs.suites.scienceworld.java import JavaRuntime, find_java
from gymcp.errors import UsageError

MAX_NAME_CHARS = 100
"""Characters of a parameter in the name of a test."""

settings.register_profile(  # the time of an example depends on the load of the machine
    "gymcp", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("gymcp")


@pytest.fixture(scope="session")
def node() -> None:
    """node where the sandbox shows it, and npm."""
    if not Path("/usr/bin/node").exists() or shutil.which("npm") is None:
        lacking("node", "no /usr/bin/node, or no npm: apt-get install nodejs npm")


@pytest.fixture(scope="session")
def git_program() -> None:
    """git, in PATH."""
    if shutil.which("git") is None:
        lacking("git", "no git: apt-get install git")


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser that pages are looked at with."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    return found or lacking("chromium", "no chromium: apt-get install chromium")


@pytest.fixture(scope="session")
def java() -> JavaRuntime:
    """The Java runtime in PATH."""
    try:
        return find_java()
    except UsageError as error:
        lacking("java", str(error))


@pytest.fixture(scope="session")
def vllm_is_installed() -> None:
    """Install vLLM if no test may be skipped, which takes minutes and 3 GB; else skip the tests if it is missing."""
    if vllm_python(CPU) is not None:
        return
    if not is_required("vllm"):
        pytest.skip("vLLM is not set up: gymcp serve MODEL --cpu")
    began = time.monotonic()
    print("installing vLLM for its tests: some minutes, 3 GB", file=sys.__stderr__, flush=True)
    ensure_vllm(CPU, lambda line: None)
    print(f"vLLM is installed after {time.monotonic() - began:.0f} s", file=sys.__stderr__, flush=True)


@pytest.fixture(scope="session")
def engine() -> None:
    """A Docker engine with the base image."""
    usable("docker")


def pytest_make_parametrize_id(val: object) -> str | None:
    """A short name for a long text: every report of a test carries its name, to a child in its environment too."""
    if not isinstance(val, str | bytes) or len(val) <= MAX_NAME_CHARS:
        return None
    return f"{val[:MAX_NAME_CHARS]!a}... of {len(val)}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage meanwhile, nor later look for it in what is there by then: modules and thousands of tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark(items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the figures that tests have recorded, such as the agreement with a third party's own checker."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{name}: {value}")
