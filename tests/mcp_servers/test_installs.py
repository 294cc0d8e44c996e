"""Real servers from the registries: installed separately, compared byte for byte, run in the real sandbox."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from gymcp.errors import ConfigError, IntegrityError, UsageError
from gymcp.mcp_servers.packages.commands import parse_command
from gymcp.mcp_servers.packages.install import ensure_installed, folder_of, repair_installed, resolve, verify_installed
from gymcp.mcp_servers.packages.install_folder import MANIFEST, hash_files, hold_folder, release_folder, servers_folder
from gymcp.mcp_servers.packages.locked_server import check_server, lock_server, locked_server, make_spec
from gymcp.mcp_servers.packages.lockfile import LockedServer, read_lock, write_lock
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import Json, ToolCall

LOCK = Path(__file__).parents[2] / "envs" / "catalog" / "servers.lock"
NEEDS_MCP_1 = "uvx mcp-server-calculator==0.2.1"


@pytest.fixture(scope="session")
def time() -> LockedServer:
    return read_lock(LOCK)["time"]


@pytest.fixture(scope="session")
def memory(node: None) -> LockedServer:
    return read_lock(LOCK)["memory"]


@pytest.fixture(scope="session")
def calculator(bwrap: Sandbox) -> LockedServer:
    return lock_server(parse_command(NEEDS_MCP_1), bwrap)


@pytest.fixture
def time_copy(time: LockedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The installed folder of `time` in a cache of the test's own."""
    installed = ensure_installed(time)
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path / "home"))
    folder_of(time).parent.mkdir(parents=True)
    subprocess.run(["cp", "-a", str(installed), str(folder_of(time))], check=True)
    return folder_of(time)


def call_tool(spec: ServerSpec, sandbox: Sandbox, tool: str, arguments: Mapping[str, Json]) -> str:
    async def run() -> str:
        async with open_session(spec, sandbox, initial_state=None, seed=0) as session:
            call = ToolCall(id="call_1", name=tool, arguments=arguments)
            result = await session.call_tool(call, arguments, timeout_s=20)
            assert not result.is_error, result.content
            return result.content

    return asyncio.run(run())


def test_servers_that_need_different_major_versions_of_the_sdk_run_side_by_side(
    time: LockedServer, calculator: LockedServer, bwrap: Sandbox
) -> None:
    assert (time.sdk_major, calculator.sdk_major) == (2, 1)
    noon = {"source_timezone": "Asia/Tokyo", "time": "12:00", "target_timezone": "Asia/Kathmandu"}
    answer = json.loads(call_tool(make_spec(time), bwrap, "convert_time", noon))
    assert answer["target"]["datetime"][11:16] == "08:45"
    assert call_tool(make_spec(calculator), bwrap, "calculate", {"expression": "6*7"}) == "42"


def test_a_node_server_runs_in_the_sandbox(memory: LockedServer, bwrap: Sandbox) -> None:
    ann = {"name": "Ann", "entityType": "person", "observations": ["likes tea"]}
    assert "likes tea" in call_tool(make_spec(memory), bwrap, "create_entities", {"entities": [ann]})


def test_resolving_again_gives_the_locked_bytes(calculator: LockedServer, node: None) -> None:
    """Every package of both closures has hashes, and names of files without their addresses."""
    sequential = resolve(parse_command("npx -y @modelcontextprotocol/server-sequential-thinking@2026.8.31"))
    assert sequential.sdk_major == 1
    assert all(package.files["integrity"].startswith("sha512-") for package in sequential.packages)
    for package in calculator.packages:
        assert all(name.endswith(".whl") and "/" not in name for name in package.files)
        assert all(len(digest) == len("sha256:") + 64 for digest in package.files.values())
    assert len([package for package in calculator.packages if package.files]) > 10


def test_an_installed_server_needs_no_network_and_no_installers(
    time: LockedServer, memory: LockedServer, bwrap: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for server in (time, memory):
        ensure_installed(server)
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("npm_config_offline", "true")
    for server in (time, memory):
        assert len(check_server(server, bwrap)) == len(server.tools)


def test_concurrent_installs_get_the_same_folder(
    time: LockedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path))
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(ensure_installed, [time, time]))
    assert folders[0] == folders[1]
    assert [path.name for path in servers_folder().iterdir()] == [folders[0].name]
    verify_installed(time)  # and it is the folder that was locked elsewhere, file by file


def test_a_changed_file_is_named(time: LockedServer, time_copy: Path) -> None:
    module = next(time_copy.glob("venv/lib/*/site-packages/mcp_server_time/server.py"))
    module.write_text(module.read_text() + "\n# harmless?\n")
    with pytest.raises(
        IntegrityError, match=r"server 'time': installed file '.*/mcp_server_time/server\.py' has changed"
    ):
        verify_installed(time)


