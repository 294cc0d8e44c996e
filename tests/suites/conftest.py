"""Fixtures for the suite BFCL, installed once in gymcp's cache: only the first session needs a package index.

Tests that use them run in one process, which reads its 800 tasks and asks its servers for their tools once.
"""

from pathlib import Path

import pytest
from bfcl_replay import ToolsByClass, list_tools_by_class

from gymcp.envs.suites.bfcl.suite import install_bfcl, load_suite
from gymcp.envs.suites.upstream.file_layout import SuiteFiles
from gymcp.types import Suite, Task

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and "files" in item.fixturenames and HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("bfcl"))


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
