"""The suite, installed once in gymcp's cache: the first session needs a package index, later ones do not."""

import pytest
from bfcl_played import ToolsByClass, served_tools

from gymcp.envs.suites.bfcl import BfclFiles, install_bfcl, load_suite
from gymcp.types import Suite, Task


@pytest.fixture(scope="session")
def files() -> BfclFiles:
    return install_bfcl()


@pytest.fixture(scope="session")
def suite(files: BfclFiles) -> Suite:
    return load_suite()


@pytest.fixture(scope="session")
def tasks(suite: Suite) -> dict[str, Task]:
    return {task.id: task for task in suite.tasks}


@pytest.fixture(scope="session")
def tools(files: BfclFiles) -> ToolsByClass:
    return served_tools(files)