@pytest.mark.parametrize("file", ["server.py", "__pycache__/server.*.pyc"])
def test_an_environment_refuses_a_changed_file(file: str, time: LockedServer, time_copy: Path) -> None:
    (changed,) = time_copy.glob(f"venv/lib/*/site-packages/mcp_server_time/{file}")
    changed.write_bytes(changed.read_bytes() + b"\n# harmless?\n")
    with pytest.raises(IntegrityError, match=r"server 'time': installed file '.*' has changed; run: gymcp servers sy"):
        locked_server("time", lock=LOCK)
    hold_folder(time_copy)
    with pytest.raises(UsageError, match=r"a process uses .*: end it, then run: gymcp servers sync"):
        repair_installed(time)
    release_folder(time_copy)


def test_a_changed_server_is_installed_again(time: LockedServer, time_copy: Path) -> None:
    (changed,) = time_copy.glob("venv/lib/*/site-packages/mcp_server_time/server.py")
    was = changed.read_bytes()
    changed.write_bytes(was + b"\n# harmless?\n")
    assert "has changed" in (repair_installed(time) or "")
    assert changed.read_bytes() == was
    assert repair_installed(time) is None
    assert [path.name for path in servers_folder().iterdir()] == [time_copy.name]
    locked_server("time", lock=LOCK)


def test_an_environment_refuses_a_version_that_is_not_locked(time: LockedServer, time_copy: Path) -> None:
    with pytest.raises(
        IntegrityError, match=r"server 'time': locked is version 1\.0, installed is 2026\.10\.19; run: gymcp servers"
    ):
        make_spec(replace(time, version="1.0"))


def test_changed_byte_code_is_named(time: LockedServer, time_copy: Path) -> None:
    """Byte code is what runs: nothing else compares it with its source."""
    code = next(time_copy.glob("venv/lib/*/site-packages/mcp_server_time/__pycache__/server.*.pyc"))
    code.write_bytes(code.read_bytes() + b"\0")
    with pytest.raises(IntegrityError, match=r"__pycache__/server\..*\.pyc' has changed"):
        verify_installed(time)


def test_an_added_or_missing_file_is_named(time: LockedServer, time_copy: Path) -> None:
    extra = next(time_copy.glob("venv/lib/*/site-packages")) / "sitecustomize.py"
    extra.write_text("")
    with pytest.raises(IntegrityError, match=r"sitecustomize\.py' was not installed"):
        verify_installed(time)
    extra.unlink()
    next(time_copy.glob("venv/lib/*/site-packages/mcp_server_time/server.py")).unlink()
    with pytest.raises(IntegrityError, match=r"mcp_server_time/server\.py' is gone"):
        verify_installed(time)


def test_a_change_is_found_even_if_the_manifest_is_changed_as_well(time: LockedServer, time_copy: Path) -> None:
    module = next(time_copy.glob("venv/lib/*/site-packages/mcp_server_time/server.py"))
    module.write_text(module.read_text() + "\n# harmless?\n")
    (time_copy / MANIFEST).write_text(json.dumps(hash_files(time_copy)))
    with pytest.raises(IntegrityError, match="are not the locked ones"):
        verify_installed(time)


def test_a_version_that_differs_from_the_lock_is_named(time: LockedServer, time_copy: Path) -> None:
    info = next(time_copy.glob("venv/lib/*/site-packages/mcp_server_time-*.dist-info"))
    info.rename(info.with_name("mcp_server_time-9.9.9.dist-info"))
    (time_copy / MANIFEST).write_text(json.dumps(hash_files(time_copy)))
    with pytest.raises(IntegrityError, match=r"locked is version 2026\.10\.19, installed is 9\.9\.9"):
        verify_installed(time)


@pytest.mark.parametrize(
    ("name", "package", "digest"),
    [("time", "mcp-server-time", "sha256:" + "0" * 64), ("memory", "node_modules/ajv", "sha512-" + "A" * 86 + "==")],
)
def test_a_package_with_another_hash_is_refused_and_leaves_nothing(
    name: str, package: str, digest: str, node: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path))
    server = read_lock(LOCK)[name]
    packages = tuple(
        replace(found, files=dict.fromkeys(found.files, digest)) if found.name == package else found
        for found in server.packages
    )
    with pytest.raises(IntegrityError, match=f"server '{name}': install: .*other files than the lock"):
        ensure_installed(replace(server, packages=packages))
    assert list(servers_folder().iterdir()) == []


def test_drift_of_the_tools_names_the_tool_and_the_parameter(time: LockedServer, bwrap: Sandbox) -> None:
    tool = time.tools["convert_time"]
    params = {name: digest for name, digest in tool.params.items() if name != "time"} | {"source_timezone": "0" * 16}
    drifted = replace(time, tools={"convert_time": replace(tool, sha256="0" * 64, params=params)})
    with pytest.raises(IntegrityError) as caught:
        check_server(drifted, bwrap)
    assert (
        "tool 'get_current_time' is new; tool 'convert_time': parameter 'source_timezone' has changed, "
        "parameter 'time' is new; to accept that run: gymcp servers lock time"
    ) in str(caught.value)


def test_a_lock_for_another_python_says_so(time: LockedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"locked for Python >=3\.99, but it would run on 3.*; run: gymcp servers lock time"
    ):
        ensure_installed(replace(time, python=">=3.99"))


