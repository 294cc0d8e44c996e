"""The docker sandbox from the command line, with an engine and without."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import warm_command
from cli_runner import BANK, TIMEOUT_S, gymcp
from stderr_lines import errors
from test_start import imports_of

from gymcp.mcp_servers.sandbox.docker.engine_api import OWNER_LABEL, find_containers

NO_ENGINE = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}


def test_an_environment_is_the_same_in_containers_and_leaves_none(engine: None, tmp_path: Path) -> None:
    words = ["eval", str(BANK), "--sandbox", "docker", "--trials", "2", "--out", str(tmp_path / "run"), "--json"]
    with tempfile.TemporaryFile("w+") as out:
        run = warm_command.start(words, out.fileno(), 2, cwd=None, env=os.environ)
        assert run.wait(TIMEOUT_S) == 0
        out.seek(0)
        summary = json.load(out)
    assert (summary["episodes"], summary["scored"], summary["success"]) == (6, 6, 1.0)
    # its own: tests that kill harnesses run beside this one
    assert not [
        found for found in find_containers(OWNER_LABEL) if found["Labels"][OWNER_LABEL].startswith(f"{run.pid}-")
    ]


def test_check_passes_in_containers(engine: None) -> None:
    done = gymcp("check", BANK, "--sandbox", "docker", "--json")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_base_image_is_built_once(engine: None) -> None:
    done = gymcp("sandbox", "build")
    assert done.returncode == 0, done.stderr
    assert "is there already" in done.stdout


def test_a_missing_engine_is_one_line_and_no_failure_of_the_doctor() -> None:
    done = gymcp("eval", BANK, "--sandbox", "docker", env=NO_ENGINE)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "gymcp: docker: no engine answers at /nowhere/docker.sock (No such file or directory)"
    )
    assert len(errors(done.stderr)) == 1
    doctor = gymcp("doctor", "--json", env=NO_ENGINE)
    assert doctor.returncode == 0, doctor.stdout
    (finding,) = [found for found in json.loads(doctor.stdout)["findings"] if found["what"] == "docker"]
    assert finding["detail"].startswith("optional, not usable here: docker: no engine answers")


def test_docker_s_sdk_is_imported_only_if_docker_is_used(tmp_path: Path) -> None:
    """An engine is there to be asked, but this cache has never started a container."""
    env = {**os.environ, "GYMCP_HOME": str(tmp_path / "home"), "DOCKER_HOST": f"unix://{tmp_path}/docker.sock"}
    (tmp_path / "docker.sock").touch()
    run = ("eval", str(BANK), "--out", str(tmp_path / "run"))
    imported = {words: modules for words, (modules, _) in imports_of([run, ("doctor",)], tmp_path, env).items()}
    assert (tmp_path / "run" / "summary.json").is_file()
    assert ["docker" in imported[words] for words in (run, ("doctor",))] == [False, True]


def test_a_missing_dockerfile_is_one_line(engine: None, tmp_path: Path) -> None:
    done = gymcp("sandbox", "build", tmp_path / "Dockerfile")
    assert done.returncode == 2
    assert f"no Dockerfile at {tmp_path}/Dockerfile" in done.stderr
