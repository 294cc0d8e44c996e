"""The same attacks on every sandbox that confines; a missing one is skipped, or fails.

Failing is asked for with GYMCP_REQUIRE_ALL=1, GYMCP_REQUIRE_BWRAP=1 (what `make test` does) or GYMCP_REQUIRE_DOCKER=1.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from gymcp.errors import SandboxUnavailable
from gymcp.mcp_servers.sandbox import Launch, Sandbox, check_images, get_sandbox
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A server that ran to its end, by itself or not."""

    out: str
    err: str
    status: int
    limit: str | None


@pytest.fixture(scope="session", params=["bwrap", "docker"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    found = get_sandbox(request.param)
    try:
        found.check()
        check_images(found, [None])
    except SandboxUnavailable as error:
        if "1" in (os.environ.get("GYMCP_REQUIRE_ALL"), os.environ.get(f"GYMCP_REQUIRE_{request.param.upper()}")):
            pytest.fail(str(error))
        pytest.skip(str(error))
    return found


@pytest.fixture(scope="session")
def attack(sandbox: Sandbox) -> Callable[..., Ended]:
    """Runs Python code in the sandbox to its end."""

    def run(code: str, launch: Launch | None = None) -> Ended:
        python = replace(launch or Launch(argv=()), argv=("python3", "-I", "-S", "-c", code))

        async def to_end() -> Ended:
            async with asyncio.timeout(TIMEOUT_S), sandbox.start(python) as process:
                out = await process.stdout.read()
                status = await process.wait()
                return Ended(out=out.decode(), err=process.stderr_tail(), status=status, limit=process.limit_hit())

        return asyncio.run(to_end())

    return run


@pytest.fixture(scope="session")
def bwrap() -> Bubblewrap:
    sandbox = Bubblewrap()
    try:
        sandbox.check()
    except SandboxUnavailable as error:
        if "1" in (os.environ.get("GYMCP_REQUIRE_ALL"), os.environ.get("GYMCP_REQUIRE_BWRAP")):
            pytest.fail(str(error))
        pytest.skip(str(error))
    return sandbox
