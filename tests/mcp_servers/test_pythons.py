"""The interpreter of a server: chosen by what it needs, found on this machine, or fetched by uv from a mirror."""

from __future__ import annotations

import asyncio
import io
import json
import platform
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from local_wheels import write_wheel

from gymcp.errors import ConfigError, UsageError
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.packages import install_folder
from gymcp.mcp_servers.packages.commands import parse_command
from gymcp.mcp_servers.packages.garbage_collection import remove_folder
from gymcp.mcp_servers.packages.python import resolve
from gymcp.mcp_servers.packages.pythons import choice
from gymcp.mcp_servers.packages.pythons.choice import check_version, choose_version, interpreter_for
from gymcp.mcp_servers.packages.pythons.search import find_interpreter, list_fetched, list_versions, pythons_folder
from gymcp.mcp_servers.sandbox import Interpreter, Sandbox, get_sandbox, interpreter
from gymcp.mcp_servers.sandbox.interpreter import own_interpreter
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.process_owner import is_unlocked, lock_folder
from gymcp.types import ToolCall

OWN = interpreter().version
NEWER = f"{OWN[0]}.{OWN[1] + 1}"
OLDER = f"{OWN[0]}.{OWN[1] - 1}"


SYSCONFIG = "# system configuration generated and used by the sysconfig module\nbuild_time_vars = {}\n"


