"""Walls that faulty servers are put behind; a missing one is skipped, or fails where the machine must have it."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from gymcp.errors import SandboxUnavailable
from gymcp.mcp_servers.sandbox import check_images, get_sandbox


@pytest.fixture(scope="session")
def require() -> Callable[[str], None]:
    """Skips the test, or fails, where the sandbox of that name cannot be used."""

    def check(name: str) -> None:
        try:
            get_sandbox(name).check()
            check_images(get_sandbox(name), [None])
        except SandboxUnavailable as error:
            if "1" in (os.environ.get("GYMCP_REQUIRE_ALL"), os.environ.get(f"GYMCP_REQUIRE_{name.upper()}")):
                pytest.fail(str(error))
            pytest.skip(str(error))

    return check
