from __future__ import annotations

import hashlib
import os
import stat
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gymcp.atomic import make_once
from gymcp.envs.suites.upstream.wheels import Wheel, fetch_wheel, unpack_wheel
from gymcp.errors import IntegrityError, UsageError


def _wheel(folder: Path) -> Wheel:
    """A wheel of one module in `folder`, in which pip finds it without a network."""
    path = folder / "gymcp_probe-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("gymcp_probe/__init__.py", "")
        archive.writestr("gymcp_probe/answers.txt", "42")
        archive.writestr(
            "gymcp_probe-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: gymcp-probe\nVersion: 1.0\n"
        )
        archive.writestr("gymcp_probe-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("gymcp_probe-1.0.dist-info/RECORD", "")
    return Wheel(name="gymcp-probe", version="1.0", sha256=hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which pip looks."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_wheel_is_downloaded_once_and_then_used_offline(index: Path, tmp_path: Path) -> None:
    wheel = _wheel(index)
    path = fetch_wheel(wheel, tmp_path / "wheels")
    (index / wheel.filename).unlink()
    assert fetch_wheel(wheel, tmp_path / "wheels") == path


def test_a_download_with_another_hash_is_refused_and_not_kept(index: Path, tmp_path: Path) -> None:
    wheel = _wheel(index)
    tampered = Wheel(name=wheel.name, version=wheel.version, sha256="0" * 64)
    with pytest.raises(IntegrityError, match=f"expected sha256 {'0' * 64}, found {wheel.sha256}"):
        fetch_wheel(tampered, tmp_path / "wheels")
    assert list((tmp_path / "wheels").iterdir()) == []


def test_a_wheel_tampered_with_in_the_cache_is_refused(index: Path, tmp_path: Path) -> None:
    path = fetch_wheel(wheel := _wheel(index), tmp_path / "wheels")
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(IntegrityError, match=r"gymcp_probe-1\.0.*expected sha256.*found"):
        fetch_wheel(wheel, tmp_path / "wheels")


def test_a_missing_wheel_is_one_line_that_says_what_to_do(index: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gymcp-probe==1\.0: cannot be downloaded: .*PIP_INDEX_URL") as caught:
        fetch_wheel(Wheel(name="gymcp-probe", version="1.0", sha256="0" * 64), tmp_path / "wheels")
    assert "\n" not in str(caught.value)


def test_only_what_is_allowed_is_unpacked(index: Path, tmp_path: Path) -> None:
    path = fetch_wheel(_wheel(index), tmp_path / "wheels")
    unpack_wheel(path, tmp_path / "out", lambda name: name if name.endswith("__init__.py") else None)
    assert [p.name for p in (tmp_path / "out").rglob("*") if p.is_file()] == ["__init__.py"]


def test_nothing_is_unpacked_outside_its_folder(index: Path, tmp_path: Path) -> None:
    path = fetch_wheel(_wheel(index), tmp_path / "wheels")
    with pytest.raises(IntegrityError, match="outside its folder"):
        unpack_wheel(path, tmp_path / "out", lambda name: f"../{name}")


def test_two_threads_at_once_make_one_folder(tmp_path: Path) -> None:
    both_work = threading.Barrier(2)

    def make(folder: Path) -> None:
        both_work.wait(timeout=60)
        (folder / "done").write_text("yes")

    with ThreadPoolExecutor(max_workers=2) as threads:
        made = list(threads.map(lambda _: make_once(tmp_path / "suite", make), range(2)))
    assert made == [tmp_path / "suite"] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["suite"]
    assert (tmp_path / "suite" / "done").read_text() == "yes"


def test_servers_of_another_user_can_read_an_install_whatever_the_umask(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        before = os.umask(0o077)
        try:
            (folder / "bin").mkdir()
            (folder / "bin" / "program").touch(mode=0o777)
            (folder / "bin" / "text").write_text("")
            (folder / "bin" / "link").symlink_to("/nonexistent")
        finally:
            os.umask(before)

    made = make_once(tmp_path / "suite", make)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (made / "bin", *made.glob("bin/[pt]*"))}
    assert modes == {"bin": 0o755, "program": 0o755, "text": 0o644}


def test_a_failed_install_leaves_nothing(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        (folder / "half").write_text("")
        raise UsageError("no network")

    with pytest.raises(UsageError):
        make_once(tmp_path / "suite", make)
    assert list(tmp_path.iterdir()) == []
