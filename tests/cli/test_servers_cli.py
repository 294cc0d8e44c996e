"""`gymcp servers` and `gymcp new`, as a newcomer uses them, on real packages."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from cli_runner import gymcp
from own_programs import write_kv
from page_blocks import DOCS, NOT_PLAYED, read_sections
from page_player import play_blocks
from stderr_lines import errors

from gymcp.mcp_servers.packages.lockfile import read_locked_server

LOCK = Path(__file__).parents[2] / "envs" / "catalog" / "servers.lock"
CLOCK = "uvx mcp-server-time==2026.10.19"


SECTIONS = tuple(read_sections(DOCS / "adding-a-server.md").items())
"""(heading, blocks) of each section with blocks."""
FIRST, LATER = (1, 2, 3), (4, 5, 6, 10)
"""Numbers of the sections that are played in one folder, and of those that stand by themselves."""
ELSEWHERE = 7
"""Section that tests/cli/test_remote_cli.py plays, with a server elsewhere."""


def play_section(number: int, folder: Path) -> None:
    """Run every shell block of the section and write every block with a file name, in order."""
    heading, blocks = SECTIONS[number - 1]
    assert heading.startswith(f"{number}. ")
    assert play_blocks(blocks, folder) >= 1


def test_the_documentation_works_as_it_is_written_up_to_the_lock(node: None, tmp_path: Path) -> None:
    """A first episode takes two commands; the sections on tasks and on the lock go on from there."""
    play_section(1, tmp_path)
    text = (tmp_path / "clock.py").read_text()
    assert "# convert_time(source_timezone: string, time: string, target_timezone: string)" in text
    assert json.loads((tmp_path / "runs" / "first" / "summary.json").read_text())["success"] == 1.0
    for number in FIRST[1:]:
        play_section(number, tmp_path)


@pytest.mark.parametrize("number", LATER)
def test_the_documentation_works_as_it_is_written(number: int, node: None, tmp_path: Path) -> None:
    play_section(number, tmp_path)


def test_no_section_with_commands_is_left_out() -> None:
    run = [
        int(heading.split(".")[0])
        for heading, blocks in SECTIONS
        if any(block.language in ("sh", "python") and block.mark not in NOT_PLAYED for block in blocks)
    ]
    assert run == sorted([*FIRST, *LATER, ELSEWHERE])


def test_new_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "clock.py").write_text("mine")
    done = gymcp("new", "clock", "--server", CLOCK, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "gymcp: new: clock.py is there already; choose another name, or remove it\n",
    )
    assert [path.name for path in tmp_path.iterdir()] == ["clock.py"]


def test_a_server_does_not_replace_another_one_of_the_same_name(tmp_path: Path) -> None:
    """Each error comes before any download: neither package exists."""
    shutil.copy(LOCK, tmp_path)
    before = LOCK.read_text()
    for words in (
        ("servers", "add", "npx -y @gymcp-nobody/server-memory@1.0.0"),
        ("new", "mine", "--server", "npx -y @gymcp-nobody/server-memory@1.0.0"),
        ("new", "mine", "--server", "https://mcp.time.example/mcp"),
    ):
        done = gymcp(*words, cwd=tmp_path)
        assert (done.returncode, len(errors(done.stderr))) == (2, 1), done.stderr
        assert re.search(
            r"has another server '(memory|time)': (npx|uvx) .*; call this one .* --(server-)?name NAME", done.stderr
        )
    named = gymcp("new", "mine", "--server", "uvx gymcp-nobody-time==1.0.0", "--server-name", "mine", cwd=tmp_path)
    assert "server 'mine': resolve" in named.stderr
    assert (tmp_path / "servers.lock").read_text() == before


def test_a_lock_is_created_listed_checked_and_its_drift_is_reported(tmp_path: Path) -> None:
    """The server has the MCP library among its packages, and starts fast because it does not import it."""
    write_kv(tmp_path / "source")
    lock = tmp_path / "servers.lock"
    words = ("python source/kv_server.py", "--with", "mcp>=2")
    added = gymcp("servers", "add", *words, "--lock", lock, cwd=tmp_path)
    assert added.returncode == 0, added.stderr
    listed = json.loads(gymcp("servers", "list", "--lock", lock, "--json").stdout)["servers"]
    assert [(row["name"], row["version"], row["sdk_major"], row["installed"]) for row in listed] == [
        ("kv", read_locked_server(lock, "kv").version, 2, True)
    ]
    checked = gymcp("servers", "check", "--lock", lock, "--json")
    assert checked.returncode == 0, checked.stdout
    synced = gymcp("servers", "sync", "--lock", lock)
    assert "kv: already in" in synced.stdout

    text = lock.read_text()
    was = re.search(r'^value = "(\w+)"$', text, re.MULTILINE)
    assert was is not None
    lock.write_text(text.replace(was[1], "0" * 16))
    edited = gymcp("servers", "check", "--lock", lock)
    assert edited.returncode == 2
    assert "tools_sha256 does not belong to its tools" in edited.stderr
    relocked = gymcp("servers", "lock", "--lock", lock)
    assert relocked.returncode == 0, relocked.stderr
    assert lock.read_text() == text


def test_check_names_what_differs_and_exits_with_1(tmp_path: Path) -> None:
    lock = tmp_path / "servers.lock"
    lock.write_text(
        LOCK.read_text().replace(
            'version = "2026.10.19"\ncommand = [\n    "uvx",\n    "mcp-server-time',
            'version = "1.0"\ncommand = [\n    "uvx",\n    "mcp-server-time',
        )
    )
    done = gymcp("servers", "check", "time", "--lock", lock)
    assert done.returncode == 1
    assert "FAIL  time" in done.stdout
    assert "locked is version 1.0, installed is 2026.10.19" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["servers", "add", "uvx gymcp-no-such-package==1"], "server 'gymcp-no-such-package': resolve: "),
        *(
            (["servers", verb], "lock 'servers.lock': not found in this folder; make it with: gymcp servers add 'uvx ")
            for verb in ("check", "sync", "lock")
        ),
        (["servers", "list", "--lock", "my.lock"], "gymcp servers add 'uvx PACKAGE==VERSION' --lock my.lock"),
        (["new", "clock", "--server", CLOCK, "--server-name", "my time"], "with --name (of gymcp new: --server-name)"),
        (["servers", "check", "nope", "--lock", LOCK], "no server 'nope'; have excel, filesystem, git"),
        (["servers", "lock", "nope", "--lock", LOCK], "no server 'nope'; have excel, filesystem, git"),
        (["new", "clock", "--server", "python server.py"], "/server.py' is not there"),
        (["new", "clock", "--with", "mcp<2"], "new: has options of a server, but no server"),
        (["new", "my-clock"], "new: name 'my-clock': without a server it names a Python module"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[object], said: str, tmp_path: Path) -> None:
    done = gymcp(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert len(errors(done.stderr)) == 1
    assert list(tmp_path.iterdir()) == []


def test_new_does_not_offer_to_replace_a_server_of_the_lock(tmp_path: Path) -> None:
    shutil.copy(LOCK, tmp_path / "servers.lock")
    words = ("--server", "npx -y gymcp-no-such-package@1.0.0")
    done = gymcp("new", "clock", *words, "--server-name", "time", cwd=tmp_path)
    assert (done.returncode, len(errors(done.stderr))) == (2, 1)
    assert "has another server 'time'" in done.stderr
    assert done.stderr.rstrip().endswith("call this one something else with --server-name NAME")


def test_a_run_refuses_changed_files_and_sync_installs_them_again(tmp_path: Path) -> None:
    write_kv(tmp_path)
    made = gymcp("new", "kv", "--server", "python kv_server.py", "--with", "pyyaml==6.0.2", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    env = {"GYMCP_HOME": str(tmp_path / "home")}
    first = gymcp("servers", "sync", "kv", cwd=tmp_path, env=env)
    assert "kv: installed in" in first.stdout
    (changed,) = tmp_path.glob("home/servers/kv-*/venv/lib/*/site-packages/yaml/reader.py")
    changed.write_text(changed.read_text() + "\n# harmless?\n")
    refused = gymcp("eval", "kv.py", "--agent", "oracle", "--limit", "1", "--out", "run", cwd=tmp_path, env=env)
    assert refused.returncode == 2
    assert "yaml/reader.py' has changed; run: gymcp servers sync" in refused.stderr
    again = gymcp("servers", "sync", "kv", cwd=tmp_path, env=env)
    assert (again.returncode, "kv: installed again in" in again.stdout) == (0, True)
    assert "harmless" not in changed.read_text()
    assert "kv: already in" in gymcp("servers", "sync", "kv", cwd=tmp_path, env=env).stdout


def test_a_list_at_80_columns_cuts_no_name_off() -> None:
    listed = gymcp("servers", "list", "--lock", LOCK, env={"COLUMNS": "80"})
    assert "…" not in listed.stdout
    assert "installed" in listed.stdout
    assert max(map(len, listed.stdout.splitlines())) <= 80
