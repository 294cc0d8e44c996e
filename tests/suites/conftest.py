"""The suite, installed once in gymcp's cache: the first session needs a package index, later ones do not."""

import pytest
from bfcl_replay import ToolsByClass, served_tools

from gymcp.envs.suites.bfcl.suite import install_bfcl, load_suite
from gymcp.envs.suites.upstream.suite_files import SuiteFiles
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
    return served_tools(files)