def test_two_versions_of_a_package_for_two_versions_of_python_are_both_locked(tmp_path: Path) -> None:
    """As numpy has them; a lock made with one Python serves the others."""
    server = resolve(parse_command("uvx --from pandas==2.3.3 none"))
    write_lock(tmp_path / "servers.lock", {"pandas": server})
    assert read_lock(tmp_path / "servers.lock")["pandas"] == server
    keys = [(package.name, package.version) for package in server.packages]
    assert len(keys) == len(set(keys)) > len({name for name, _ in keys})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("uvx gymcp-no-such-package==1.0", "resolve: .*gymcp-no-such-package was not found"),
        ("uvx mcp-server-time==1.2.3.4", r"resolve: .*mcp-server-time==1\.2\.3\.4"),
        ("npx -y @gymcp-none/no-such-package@1.0.0", "resolve: .*could not be found"),
        ("uvx docopt==0.6.2", "resolve: .*no usable wheels.*to build it in a sandbox add --build docopt"),
        ("npx -y bufferutil@4.0.8", "resolve: package 'bufferutil' 4.0.8 runs scripts.*add --build bufferutil"),
    ],
)
def test_an_unavailable_package_is_one_error(line: str, said: str, node: None) -> None:
    wanted = parse_command(line, name="nope")
    with pytest.raises(ConfigError, match=f"server 'nope': {said}") as caught:
        resolve(wanted)
    assert "\n" not in str(caught.value)


def test_real_packages_are_built_when_their_names_are_given(
    node: None, bwrap: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by setuptools from its setup.py, which comes as a wheel of its own; one by the install script of another."""
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path))
    docopt = resolve(replace(parse_command("uvx docopt==0.6.2"), build=("docopt",)))
    (package,) = docopt.packages
    assert [needed.name for needed in package.build or ()] == ["setuptools"]
    assert list(ensure_installed(docopt).glob("venv/lib/*/site-packages/docopt.py"))
    bufferutil = resolve(replace(parse_command("npx bufferutil@4.0.8"), build=("bufferutil",)))
    assert [(p.name, p.build) for p in bufferutil.packages if p.build is not None] == [("node_modules/bufferutil", ())]
    verify_installed(bufferutil)


def test_an_error_for_a_missing_program_names_those_that_exist(time: LockedServer, memory: LockedServer) -> None:
    wrong = replace(time, command=("uvx", "--from", "mcp-server-time==2026.10.19", "clock"))
    with pytest.raises(
        ConfigError, match=r"install: package 'mcp-server-time' has no program 'clock'; have mcp-server-"
    ):
        make_spec(wrong)
    wrong = replace(memory, command=("npx", "-y", "-p", "@modelcontextprotocol/server-memory@2026.8.31", "clock"))
    with pytest.raises(ConfigError, match=r"has no program 'clock'; have mcp-server-memory"):
        make_spec(wrong)


def test_an_unset_variable_prevents_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLOCK_ZONE", raising=False)
    with pytest.raises(ConfigError, match="server 'time': start: environment variable 'CLOCK_ZONE' is not set"):
        locked_server("time", lock=LOCK, env={"TZ": "${CLOCK_ZONE}"})


def test_filled_in_values_are_known_as_secrets(time: LockedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOCK_TOKEN", "value-of-a-token")
    monkeypatch.setenv("CLOCK_ZONE", "Asia/Tokyo")
    args = ["--local-timezone", "${CLOCK_ZONE}"]
    spec = locked_server("time", lock=LOCK, env={"KEY": "Bearer ${CLOCK_TOKEN}"}, args=args)
    assert (spec.env["KEY"], spec.argv[-1]) == ("Bearer value-of-a-token", "Asia/Tokyo")
    assert spec.secrets == {"value-of-a-token": "${CLOCK_TOKEN}", "Asia/Tokyo": "${CLOCK_ZONE}"}
    assert spec.launch().secrets == spec.secrets
    assert "value-of-a-token" not in repr(spec.secrets and spec.parts())
    monkeypatch.setenv("CLOCK_TOKEN", "hunter2")
    with pytest.raises(ConfigError, match="server 'time': environment variable 'CLOCK_TOKEN' holds 7 characters"):
        locked_server("time", lock=LOCK, env={"KEY": "Bearer ${CLOCK_TOKEN}"})


def test_with_other_arguments_the_tools_are_not_compared(time: LockedServer, bwrap: Sandbox) -> None:
    """Tools may depend on the arguments, so they are compared only for the locked arguments."""
    spec = locked_server("time", lock=LOCK, args=["--local-timezone", "Asia/Tokyo"])
    assert (spec.tools_sha256, locked_server("time", lock=LOCK).tools_sha256) == (None, time.tools_sha256)
    assert "Asia/Tokyo" in call_tool(spec, bwrap, "get_current_time", {"timezone": "Asia/Tokyo"})


def test_nothing_is_imported_from_the_folder_that_the_agent_writes_to(time: LockedServer) -> None:
    assert make_spec(time).argv[:4] == (
        "/srv/server/venv/bin/python",
        "-s",
        "-B",
        "/srv/server/venv/bin/mcp-server-time",
    )