def write_python(prefix: Path, version: str, *, kind: str = "cpython") -> None:
    """A program that answers as an interpreter of that version does."""
    major, minor = version.split(".")
    path = prefix / "bin" / f"python{version}"
    path.parent.mkdir(parents=True, exist_ok=True)
    (prefix / "lib" / f"python{version}" / "site-packages").mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho \'["{prefix}", {major}, {minor}, "{kind}"]\'\n')
    path.chmod(0o755)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any other Python than the sandbox's: programs in tmp_path/bin alone are on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path / "home"))
    for name in ("PYENV_ROOT", "XDG_DATA_HOME", "UV_PYTHON_INSTALL_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(choice, "_known", {})
    return tmp_path


def test_the_sandboxs_own_python_is_kept_if_it_fits(bare: Path) -> None:
    write_python(bare, NEWER)
    assert choose_version("server 's'", f">={OWN[0]}.{OWN[1]}") == ""
    assert interpreter_for("server 's'", f"{OWN[0]}.{OWN[1]}") == interpreter()


@pytest.mark.parametrize("place", ["", ".pyenv/versions/9", ".local/share/uv/python/cpython-3.99.1-linux-x86_64-gnu"])
def test_another_python_is_found_on_path_of_pyenv_or_of_uv(place: str, bare: Path) -> None:
    prefix = bare / place.replace("/9", f"/{NEWER}.1").replace("3.99", NEWER)
    write_python(prefix, NEWER)
    assert choose_version("server 's'", f">={NEWER}") == NEWER
    found = interpreter_for("server 's'", NEWER)
    assert (str(found.path), found.version) == (f"{prefix}/bin/python{NEWER}", (OWN[0], OWN[1] + 1))
    assert [str(mask) for mask in found.masks] == [f"{prefix}/lib/python{NEWER}/site-packages"]


def test_the_nearest_version_that_fits_is_chosen_and_one_that_does_not_start_is_left_out(bare: Path) -> None:
    for version in (NEWER, OLDER, f"3.{OWN[1] + 2}"):
        write_python(bare, version)
    assert choose_version("server 's'", f"!={OWN[0]}.{OWN[1]}.*") == OLDER
    (bare / "bin" / f"python{OLDER}").write_text("#!/bin/sh\nexit 127\n")  # a shim of pyenv, of a version not selected
    assert choose_version("server 's'", f"!={OWN[0]}.{OWN[1]}.*") == NEWER
    write_python(bare, NEWER, kind="pypy")
    assert choose_version("server 's'", f">{NEWER}") == f"3.{OWN[1] + 2}"
    assert find_interpreter((OWN[0], OWN[1] + 1)) is None
    assert len(list_versions()) == 3


@pytest.mark.parametrize(
    ("requires", "wanted", "words"),
    [
        (">=3.99", "", f"needs Python >=3.99; the sandbox has {OWN[0]}.{OWN[1]}, this machine has no other, and no"),
        (">=3.99", NEWER, f"needs Python >=3.99, and not {NEWER}"),
        ("three", "", "requires-python 'three' is not understood"),
        ("", "three", "--python 'three': expected a minor version of Python 3, such as 3.12"),
        ("", "3.12.1", "--python '3.12.1': expected a minor version of Python 3"),
        ("", "3.4", "--python 3.4: the oldest that servers run on is 3.9"),
    ],
)
def test_an_unavailable_python_is_refused(requires: str, wanted: str, words: str, bare: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        choose_version("server 's'", requires, wanted)
    assert str(caught.value).startswith(f"server 's': {words}")


def test_the_python_that_a_package_of_the_closure_requires_is_looked_for(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(bare / "index", "bare_herald", "1.0", {"h.py": ""}, ["bare_latecomer"])
    write_wheel(bare / "index", "bare_latecomer", "1.0", {"l.py": ""}, python=">=3.99")
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(bare / "index"))
    with pytest.raises(ConfigError, match=r"^server 'bare_herald': resolve: needs Python >=3.99; the sandbox has 3"):
        resolve(parse_command("uvx bare_herald==1.0"))


def test_a_release_within_the_minor_version_fits(bare: Path) -> None:
    assert choose_version("server 's'", f">={OWN[0]}.{OWN[1]}.1") == ""
    assert check_version("server 's'", "3.12") == "3.12"


@pytest.fixture
def mirror(bare: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an archive of an interpreter, and the list of downloads that names it."""
    version, build = NEWER, "20260101"
    (machine, name) = platform.machine(), f"cpython-{NEWER}.1-install_only.tar.gz"
    script = f'#!/bin/sh\necho "[\\"${{0%/bin/*}}\\", {version.replace(".", ", ")}, \\"cpython\\"]"\n'
    sysconfig = f"lib/python{version}/_sysconfigdata__linux_{machine}-linux-gnu.py"
    folder = bare / "mirror" / build
    folder.mkdir(parents=True)
    with tarfile.open(folder / name, "w:gz") as archive:
        for path, text in (
            (f"bin/python{version}", script),
            (sysconfig, SYSCONFIG),
        ):
            about = tarfile.TarInfo(f"python/{path}")
            about.size, about.mode = len(text), 0o755
            archive.addfile(about, io.BytesIO(text.encode()))
    row = {
        "name": "cpython",
        "arch": {"family": machine, "variant": None},
        "os": "linux",
        "libc": "gnu",
        "major": OWN[0],
        "minor": OWN[1] + 1,
        "patch": 1,
        "prerelease": "",
        "url": f"https://github.com/astral-sh/python-build-standalone/releases/download/{build}/{name}",
        "sha256": None,
        "variant": None,
        "build": build,
    }
    (bare / "downloads.json").write_text(json.dumps({f"cpython-{version}.1-linux-{machine}-gnu": row}))
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS_JSON_URL", str(bare / "downloads.json"))
    monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", (bare / "mirror").as_uri())
    monkeypatch.setenv("UV_CACHE_DIR", str(bare / "cache"))
    return bare / "mirror"


def test_a_python_that_is_not_there_is_fetched_from_the_mirror_once(mirror: Path) -> None:
    found = interpreter_for("server 's'", NEWER)
    assert Path(found.path).is_relative_to(pythons_folder())
    assert found.version == (OWN[0], OWN[1] + 1)
    assert [is_unlocked(folder) for folder in list_fetched()] == [False]
    for archive in mirror.glob("*/*"):
        archive.unlink()
    choice._known.clear()
    assert interpreter_for("server 's'", NEWER) == found


def test_a_python_that_is_being_fetched_is_not_removed(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[bool] = []

    def find_while_cleaning(version: tuple[int, int]) -> Interpreter | None:
        found = find_interpreter(version)
        removed.extend(remove_folder(folder) for folder in list_fetched())
        return found

    monkeypatch.setattr(choice, "find_interpreter", find_while_cleaning)
    found = interpreter_for("server 's'", NEWER)
    assert (removed, Path(found.path).is_file()) == ([False], True)


def test_a_folder_that_is_removed_while_it_is_being_locked_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "server"

    def lock_late(folder: Path) -> int:
        handle = lock_folder(folder)
        folder.rmdir()
        return handle

    folder.mkdir()
    monkeypatch.setattr(install_folder, "lock_folder", lock_late)
    with pytest.raises(FileNotFoundError):
        install_folder.hold_folder(folder)
    monkeypatch.undo()
    folder.mkdir()
    install_folder.hold_folder(folder)
    assert not is_unlocked(folder)
    install_folder.release_folder(folder)


def test_a_python_that_only_the_mirror_has_is_chosen_and_fetched(mirror: Path) -> None:
    assert choose_version("server 's'", f">={NEWER},<3.30") == NEWER
    assert find_interpreter((OWN[0], OWN[1] + 1)) is not None


def test_a_failed_download_of_a_chosen_python_is_one_clear_error(mirror: Path) -> None:
    for archive in mirror.glob("*/*"):
        archive.unlink()
    with pytest.raises(UsageError) as caught:
        choose_version("server 's'", f">={NEWER}")
    needs = f"server 's': needs Python >={NEWER}: this machine has no Python {NEWER}, and it cannot be fetched"
    assert str(caught.value).startswith(f"{needs} from the mirror file:")


def test_a_machine_without_uv_is_told_how_to_get_it(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find() -> str:
        raise FileNotFoundError("no uv here")

    monkeypatch.setattr(install_folder, "find_uv_bin", find)
    with pytest.raises(UsageError, match=r"^server 's': needs Python .*: uv is not there: no uv here; install it: "):
        choose_version("server 's'", f">={NEWER}")


def test_a_failed_download_of_a_python_is_one_clear_error(mirror: Path) -> None:
    for archive in mirror.glob("*/*"):
        archive.unlink()
    with pytest.raises(UsageError) as caught:
        interpreter_for("server 's'", NEWER)
    assert f"server 's': this machine has no Python {NEWER}, and it cannot be fetched from the mirror file:" in str(
        caught.value
    )
    assert str(caught.value).endswith("; install it, or name a mirror in UV_PYTHON_INSTALL_MIRROR")


class Teller:
    """A server that tells what it runs on."""

    def tell(self) -> str:
        """Version, prefix, and whether packages of the prefix can be imported."""
        return json.dumps(
            [list(sys.version_info[:2]), sys.prefix, [entry for entry in sys.path if "-packages" in entry]]
        )


def ask_for_python(sandbox: Sandbox) -> object:
    """Version, prefix and packages of a server that runs on this process's interpreter."""
    own = own_interpreter()
    spec = native_server("teller", Teller)
    spec = replace(spec, argv=(str(own.path), *spec.argv[1:]), python=own)
    assert spec.parts() != replace(spec, python=None).parts()

    async def main() -> str:
        async with open_session(spec, sandbox, initial_state=None, seed=0) as session:
            call = ToolCall(id="call_1", name="tell", arguments={})
            return (await session.call_tool(call, {}, timeout_s=30)).content

    return json.loads(asyncio.run(main()))


def test_a_server_runs_on_an_interpreter_that_is_not_the_sandboxs_own(bwrap: Sandbox) -> None:
    assert ask_for_python(bwrap) == [list(own_interpreter().version), sys.base_prefix, []]


def test_a_server_in_a_container_runs_on_an_interpreter_of_the_host(engine: None) -> None:
    assert ask_for_python(get_sandbox("docker")) == [list(own_interpreter().version), sys.base_prefix, []]
