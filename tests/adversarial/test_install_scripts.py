"""Installing a package runs nothing of it on the host; each attempt beside the installer's own way, which does."""

from __future__ import annotations

import io
import os
import subprocess
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from package_index import index
from uv import find_uv_bin

from gymcp.errors import GymcpError
from gymcp.mcp_servers.packages.commands import parse_command
from gymcp.mcp_servers.packages.install import ensure_installed, resolve, start_words
from gymcp.mcp_servers.packages.locked_server import lock_server
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sandbox.users.identity import why_no_own_user


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that exists once code of a package has run, or has written a file, outside of its folder."""
    return tmp_path / "marker"


@pytest.fixture
def address(marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of the index, the only one that the installers know."""
    with index(marker) as found:
        names = {
            "GYMCP_HOME": "home",
            "UV_CACHE_DIR": "uv",
            "npm_config_cache": "npm",
            "HOME": "user",
        }
        for name, folder in names.items():
            monkeypatch.setenv(name, str(tmp_path / folder))
        for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"):
            monkeypatch.setenv(name, f"{found}/simple")
        monkeypatch.setenv("npm_config_registry", found)
        yield found


def install(line: str) -> str:
    """Outcome (installed, or the error) of everything up to the command that starts the server."""
    try:
        server = resolve(parse_command(line))
        ensure_installed(server)
        return f"installed: {' '.join(start_words(server))}"
    except GymcpError as error:
        return f"{type(error).__name__}: {error}"


def run(*argv: str | Path, cwd: Path) -> None:
    done = subprocess.run(argv, cwd=cwd, env=os.environ, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_package_that_says_it_has_an_install_script_is_refused(
    node: None, address: str, marker: Path, tmp_path: Path
) -> None:
    said = install("npx -y open-script@1.0.0")
    assert "package 'open-script' 1.0.0 runs scripts when it is installed; nothing is built unasked" in said
    assert not marker.exists()
    run("npm", "install", "open-script@1.0.0", cwd=tmp_path)  # the control
    assert marker.exists()


def test_an_install_script_that_the_registry_hides_does_not_run(
    node: None, address: str, marker: Path, tmp_path: Path
) -> None:
    assert install("npx -y hidden-script@1.0.0").startswith("installed: /usr/bin/node /srv/server/")
    assert not marker.exists()
    run("npm", "install", f"{address}/hidden-script.tgz", cwd=tmp_path)  # the control
    assert marker.exists()


def test_a_package_that_must_be_built_is_refused(address: str, marker: Path, tmp_path: Path) -> None:
    said = install("uvx source-only==1.0")
    assert said.startswith("ConfigError: server 'source-only': resolve: ")
    assert "nothing is built unasked" in said
    assert not marker.exists()
    run(find_uv_bin(), "venv", "--quiet", tmp_path / "venv", cwd=tmp_path)  # the control
    argv = [find_uv_bin(), "pip", "install", "--python", str(tmp_path / "venv"), "source-only==1.0"]
    subprocess.run(argv, capture_output=True, check=False, timeout=120)
    assert marker.exists()


def test_code_in_a_path_file_runs_in_the_sandbox_only(address: str, marker: Path, tmp_path: Path) -> None:
    assert install("uvx path-file==1.0").startswith("installed: /srv/server/venv/bin/python -s -B")
    assert not marker.exists()
    (python,) = (tmp_path / "home" / "servers").glob("*/venv/bin/python")
    run(python, "-I", "-c", "pass", cwd=tmp_path)  # the control
    assert marker.exists()


def test_a_package_opens_no_setting_of_the_kernel_while_it_is_added(bwrap: Bubblewrap, address: str) -> None:
    """Neither started nor in the template that adding it tries: what a fork lists would differ, and not be believed."""
    added = lock_server(parse_command("uvx --from hostile-import==1.0 serve"), bwrap)
    assert (list(added.tools), added.forks) == (["held"], None if why_no_own_user() else True)


def test_a_package_writes_nothing_beside_its_folder(address: str, marker: Path, tmp_path: Path) -> None:
    install("uvx --from climber==1.0 serve")
    assert not marker.exists()
    with urllib.request.urlopen(f"{address}/files/climber-1.0-py3-none-any.whl", timeout=20) as answer:
        archive = zipfile.ZipFile(io.BytesIO(answer.read()))
    for name in archive.namelist():  # the control
        path = tmp_path / name
        if path.name == marker.name:
            path.write_bytes(archive.read(name))
    assert marker.exists()
