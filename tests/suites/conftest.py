"""Fixtures for the suite BFCL, installed once in gymcp's cache: only the first session needs a package index."""

import pytest
from bfcl_replay import ToolsByClass, list_tools_by_class

from gymcp.envs.suites.bfcl.suite import install_bfcl, load_suite
from gymcp.envs.suites.upstream.file_layout import SuiteFiles
from gymcp.types import Suite, Task


@pytest.fixture(scope="session")
def files() -> SuiteFiles:
    return install_bfcl()


@pytest.fixture(scope="session")
def suite(files: SuiteFiles) -> Suite:
    return load_suite()


@pytest.fixture(scope="session")
def tasks(suite: Suite) -> dict[str, Task]:
    return {task.id: task for task in suite.tasks}


@pytest.fixture(scope="session")
def tools(files: SuiteFiles) -> ToolsByClass:
    return list_tools_by_class(files)
