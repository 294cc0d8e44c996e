"""Servers at a URL on the command line: added, recorded, replayed, and never called in replay mode."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runner import gymcp
from page_blocks import DOCS, read_sections
from page_player import play_blocks
from remote_counter import elsewhere

from gymcp.errors import ConfigError, EnvInfraError
from gymcp.mcp_servers.packages.commands import parse_command, read_config
from gymcp.mcp_servers.packages.install import is_present
from gymcp.mcp_servers.packages.install_request import InstallRequest
from gymcp.mcp_servers.packages.locked_server import check_server, lock_server, locked_server
from gymcp.mcp_servers.packages.lockfile import read_lock, write_lock
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.spec import HttpPort, ServerSpec
from gymcp.mcp_servers.transports.http_remote import check_remotes, select_cassette_mode


def test_a_new_environment_records_once_and_replays_for_ever(tmp_path: Path) -> None:
    env = {"GYMCP_TEST_TOKEN": "s3cret-t0ken"}
    with elsewhere() as url:
        made = gymcp(
            "new", "far", "--server", url, "--header", "Authorization=${GYMCP_TEST_TOKEN}", cwd=tmp_path, env=env
        )
        assert made.returncode == 0, made.stderr
        assert "next: gymcp eval far.py --agent oracle --cassette record" in made.stdout
        recorded = gymcp("eval", "far.py", "--cassette", "record", "--out", "one", "--json", cwd=tmp_path, env=env)
        assert (recorded.returncode, json.loads(recorded.stdout)["success"]) == (0, 1.0), recorded.stderr
    played = gymcp("eval", "far.py", "--out", "two", "--json", cwd=tmp_path)
    assert (played.returncode, json.loads(played.stdout)["success"]) == (0, 1.0), played.stderr
    runs = [json.loads((tmp_path / run / "run.json").read_text())["config"]["cassettes"] for run in ("one", "two")]
    digest = hashlib.sha256((tmp_path / "far.cassette.jsonl").read_bytes()).hexdigest()
    assert [list(run.values()) for run in runs] == [["recording"], [digest]]
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"s3cret" not in path.read_bytes(), path
    checked = gymcp("check", "far.py", "--json", cwd=tmp_path)
    checks = json.loads(checked.stdout)["checks"]
    assert (checked.returncode, [name for name, check in checks.items() if not check["passed"]]) == (0, []), checks
    program = tmp_path / "far.py"
    program.write_text(program.read_text().replace("{'word': ", "{'word': 'not recorded' + "))
    missed = gymcp("eval", "far.py", "--out", "three", "--json", cwd=tmp_path)
    assert (missed.returncode, json.loads(missed.stdout)["outcomes"]) == (3, {"env_infra": 1}), missed.stderr


def test_the_section_on_servers_elsewhere_works_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEATHER_TOKEN", "s3cret-t0ken")
    blocks = read_sections(DOCS / "adding-a-server.md")["7. Servers elsewhere"]
    with elsewhere() as url:
        assert play_blocks(blocks, tmp_path, replace={"https://HOST/mcp": url}) == 2
    assert (tmp_path / "weather.cassette.jsonl").is_file()


REPEATING = """
from gymcp.envs import EnvSpec
from gymcp.evaluators.graders import as_target, calls_made
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import GoldTurn, Suite, Task, ToolCall

