"""Servers of one's own become environments: with gates, with the state in their files, and locked to the byte."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import warm_command
from cli_runner import gymcp
from own_programs import COUNTER, COUNTS, HTTP, write_javascript, write_kv, write_project, write_typescript
from stderr_lines import errors

from gymcp.mcp_servers.packages.lockfile import read_lock
from gymcp.mcp_servers.packages.own_source.source import folder_of_copy

FASTMCP_1 = """\
# /// script
# dependencies = ["mcp"]
# ///
from mcp.server.fastmcp import FastMCP

server = FastMCP("old")


@server.tool()
def double(number: int) -> int:
    "Twice a number."
    return 2 * number


if __name__ == "__main__":
    server.run()
"""


def plays(folder: Path, name: str, *options: str) -> dict[str, object]:
    """Summary of a run with gold, and the run's config under ``config``."""
    done = gymcp("eval", f"{name}.py", "--agent", "oracle", "--out", f"run-{name}", "--json", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    record = json.loads((folder / f"run-{name}" / "run.json").read_text())
    return {**json.loads(done.stdout), "config": record["config"], "stderr": done.stderr}


def make_env(folder: Path, name: str, *options: str) -> str:
    """Text of the environment file that ``gymcp new`` wrote."""
    done = gymcp("new", name, *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    return (folder / f"{name}.py").read_text()


def test_a_file_becomes_an_environment_with_its_files_as_state(tmp_path: Path) -> None:
    write_kv(tmp_path)
    done = gymcp("new", "kv", "--server", "python kv_server.py", "--check", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "wrote kv.py and servers.lock: 4 tools, one task\nstate: FileState(): the trial calls changed files (kv.txt)"
        in done.stdout
    )
    assert "calls failed for want of network" in done.stdout
    text = (tmp_path / "kv.py").read_text()
    assert 'locked_server("kv", lock=LOCK, state=FileState())' in text
    assert "# A call that works on a fresh server, and changes kv.txt." in text
    assert 'name="put"' in text
    assert "Store a value under a key: key" in text
    assert [line.split()[:2] for line in done.stdout.splitlines() if line.startswith(("pass", "FAIL"))] == [
        ["pass", check]
        for check in ("check_env", "oracle", "null", "mutated", "gold", "reset", "repeat", "tools", "leaks")
    ]
    *_, ended, following = done.stdout.splitlines()
    assert (ended[:17], following) == ("all checks passed", "next: gymcp eval kv.py --agent oracle")
    assert plays(tmp_path, "kv")["success"] == 1.0
    entry = read_lock(tmp_path / "servers.lock")["kv"]
    assert entry.source is not None
    assert list(entry.source.files) == ["kv_server.py", "wire.py"]
    assert (entry.command, entry.forks) == (("python", "./kv_server.py"), True)
    cleaned = gymcp("clean", "--servers", "--dry-run", "--lock", "servers.lock", cwd=tmp_path)
    assert folder_of_copy(entry, entry.source.files).name not in cleaned.stdout  # that of another test may be


DICE = """\
import os
from pathlib import Path

from wire import serve


def roll():
    "Roll the dice, and note what they show."
    Path("dice.bin").write_bytes(os.urandom(9))
    return "rolled"


serve(roll)
"""


def test_a_check_that_fails_leaves_the_files_and_says_how_to_go_on(tmp_path: Path) -> None:
    write_kv(tmp_path)
    (tmp_path / "dice_server.py").write_text(DICE)
    done = gymcp("new", "dice", "--server", "python dice_server.py", "--check", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "\nFAIL  repeat" in done.stdout
    assert done.stdout.endswith("next: mend dice.py, then: gymcp check dice.py\n")
    assert list(read_lock(tmp_path / "servers.lock")) == ["dice"]
    assert (tmp_path / "dice.py").is_file()


def test_a_check_that_breaks_off_leaves_the_files_and_says_how_to_go_on(tmp_path: Path) -> None:
    nowhere = {"DOCKER_HOST": f"unix://{tmp_path}/no.sock"}
    done = gymcp("new", "todo", "--check", "--sandbox", "docker", cwd=tmp_path, env=nowhere)
    assert (done.returncode, len(errors(done.stderr))) == (2, 1), done.stderr
    assert done.stdout.splitlines()[-1] == "next: gymcp check todo.py --sandbox docker"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test_todo.py", "todo.py"]


def test_a_server_sees_its_own_files_and_none_beside_them(tmp_path: Path) -> None:
    write_kv(tmp_path)
    text = make_env(tmp_path, "kv", "--server", "python kv_server.py", "--env", "COLOUR=green")
    assert dict(read_lock(tmp_path / "servers.lock")["kv"].env) == {"COLOUR": "green"}
    looks = re.sub(r"arguments=\{.*\}", "arguments={}", text.replace('name="put"', 'name="look"'))
    (tmp_path / "kv.py").write_text(looks)
    assert plays(tmp_path, "kv")["success"] == 1.0
    shown = gymcp("export", "run-kv", "--format", "jsonl", "--out", "run.jsonl", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "(['kv_server.py', 'wire.py'], 'refused')" in (tmp_path / "run.jsonl").read_text()


def test_a_changed_file_is_an_error_until_it_is_accepted(tmp_path: Path) -> None:
    write_kv(tmp_path)
    make_env(tmp_path, "kv", "--server", "python kv_server.py")
    wire = tmp_path / "wire.py"
    wire.write_text(wire.read_text() + "# harmless?\n")
    refused = gymcp("eval", "kv.py", "--agent", "oracle", "--out", "run-kv", cwd=tmp_path)
    assert (refused.returncode, len(errors(refused.stderr))) == (2, 1)
    assert "source file 'wire.py' has changed since it was locked; to accept that run: gymcp servers lock kv" in (
        refused.stderr
    )
    assert not (tmp_path / "run-kv").exists()
    checked = gymcp("servers", "check", cwd=tmp_path)
    assert checked.returncode == 1
    accepted = gymcp("servers", "lock", "kv", cwd=tmp_path)
    assert accepted.returncode == 0, accepted.stderr
    assert plays(tmp_path, "kv")["success"] == 1.0


def test_dev_accepts_changes_and_says_so(tmp_path: Path) -> None:
    write_kv(tmp_path)
    make_env(tmp_path, "kv", "--server", "python kv_server.py", "--dev")
    before = plays(tmp_path, "kv")["config"]
    program = tmp_path / "kv_server.py"
    program.write_text(program.read_text().replace("Store a value under a key.", "Keep a value."))
    (tmp_path / "run-kv").rename(tmp_path / "first")
    after = plays(tmp_path, "kv")
    assert "server 'kv': --dev: its source runs as it is now" in str(after["stderr"])
    assert isinstance(before, dict)
    assert isinstance(after["config"], dict)
    assert before["dev_sources"]["kv"] != after["config"]["dev_sources"]["kv"]


def test_a_module_of_the_working_folder_becomes_an_environment(tmp_path: Path) -> None:
    write_kv(tmp_path)
    make_env(tmp_path, "kv", "--server", "python -m kv_server", "--server-name", "kv")
    assert plays(tmp_path, "kv")["success"] == 1.0
    entry = read_lock(tmp_path / "servers.lock")["kv"]
    assert entry.command == ("uv", "run", "--directory", ".", "python", "-m", "kv_server")
    assert entry.source is not None
    assert {"kv_server.py", "wire.py"} <= set(entry.source.files)


@pytest.mark.parametrize("line", [None, "python -m kv_tools.app"])
def test_a_folder_with_a_project_becomes_an_environment(line: str | None, tmp_path: Path) -> None:
    write_project(tmp_path / "project")
    make_env(tmp_path, "kv", "--path", "project", *(["--server", line] if line else []), "--server-name", "kv")
    assert plays(tmp_path, "kv")["success"] == 1.0
    entry = read_lock(tmp_path / "servers.lock")["kv"]
    assert entry.command[:4] == ("uv", "run", "--directory", "./project")
    assert entry.source is not None
    assert "src/kv_tools/wire.py" in entry.source.files


def test_javascript_with_a_package_becomes_an_environment(node: None, tmp_path: Path) -> None:
    """The dependency is imported, so it must have been installed where the copy of the source finds it."""
    write_javascript(tmp_path / "js", '{"is-number": "7.0.0"}')
    program = tmp_path / "js" / "kv.js"
    program.write_text('import isNumber from "is-number";\nif (!isNumber(1)) process.exit(1);\n' + program.read_text())
    text = make_env(tmp_path, "kv", "--path", "js", "--server-name", "kv")
    assert "state=FileState()" in text
    assert plays(tmp_path, "kv")["success"] == 1.0
    entry = read_lock(tmp_path / "servers.lock")["kv"]
    assert entry.command == ("node", "./js/kv.js")
    assert [package.name for package in entry.packages] == ["node_modules/is-number"]
    assert entry.source is not None
    assert sorted(entry.source.files) == ["kv.js", "package.json", "tools.js"]


SIX = {
    "version": "6.0.0",
    "integrity": "sha512-Wu1VHeILBK8KAWJUAiSZQX94GmOE45Rg6/538fKwiloUu21KncEkYGPqob2oSZ5mUT73vLGrHQjKw3KMPwfDzg==",
}


def test_the_versions_of_a_package_lock_are_kept(node: None, tmp_path: Path) -> None:
    """Without it, the newest version that package.json allows would be locked: 7."""
    needs = {"is-number": ">=6"}
    write_javascript(tmp_path / "js", json.dumps(needs))
    packages = {"": {"dependencies": needs}, "node_modules/is-number": SIX}
    text = json.dumps({"lockfileVersion": 3, "requires": True, "packages": packages})
    (tmp_path / "js" / "package-lock.json").write_text(text)
    make_env(tmp_path, "kv", "--path", "js", "--server-name", "kv")
    (package,) = read_lock(tmp_path / "servers.lock")["kv"].packages
    assert (package.version, package.files["integrity"]) == ("6.0.0", SIX["integrity"])


def test_typescript_becomes_an_environment(node: None, tmp_path: Path) -> None:
    """The program's types are left out in the sandbox by the compiler that its package.json names."""
    write_typescript(tmp_path / "ts")
    text = make_env(tmp_path, "kv", "--path", "ts", "--server-name", "kv")
    assert "state=FileState()" in text
    assert plays(tmp_path, "kv")["success"] == 1.0
    entry = read_lock(tmp_path / "servers.lock")["kv"]
    assert [package.name for package in entry.packages] == ["node_modules/typescript"]
    assert entry.source is not None
    assert sorted(entry.source.files) == ["kv.ts", "package.json", "tools.ts"]


def test_typescript_that_node_does_not_run_is_one_line(node: None, tmp_path: Path) -> None:
    done = subprocess.run(["/usr/bin/node", "--version"], capture_output=True, text=True, check=True)
    if tuple(map(int, done.stdout.strip("v\n").split(".")[:2])) >= (22, 18):
        pytest.skip("this node runs TypeScript")
    (tmp_path / "kv.ts").write_text("const a: number = 1;")
    refused = gymcp("servers", "add", "node kv.ts", cwd=tmp_path)
    assert (refused.returncode, len(errors(refused.stderr))) == (2, 1)
    assert "'kv.ts' is TypeScript, which node " in refused.stderr


def test_an_entry_of_claude_s_file_is_locked(tmp_path: Path) -> None:
    write_kv(tmp_path)
    row = {"command": "uv", "args": ["--directory", str(tmp_path), "run", "kv_server.py"], "env": {"T": "${OWN_TOKEN}"}}
    (tmp_path / "claude_desktop_config.json").write_text(json.dumps({"mcpServers": {"mine": row}}))
    secret = "s3cr3t-of-mine"
    options = ("servers", "add", "--config", "claude_desktop_config.json", "--runs-code", "--name", "ours")
    added = gymcp(*options, cwd=tmp_path, env={"OWN_TOKEN": secret})
    assert added.returncode == 0, added.stderr
    entry = read_lock(tmp_path / "servers.lock")["ours"]
    assert (dict(entry.env), entry.runs_code) == ({"T": "${OWN_TOKEN}"}, True)
    assert secret not in (tmp_path / "servers.lock").read_text()
    other = {"command": "npx", "args": ["-y", "x@1"]}
    (tmp_path / "other.json").write_text(json.dumps({"mcpServers": {"ours": other}}))
    refused = gymcp("servers", "add", "--config", "other.json", cwd=tmp_path)
    assert (refused.returncode, "has another server 'ours': python ./kv_server.py" in refused.stderr) == (2, True)
    entry_of_file = "claude_desktop_config.json:mine"
    written = gymcp("new", "shop", "--config", entry_of_file, "--runs-code", cwd=tmp_path, env={"OWN_TOKEN": secret})
    assert written.returncode == 0, written.stderr
    assert 'locked_server("mine", lock=LOCK, state=FileState())' in (tmp_path / "shop.py").read_text()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("two.json", "config 'two.json': has 2 servers: a, b; name one: two.json:NAME"),
        ("two.json:c", "config 'two.json': no server 'c'; have a, b"),
        ("nope.json:a", "config 'nope.json': cannot be read: No such file or directory"),
        ("two.json:a", "--check: server 'a' runs elsewhere, so its answers are recorded first: leave out --check,"),
    ],
)
def test_an_entry_without_a_usable_server_is_one_line(given: str, said: str, tmp_path: Path) -> None:
    rows = {"a": {"url": "https://a.invalid/mcp"}, "b": {"command": "python", "args": ["b.py"]}}
    (tmp_path / "two.json").write_text(json.dumps({"mcpServers": rows}))
    done = gymcp("new", "kv", "--config", given, "--check", cwd=tmp_path)
    assert (done.returncode, len(errors(done.stderr))) == (2, 1), done.stderr
    assert said in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["two.json"]


def test_a_file_that_speaks_only_http_becomes_an_environment(tmp_path: Path) -> None:
    """One without packages starts fast; one of the MCP library is played by benchmarks/own_servers.py."""
    (write_kv(tmp_path) / "web.py").write_text(HTTP)
    make_env(tmp_path, "twice", "--server", "python web.py", "--http", "8123", "--check")
    assert plays(tmp_path, "twice")["success"] == 1.0


def test_an_environment_over_a_server_with_a_service_passes_its_checks(tmp_path: Path) -> None:
    (write_kv(tmp_path) / "counter.py").write_text(COUNTER)
    (tmp_path / "counts.py").write_text(COUNTS)
    service = ("--include", "counter.py", "--service", "python counter.py", "--ready", "tcp:8080")
    text = make_env(tmp_path, "counting", "--server", "python counts.py", *service, "--check")
    assert "state=FileState()" in text
    assert "and changes count.txt." in text


@pytest.mark.parametrize("given", [False, True], ids=["by itself", "as told"])
def test_a_file_for_an_older_library_is_locked_with_it(given: bool, tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(FASTMCP_1)
    added = gymcp("servers", "add", "python old.py", *(["--constraint", "mcp<2"] if given else []), cwd=tmp_path)
    assert added.returncode == 0, added.stderr
    said = "server 'old': does not start with the newest packages; locked with mcp<2" in added.stderr
    assert said is not given
    entry = read_lock(tmp_path / "servers.lock")["old"]
    assert (entry.sdk_major, entry.constraints) == (1, ("mcp<2",))


def test_a_package_is_locked_with_the_packages_of_its_release(tmp_path: Path) -> None:
    """The server needs "mcp>=1.6.0", and dies with an AttributeError on version 2."""
    text = make_env(tmp_path, "db", "--server", "uvx mcp-server-sqlite==2025.4.25 --db-path notes.db")
    assert 'state=FileState(kind="sqlite", path="notes.db")' in text
    entry = read_lock(tmp_path / "servers.lock")["sqlite"]
    assert (entry.sdk_major, entry.until) == (1, "2025-04-26T00:00:00Z")
    assert plays(tmp_path, "db")["success"] == 1.0


def test_without_a_server_a_class_and_its_test_are_written(tmp_path: Path) -> None:
    """The test that is written runs `gymcp check`, too."""
    assert "class TodoList:" in make_env(tmp_path, "todo_list")
    words = ["-q", "-p", "no:cacheprovider", "test_todo_list.py"]
    tested = warm_command.run(words, cwd=tmp_path, env=os.environ, timeout_s=600, program="pytest")
    assert (tested.returncode, "3 passed" in tested.stdout) == (0, True), tested.stdout
    again = gymcp("new", "todo_list", cwd=tmp_path)
    assert "todo_list.py is there already" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["servers", "add", "python nope.py"], "nope.py' is not there"),
        (["servers", "add", "--path", "nope"], "folder 'nope' is not there"),
        (["servers", "add", "--path", "."], "folder '.' has neither pyproject.toml nor package.json"),
        (["servers", "add", "npx -y x@1", "--dev"], "--include and --dev are for a server of your own"),
        (["servers", "add", "npx -y x@1", "--with", "y"], "--with and --constraint are for servers in Python"),
        (["servers", "add", "npx -y x@1", "--only", "x"], "--only names a server of --config FILE, which is missing"),
        (["servers", "add", "--config", "c.json", "--env", "A=b"], "the environment of each server is in the file"),
        (["new", "kv", "--dev"], "new: has options of a server, but no server: give --server LINE"),
        (["new", "kv", "--runs-code"], "new: has options of a server, but no server: give --server LINE"),
        (["new", "kv", "--env", "A=b"], "new: has options of a server, but no server: give --server LINE"),
        (["new", "kv", "--config", "c.json", "--env", "A=b"], "--config FILE:NAME names the server: leave out --ser"),
        (["new", "kv", "--server", "npx x@1", "--env", "A_TOKEN=b"], "env 'A_TOKEN' looks like a secret"),
        (["servers", "add", "uvx x==1", "--with", "y @ https://h.invalid/y"], "is not from a package index"),
        (["servers", "add", "uvx x==1", "--path", ".", "--image", "x"], "give either --path FOLDER or --image IMAGE"),
        (["new", "kv", "--path", ".", "--image", "x"], "give either --path FOLDER or --image IMAGE"),
        (["new", "kv", "--config", "c.json", "--server", "x"], "--config FILE:NAME names the server: leave out"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = gymcp(*arguments, cwd=tmp_path)
    assert (done.returncode, len(errors(done.stderr))) == (2, 1), done.stderr
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_dependency_that_does_not_resolve_is_one_line(tmp_path: Path) -> None:
    write_kv(tmp_path)
    done = gymcp("servers", "add", "python kv_server.py", "--with", "gymcp-no-such-package>=1,<2", cwd=tmp_path)
    assert (done.returncode, len(errors(done.stderr))) == (2, 1)
    assert "server 'kv': resolve: " in done.stderr
    assert not (tmp_path / "servers.lock").exists()


def test_a_dependency_of_a_package_json_that_does_not_resolve_is_one_line(node: None, tmp_path: Path) -> None:
    write_javascript(tmp_path / "js", '{"gymcp-no-such-package": "1.0.0"}')
    done = gymcp("new", "kv", "--path", "js", cwd=tmp_path)
    assert (done.returncode, len(errors(done.stderr))) == (2, 1), done.stderr
    assert "resolve: " in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["js"]


def test_a_file_that_only_defines_its_server_says_how_to_start_it(tmp_path: Path) -> None:
    (tmp_path / "kv.py").write_text("server = object()\n")
    done = gymcp("servers", "add", "python kv.py", cwd=tmp_path)
    assert (done.returncode, len(errors(done.stderr))) == (1, 1), done.stderr
    assert "server 'kv': start: the server ended (exit status 0) before it served: its program must" in done.stderr
    assert "is started by: mcp run FILE.py" in done.stderr


def test_a_program_that_does_not_run_is_quoted_and_nothing_is_written(tmp_path: Path) -> None:
    """The error ends with the program's own last words, after a bar of progress and lines that say the same."""
    noise = "import sys\nfor n in range(9):\n    print(f'{n}0%|###       |', 'waiting', sep='\\n', file=sys.stderr)\n"
    (tmp_path / "kv.py").write_text(f"{noise}raise RuntimeError('no key for the store')\n")
    done = gymcp("new", "shop", "--server", "python kv.py", cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    assert "gymcp: server 'kv': start: the server ended (exit status 1); its log: " in done.stderr
    assert done.stderr.rstrip().endswith("RuntimeError: no key for the store")
    assert "waiting (9 times)" in done.stderr
    assert "%|" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["kv.py"]
