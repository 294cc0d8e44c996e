"""The folder in place of /root in containers of the base image."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from gymcp.mcp_servers.sandbox.docker.root_home import mount_root_home
from gymcp.mcp_servers.sandbox.spec import Mount


def mounts_at(source: Path, *targets: str) -> list[Mount]:
    return [Mount(source=source, target=PurePosixPath(target)) for target in targets]


def test_it_has_a_place_for_each_mount_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path))
    (home,) = mount_root_home(mounts_at(tmp_path, "/root/py/lib", "/root/py/lib/inner", "/srv/x"))
    assert (str(home.target), [path.name for path in home.source.rglob("*")]) == ("/root", ["py", "lib"])


@pytest.mark.parametrize("targets", [("/srv/root",), ("/root",), ("/root", "/root/py"), ("/root/py", "/root")])
def test_there_is_none_without_mounts_below_or_beside_a_mount_of_its_own_place(
    targets: tuple[str, ...], tmp_path: Path
) -> None:
    assert mount_root_home(mounts_at(tmp_path, *targets)) == []
