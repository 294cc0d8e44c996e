"""Servers in images: locked by id, run by id, whatever image the name stands for now."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runner import gymcp
from equipment import usable
from shout_image import Shout
from stderr_lines import errors

from gymcp.errors import ConfigError, EnvInfraError, GymcpError, IntegrityError, SandboxUnavailable
from gymcp.mcp_servers.packages import image
from gymcp.mcp_servers.packages.commands import parse_command
from gymcp.mcp_servers.packages.image import build_tag
from gymcp.mcp_servers.packages.install import ensure_present, is_present
from gymcp.mcp_servers.packages.install_request import InstallRequest
from gymcp.mcp_servers.packages.locked_server import check_server, lock_server, make_spec
from gymcp.mcp_servers.packages.lockfile import LockedServer, read_lock
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.sandbox.docker.backend import Docker
from gymcp.mcp_servers.sandbox.docker.engine_api import open_engine
from gymcp.mcp_servers.sandbox.docker.images import context_digest, inspect, name_of_build, remove_image
from gymcp.mcp_servers.sandbox.docker.pool import Pool
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.types import ToolCall


@pytest.fixture(scope="module")
def docker() -> Iterator[Sandbox]:
    """Without warm_pool_size, which would hold on to the images of tests that are over."""
    pool = Pool(size=0)
    usable("docker")
    yield Docker(pool=pool)
    pool.close()


@pytest.fixture
def shout(docker: Sandbox, tmp_path: Path) -> Iterator[Shout]:
    made = Shout(tmp_path / "shout")
    yield made
    made.remove()


@pytest.fixture(scope="module")
def loud(docker: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shout, LockedServer]]:
    """An image that no test changes, and the server that is locked from it, with one argument."""
    made = Shout(tmp_path_factory.mktemp("loud") / "shout")
    yield made, _lock(made, docker, "!")
    made.remove()


unchanged = pytest.mark.xdist_group("loud")
"""One process builds the image and locks it."""


def _lock(shout: Shout, docker: Sandbox, *args: str) -> LockedServer:
    wanted = parse_command(["docker", "run", "-i", "--rm", shout.build(), *args], name="loud")
    return lock_server(wanted, docker)


def _say(server: LockedServer, sandbox: Sandbox) -> str:
    async def run() -> str:
        async with open_session(make_spec(server), sandbox, initial_state=None, seed=0) as session:
            call = ToolCall(id="call_1", name="shout", arguments={"text": "hi"})
            return (await session.call_tool(call, {"text": "hi"}, timeout_s=20)).content

    return asyncio.run(run())


def image_ids() -> set[str]:
    with open_engine() as client:
        return {row["Id"] for row in client.images(all=True)}


@unchanged
def test_a_server_runs_from_its_locked_image_with_its_arguments(
    loud: tuple[Shout, LockedServer], docker: Sandbox
) -> None:
    shout, server = loud
    assert (server.runtime, server.package, server.version) == ("image", *shout.name.split(":"))
    assert server.packages[0].files == {"id": shout.id()}
    assert is_present(server)
    assert ensure_present(server) == f"image {shout.id()}"
    assert len(check_server(server, docker)) == 1
    assert _say(server, docker) == "HI!"


def test_an_image_that_has_changed_or_is_gone_is_an_error_of_one_line(shout: Shout, docker: Sandbox) -> None:
    """The name stands for another image, which has other tools; then the locked one is gone, and at last both are."""
    server = _lock(shout, docker)
    was = shout.id()
    shout.change("text: str", "text: str, twice: bool = False")
    shout.build()
    with pytest.raises(IntegrityError, match=f"'{shout.name}' is now {shout.id()}, locked is {was}; .* lock loud"):
        check_server(server, docker)
    assert _say(server, docker) == "HI"  # the locked image runs
    merged = replace(server.packages[0], files={"id": shout.id()})  # as if the id alone had been merged
    with pytest.raises(IntegrityError, match="tool 'shout': parameter 'twice' is new"):
        check_server(replace(server, packages=(merged,)), docker)
    with open_engine() as client:
        client.remove_image(was, force=True)
    with pytest.raises(IntegrityError, match=f"is now {shout.id()}, locked is {was}"):
        make_spec(server)
    shout.remove()
    assert not is_present(server)
    with pytest.raises(ConfigError, match=f"'loud': install: no image '{shout.name}' on .* pulled: ") as caught:
        ensure_present(server)
    assert "\n" not in str(caught.value)


@unchanged
def test_a_registry_s_digest_is_locked_beside_the_id(loud: tuple[Shout, LockedServer]) -> None:
    """Engines with another kind of store give the same image another id."""
    shout, server = loud
    digest = f"sha256:{'d' * 64}"
    pulled = replace(server.packages[0], files={"id": f"sha256:{'e' * 64}", "digest": digest})
    here = {"Id": shout.id(), "RepoDigests": [f"{server.package}@{digest}"]}
    elsewhere = {"Id": shout.id(), "RepoDigests": [f"{server.package}@sha256:{'f' * 64}"]}
    assert image.is_locked(replace(server, packages=(pulled,)), here)
    assert not image.is_locked(replace(server, packages=(pulled,)), elsewhere)


def test_a_dockerfile_is_locked_by_the_content_of_its_folder(docker: Sandbox, shout: Shout) -> None:
    wanted = parse_command("docker run -i --rm ./shout/Dockerfile !", base=shout.folder.parent)
    assert (wanted.name, wanted.dockerfile) == ("shout", shout.folder / "Dockerfile")
    server = lock_server(wanted, docker)
    try:
        assert _say(server, docker) == "HI!"
        assert len(check_server(server, docker)) == 1
        shout.change("louder", "softer")
        with pytest.raises(IntegrityError, match=r"Dockerfile' is now sha256:\w+, locked is sha256:"):
            check_server(server, docker)
    finally:
        remove_image(build_tag(server) or "")


@pytest.mark.parametrize("line", ["./refused/Dockerfile", "./refused/Dockerfile --and-end"])
def test_an_image_that_was_built_in_vain_is_removed(line: str, docker: Sandbox, tmp_path: Path) -> None:
    """The server prints before the handshake, or ends at once."""
    (tmp_path / "refused").mkdir()
    script = 'RUN echo "print(1); import sys; sys.argv[1:] or input()" > /srv/server.py'
    (tmp_path / "refused" / "Dockerfile").write_text(
        f'FROM gymcp-base\n# {tmp_path}\n{script}\nENTRYPOINT ["python3", "/srv/server.py"]\n'
    )
    wanted = parse_command(f"docker run {line}", base=tmp_path)
    assert wanted.dockerfile is not None
    with pytest.raises(EnvInfraError, match=r"server 'refused': (handshake|start): "):
        lock_server(wanted, docker)
    assert inspect(name_of_build(context_digest(wanted.dockerfile))) is None


def test_an_image_that_existed_before_is_not_removed_when_it_is_refused(shout: Shout, docker: Sandbox) -> None:
    shout.change("server.run()", "pass")
    wanted = parse_command(["docker", "run", shout.build()], name="silent")
    with pytest.raises(EnvInfraError, match="server 'silent': start: the server ended"):
        lock_server(wanted, docker)
    assert inspect(shout.name) is not None


def test_a_failed_build_leaves_nothing(docker: Sandbox, tmp_path: Path) -> None:
    before = image_ids()
    (tmp_path / "Dockerfile").write_text(f"FROM gymcp-base\nENV A={tmp_path.name}\nRUN echo {tmp_path}\nRUN exit 3\n")
    with pytest.raises(ConfigError, match="cannot be built"):
        lock_server(parse_command("docker run ./Dockerfile", name="broken", base=tmp_path), docker)
    after = image_ids()
    mine = [found for found in after - before if tmp_path.name in str(inspect(found))]
    assert mine == []


def test_a_failing_dockerfile_is_one_line(docker: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM gymcp-base\nRUN echo nearly && exit 3\n")
    with pytest.raises(
        ConfigError, match=r"cannot be built: .*returned a non-zero code: 3; its last words: nearly"
    ) as caught:
        image.resolve(parse_command("docker run ./Dockerfile", name="broken", base=tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("docker run localhost:1/gymcp-none:1", "server 'nope': resolve: no image 'localhost:1/gymcp-none:1' on this"),
        ("docker run ./none/Dockerfile", "no Dockerfile at "),
        ("docker run gymcp-base false", r"server 'nope': start: the server ended \(exit status 1\)"),
    ],
)
def test_an_unavailable_image_is_one_line(line: str, said: str, docker: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(GymcpError, match=said) as caught:
        lock_server(parse_command(line, name="nope", base=tmp_path), docker)
    assert "\n" not in str(caught.value)


def test_a_first_episode_from_a_dockerfile_takes_two_commands(docker: Sandbox, shout: Shout) -> None:
    made = _gymcp(shout, "new", "loud", "--image", "shout/Dockerfile")
    assert made.returncode == 0, made.stderr
    assert "gymcp check loud.py --sandbox docker" in made.stdout
    entry = read_lock(shout.folder.parent / "servers.lock")["shout"]
    try:
        checked = _gymcp(shout, "check", "loud.py", "--sandbox", "docker", "--json")
        assert checked.returncode == 0, checked.stdout + checked.stderr
        refused = _gymcp(shout, "check", "loud.py")
        assert (refused.returncode, len(errors(refused.stderr))) == (2, 1)
        assert "need --sandbox docker" in refused.stderr
        lock = shout.folder.parent / "servers.lock"
        name = build_tag(entry)
        assert f"image {name} (" in (kept := _gymcp(shout, "clean", "--dry-run").stdout)
        assert f" MB): kept: {lock} names it" in kept
        lock.unlink()
        dockerfile = shout.folder / "Dockerfile"
        assert f" MB): kept: {dockerfile} is as it was" in _gymcp(shout, "clean", "--dry-run").stdout
        shout.change("louder", "softer")
        assert " MB): nothing needs it; could be removed" in _gymcp(shout, "clean", "--dry-run").stdout
        assert " MB): nothing needs it; removed" in _gymcp(shout, "clean").stdout
        assert inspect(str(name)) is None
    finally:
        remove_image(build_tag(entry) or "")


def _gymcp(shout: Shout, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line with a cache of the test's own, so that only its own images can be cleaned."""
    folder = shout.folder.parent
    return gymcp(*words, cwd=folder, env={"GYMCP_HOME": str(folder / "home")})