CALL = ToolCall(id="1", name="whoami", arguments={})
task = Task(id="t", prompts=("Who?",), target=as_target([CALL]), gold=(GoldTurn(calls=(CALL,), final_text="."),))
headers = {"Authorization": "Basic ${GYMCP_TEST_TOKEN}"}
server = ServerSpec(name="far", url=URL, headers=headers, state="stateless")
ENV = EnvSpec(name="far", servers=(server,), suite=Suite(name="far", version="1", tasks=(task,)), grade=calls_made())
"""


def test_a_run_and_its_reports_hold_no_token_that_a_server_repeats(tmp_path: Path) -> None:
    token = base64.b64encode(b"anna:correct-horse").decode()
    with elsewhere() as url:
        (tmp_path / "far.py").write_text(f"URL = {url!r}\n{REPEATING}")
        env = {"GYMCP_TEST_TOKEN": token}
        done = [gymcp("eval", "far.py", "--agent", "oracle", "--out", "run", cwd=tmp_path, env=env)]
        done += [gymcp("check", "far.py", cwd=tmp_path, env=env), gymcp("tools", "far.py", cwd=tmp_path, env=env)]
    assert [each.returncode for each in done] == [0, 0, 0], done
    for format in ("jsonl", "csv", "atif"):
        done.append(gymcp("export", "run", "--format", format, cwd=tmp_path))
    said = "".join(each.stdout + each.stderr for each in done)
    said += "".join(file.read_bytes().decode("latin-1") for file in tmp_path.rglob("*") if file.is_file())
    assert "Basic ${GYMCP_TEST_TOKEN}" in (tmp_path / "run" / "export.jsonl").read_text()
    for secret in (token, "correct-horse", "correct%2Dhorse"):
        assert secret not in said


def test_a_lock_holds_remote_servers(tmp_path: Path) -> None:
    lock = tmp_path / "servers.lock"
    sandbox = get_sandbox("bwrap")
    with elsewhere() as url:
        server = lock_server(parse_command(url, name="far"), sandbox)
        write_lock(lock, {"far": server})
        assert read_lock(lock) == {"far": server}
        assert [tool.name for tool in check_server(server, sandbox)] == ["count", "whoami"]
    spec = locked_server("far", lock=lock, state="stateless")
    assert (spec.url, spec.argv, spec.tools_sha256) == (url, (), server.tools_sha256)
    assert is_present(server)
    with pytest.raises(ConfigError, match="server 'far': runs elsewhere: it takes no env"):
        locked_server("far", lock=lock, env={"A": "b"})
    with pytest.raises(EnvInfraError, match="ConnectError"):
        check_server(server, sandbox)


FAR = ServerSpec(name="far", url="https://example.org/mcp", headers={"A": "${GYMCP_TEST_UNSET}"}, state="stateless")


def test_an_unplayable_cassette_is_reported_before_anything_runs(tmp_path: Path) -> None:
    taped = replace(FAR, cassette=tmp_path / "far.jsonl")
    for servers, mode, said in (
        ((FAR,), "record", "--cassette record: no server has a cassette"),
        ((FAR,), "both", "--cassette both: have record, replay"),
        ((FAR,), "replay", "--cassette replay: server 'far' has no cassette and would be called"),
        ((FAR,), None, "server 'far': environment variable 'GYMCP_TEST_UNSET' is not set"),
        ((taped,), None, "far.jsonl': not found; record it with: gymcp eval ENV --cassette record"),
        ((taped,), "record", "server 'far': environment variable 'GYMCP_TEST_UNSET' is not set"),
        ((ServerSpec(name="web", argv=("a",), http=HttpPort(port=1)),), None, "--sandbox none has only the host's"),
    ):
        with pytest.raises(ConfigError) as caught:
            check_remotes(select_cassette_mode(servers, mode), get_sandbox("none"))
        assert said in str(caught.value)


def config(tmp_path: Path, **entry: object) -> list[InstallRequest]:
    path = tmp_path / "claude_desktop_config.json"
    path.write_text(json.dumps({"mcpServers": {"far": entry}}))
    return read_config(path)


def test_entries_with_a_url_are_imported_as_remote_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYMCP_TEST_TOKEN", "x")
    (far,) = config(tmp_path, url="https://example.org/mcp", headers={"Authorization": "Bearer ${GYMCP_TEST_TOKEN}"})
    assert (far.name, far.runtime, far.url, far.package) == ("far", "remote", "https://example.org/mcp", "example.org")
    assert far.headers == {"Authorization": "Bearer ${GYMCP_TEST_TOKEN}"}
    (here,) = config(tmp_path, command="npx", args=["-y", "a@1"], url="http://localhost:3001/mcp")
    assert (here.runtime, here.package, here.http, here.url) == ("node", "a", "3001/mcp", "")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({}, "has no command and no url"),
        ({"url": "https://example.org", "headers": {"X-Api-Key": "abc"}}, "header 'X-Api-Key' looks like a secret"),
        ({"url": "https://example.org?api_key=abc"}, "query 'api_key' looks like a secret"),
        ({"url": "https://example.org", "headers": {"A": "${GYMCP_TEST_UNSET}"}}, "not set: server 'far': GYMCP_TEST"),
        ({"url": "https://example.org", "headers": ["a"]}, "headers must map names to texts"),
        ({"url": "https://example.org", "type": "sse"}, "type 'sse' is the transport of 2024"),
        ({"url": "https://example.org", "args": ["a"]}, "it takes no arguments, env or http"),
        ({"url": "ftp://example.org"}, "command 'ftp://example.org' is not one that can be locked"),
        ({"command": "npx", "args": ["-y", "a@1"], "url": "https://example.org"}, "where it listens must be"),
    ],
)
def test_a_bad_entry_is_one_error(entry: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, **entry)
    assert said in str(caught.value)


def test_headers_are_for_urls_only() -> None:
    with pytest.raises(ConfigError, match="headers are for servers at a url"):
        parse_command("npx -y a@1", headers={"A": "b"})
