"""Digest helpers that die, hang, or have more rights than they need."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from digesting import READ_ALL, digest_here, helpers, run_with_digester, set_workspace_mode, way

from gymcp.errors import Undigestible
from gymcp.mcp_servers.sandbox import SandboxProcess
from gymcp.mcp_servers.spec import FileState
from gymcp.mcp_servers.workspaces.digester import Digester

__all__ = ["set_workspace_mode", "way"]  # the fixtures, used by every test

pytestmark = pytest.mark.usefixtures("bwrap")


def test_a_dead_helper_is_replaced_by_one_with_the_same_digests(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1")

    async def work(digester: Digester) -> None:
        before = await digester.state(await digester.key())
        digester._process.stdin.write(b"this is not JSON\n")
        await digester._process.wait()
        assert await digester.key() == before[0]
        (tmp_path / "file").write_text("2")
        assert await digester.state(await digester.key()) == digest_here(tmp_path)

    run_with_digester(tmp_path, work)


def test_a_workspace_that_ends_every_helper_has_no_digest(tmp_path: Path) -> None:
    """Stands for a crafted file that ends its helper: here each helper gets a line that ends it."""

    async def work(digester: Digester) -> None:
        await digester.key()
        start = digester._start_another

        async def start_broken() -> SandboxProcess:
            process = await start()
            process.stdin.write(b"this is not JSON\n")
            await process.wait()
            return process

        digester._start_another = start_broken
        digester._process.stdin.write(b"this is not JSON\n")
        await digester._process.wait()
        with pytest.raises(Undigestible, match="server 'desk': its state has no digest: the helper ended: "):
            await digester.key()

    run_with_digester(tmp_path, work)


def find_helper(digester: Digester) -> Path:
    """The helper's folder in /proc: the child of process 1 of its PID namespace."""
    first = digester._process.pid
    (helper,) = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    return Path("/proc", helper)


def read_rights(helper: Path) -> dict[str, int]:
    said = dict(line.split(":\t", 1) for line in (helper / "status").read_text().splitlines())
    names = ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
    return {name: int(said[name], 16) for name in names}


@pytest.mark.parametrize("way", ["forked"], indirect=True)
def test_a_forked_helper_can_read_its_workspace_and_change_nothing(tmp_path: Path, way: str) -> None:
    async def work(digester: Digester) -> None:
        await digester.key()
        helper = find_helper(digester)
        none = {"CapInh": 0, "CapBnd": 0, "CapAmb": 0}
        assert read_rights(helper) == {"CapEff": READ_ALL, "CapPrm": READ_ALL, **none, "NoNewPrivs": 1, "Seccomp": 2}
        seen = helper / "root" / "workspace"
        assert seen.samefile(tmp_path)
        assert os.statvfs(seen).f_flag & os.ST_RDONLY

    run_with_digester(tmp_path, work)


@pytest.mark.parametrize("way", ["forked"], indirect=True)
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_helper_that_ends_or_hangs_harms_no_other(tmp_path: Path, way: str, fault: signal.Signals) -> None:
    (tmp_path / "file").write_text("1")

    async def main() -> None:
        async with helpers(tmp_path, FileState(), count=3) as (before, bad, after):
            assert len({each._process.pid for each in (before, bad, after)}) == 3
            key = await bad.key()
            os.kill(int(find_helper(bad).name), fault)
            bad._timeout_s = 1.0
            if fault == signal.SIGSTOP:
                with pytest.raises(Undigestible, match="server 'desk': its state has no digest: no answer within 1 s"):
                    await bad.key()
            else:
                bad._timeout_s = 30.0
                assert await bad.key() == key
            assert await before.key() == await after.key() == key

    asyncio.run(main())