@unchanged
def test_without_an_engine_no_image_is_present_and_the_reason_is_given(
    loud: tuple[Shout, LockedServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, server = loud
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert not is_present(server)
    with pytest.raises(SandboxUnavailable, match=r"no engine answers at /nowhere/docker\.sock"):
        ensure_present(server)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "docker run -i --rm mcp/time",
            InstallRequest(name="time", runtime="image", package="mcp/time", version="latest"),
        ),
        (
            "docker run -i --rm -e KEY --env=A=b here:5000/x/y:2 --root /w",
            InstallRequest(
                name="y",
                runtime="image",
                package="here:5000/x/y",
                version="2",
                args=("--root", "/w"),
                env={"KEY": "${KEY}", "A": "b"},
            ),
        ),
        (
            f"docker run y@sha256:{'a' * 64}",
            InstallRequest(name="y", runtime="image", package="y", version=f"sha256:{'a' * 64}"),
        ),
    ],
)
def test_a_docker_line_becomes_an_install_request(line: str, wanted: InstallRequest) -> None:
    assert parse_command(line) == wanted
    again = parse_command(wanted.command(str(wanted.version)), env=wanted.env)
    assert again == wanted


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("docker run -i -v /:/host x", "docker option '-v' is not understood"),
        ("docker run --network=host x", "docker option '--network=host' is not understood"),
        ("docker run --privileged x", "docker option '--privileged' is not understood"),
        ("docker run -e TOKEN=abc x", "env 'TOKEN' looks like a secret"),
        ("docker exec x", "only 'docker run -i --rm IMAGE' can be locked"),
        ("docker run -i", "docker run of no image"),
        ("docker run 'Not an image'", "'Not an image' is not the name of an image"),
    ],
)
def test_docker_options_beyond_the_sandbox_are_refused(line: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_command(line)
    assert said in str(caught.value)
