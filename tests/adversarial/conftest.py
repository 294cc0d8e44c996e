"""The sandbox of the attacks: without bubblewrap they are skipped, or fail when GYMCP_REQUIRE_ALL=1."""

from __future__ import annotations

import os

import pytest

from gymcp.errors import SandboxUnavailable
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap


@pytest.fixture(scope="session")
def bwrap() -> Bubblewrap:
    sandbox = Bubblewrap()
    try:
        sandbox.check()
    except SandboxUnavailable as error:
        if os.environ.get("GYMCP_REQUIRE_ALL") == "1":
            pytest.fail(str(error))
        pytest.skip(str(error))
    return sandbox
