from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gymcp import __version__
from gymcp.errors import StoreError
from gymcp.store import create_run, open_run
from gymcp.store.run_folder import git_revision

CONFIG: dict[str, object] = {
    "env": "shop",
    "agent": "oracle",
    "limits": {"steps": 10, "agent_s": None},
    "tasks": ("a", "b"),
}


def refusal(folder: Path, config: dict[str, object] = CONFIG, *, resume: bool = False) -> str:
    with pytest.raises(StoreError) as caught, create_run(folder, config, resume=resume):
        pass
    return str(caught.value).removeprefix(f"run folder {folder}: ")


def start(folder: Path) -> None:
    with create_run(folder, CONFIG):
        pass


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("there", ["absent", "empty", "killed at birth"])
def test_a_run_starts_if_there_is_none(tmp_path: Path, resume: bool, there: str) -> None:
    folder = tmp_path / "runs" / "one"
    if there != "absent":
        folder.mkdir(parents=True)
    if there == "killed at birth":
        (folder / ".lock").write_text("1")
        (folder / ".run.json.77.tmp").write_text("{")
    with create_run(folder, CONFIG, seeds=[1, 2], versions={"mcp": "2.3.0"}, resume=resume) as run:
        assert run.config == {**CONFIG, "tasks": ["a", "b"]}
        assert run.seeds == (1, 2)
        assert run.versions["gymcp"] == __version__
        assert run.versions["mcp"] == "2.3.0"
    assert open_run(folder) == run


def test_a_second_start_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    start(tmp_path)
    before = (tmp_path / "run.json").read_bytes()
    assert refusal(tmp_path) == "already holds a run; resume it, or choose another folder"
    assert (tmp_path / "run.json").read_bytes() == before


def test_resuming_returns_the_run_that_was_started(tmp_path: Path) -> None:
    with create_run(tmp_path, CONFIG, seeds=[3]) as first:
        pass
    with create_run(tmp_path, CONFIG, seeds=[4], resume=True) as again:
        assert again == first


def test_each_start_of_a_run_is_recorded_and_none_is_compared(tmp_path: Path) -> None:
    for number, chosen in enumerate(({"episodes": 4}, {"episodes": 9})):
        with create_run(tmp_path, CONFIG, resume=bool(number), start=chosen) as run:
            assert [{**each, "at": ""} for each in run.starts][-1] == {"at": "", **chosen}
    run = open_run(tmp_path)
    assert [each["episodes"] for each in run.starts] == [4, 9]
    assert run.created <= run.starts[0]["at"] <= run.starts[1]["at"]
    assert run.config == {**CONFIG, "tasks": ["a", "b"]}


def test_starts_that_were_edited_are_one_line(tmp_path: Path) -> None:
    start(tmp_path)
    record = json.loads((tmp_path / "run.json").read_text())
    for wrong in (3, [3], ["x"]):
        (tmp_path / "run.json").write_text(json.dumps({**record, "starts": wrong}))
        with pytest.raises(StoreError, match=r"run\.json is not the record of a run"):
            open_run(tmp_path)


def test_resuming_with_another_config_names_every_difference(tmp_path: Path) -> None:
    start(tmp_path)
    other = {"env": "shop", "agent": "null", "limits": {"steps": True, "agent_s": None}, "seed": 1}
    assert refusal(tmp_path, other, resume=True) == (
        'was started with another config: agent was "oracle", is now "null"; limits.steps was 10, is now true;'
        ' seed was nothing, is now 1; tasks was ["a", "b"], is now nothing'
    )


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    assert refusal(tmp_path, resume=True) == "holds no run, but is not empty: thesis.tex"
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refusal(tmp_path / "file" / "run") == "cannot be written: Not a directory"
    assert refusal(tmp_path / "file") == "cannot be written: File exists"


def test_a_config_that_is_not_json_makes_no_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path / "run", {"x": object()}).startswith("the config is not JSON: ")
    assert not (tmp_path / "run").exists()


def test_a_newer_run_asks_for_an_upgrade(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"format": 9}))
    expected = "written by a newer gymcp (format 9; this one reads up to 1): upgrade gymcp"
    assert refusal(tmp_path, resume=True) == expected
    with pytest.raises(StoreError, match="upgrade gymcp"):
        open_run(tmp_path)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[]", "is not the record of a run"),
        ('{"format": 1}', "is not the record of a run: it has no 'config'"),
        ('{"format": 1, "config": []}', r"run.json: 'config' is not an object, but \[\]"),
        ('{"format": "x"}', "is not the record of a run"),
    ],
)
def test_a_broken_record_is_one_line(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(StoreError, match=why):
        open_run(tmp_path)


def test_a_folder_without_a_run_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"holds no run\.json"):
        open_run(tmp_path)


def test_surrogates_in_a_config_survive(tmp_path: Path) -> None:
    with create_run(tmp_path, {"path": "caf\udce9"}) as run:
        assert run.config == {"path": "caf\udce9"}


HOLDER = """
import sys
from pathlib import Path
from gymcp.store import create_run
with create_run(Path(sys.argv[1]), {"a": 1}):
    print("holding", flush=True)
    sys.stdin.read()
"""


def test_a_folder_in_use_is_refused_until_its_process_has_ended_even_by_kill_9(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        assert refusal(folder, {"a": 1}, resume=True) == f"in use by another gymcp (process {process.pid})"
        process.kill()
    with create_run(folder, {"a": 1}, resume=True) as run:
        assert run.config == {"a": 1}


def test_the_lock_is_released_when_the_run_raises(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="of the run itself"), create_run(tmp_path, CONFIG):
        raise OSError("of the run itself")
    with create_run(tmp_path, CONFIG, resume=True):
        pass


def test_the_revision_names_the_commit_and_says_when_it_is_dirty(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    assert git_revision(tmp_path) is None
    git("init")
    (tmp_path / "x").write_text("1")
    git("add", "x")
    git("commit", "-m", "one")
    git("tag", "v1")
    assert git_revision(tmp_path) == git("rev-parse", "HEAD")
    (tmp_path / "x").write_text("2")
    assert git_revision(tmp_path) == git("rev-parse", "HEAD") + "-dirty"
