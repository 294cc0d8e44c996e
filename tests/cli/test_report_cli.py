"""`gymcp report` and `gymcp view` as users type them, with likely mistakes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from cli_runner import BANK, gymcp
from recorded_runs import make_run, write_run
from records import order_episode
from viewer_process import run_viewer

from gymcp.cli.app import run
from gymcp.cli.runs.view import find_decoder
from gymcp.store import TrajectoryStore, create_run
from gymcp.store.database import FILE_NAME
from gymcp.types import Json

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    made = folder / "oracle", folder / "random"
    for each in made:
        done = gymcp("eval", BANK, "--agent", each.name, "--sandbox", "none", "--out", each, "--json")
        assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def type_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Function from words to (exit code, standard output, standard error), in this process, which imports once."""

    def type(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["gymcp", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            run()
        out, errors = capsys.readouterr()
        return int(ended.value.code or 0), out, errors

    return type


def read_task(run: Path, *options: object) -> dict[str, Json]:
    """The facts on the task of the first episode, as the viewer with these options gives them to its page."""
    with run_viewer(run, *map(str, options)) as address, httpx.Client(timeout=60) as browser:
        (folder,) = re.findall(r'content="0; url=(/[\w-]{32}/)', browser.get(address).text)
        facts: dict[str, Json] = browser.get(f"{address.partition('/?')[0]}{folder}api/episodes/1/task").json()
    return facts


def test_gold_of_an_own_environment_is_shown_if_its_file_is_named(runs: tuple[Path, Path], tmp_path: Path) -> None:
    changed = tmp_path / "bank.py"
    changed.write_text(BANK.read_text().replace("(5, 30, 100)", "(6, 31, 99)"))
    for options in ((), ("--env", changed)):
        found = read_task(runs[0], *options)
        assert (found["gold"], found["target"], "--env FILE" in found["unknown"]) == ([], None, True)
    found = read_task(runs[0], "--env", changed, "--env", BANK)
    assert [[call["name"] for call in turn["calls"]] for turn in found["gold"]] == [["transfer"]]
    assert ("accounts" in str(found["target"]), found["unknown"]) == (True, "")


def test_several_runs_are_reported_in_three_formats(runs: tuple[Path, Path], type_command: Typed) -> None:
    code, out, _ = type_command("report", *runs)
    assert (code, out.split()[-1]) == (0, str(runs[0].parent / "report.html"))
    rows = [line.split("│")[1].strip() for line in out.splitlines() if line.startswith("│")]
    assert rows == ["oracle", "random"]
    assert "runs of bank" in (runs[0].parent / "report.html").read_text()
    assert type_command("report", *runs, "--format", "md")[1].startswith("# 2 runs")
    found = json.loads(type_command("report", *runs, "--format", "json")[1])
    assert [run["agent"] for run in found["runs"]] == ["oracle", "random"]
    assert [gate["state"] for gate in found["runs"][1]["gates"]] == ["held", "not run", "not run"]


def test_a_folder_without_a_run_is_named_and_the_others_are_reported(
    runs: tuple[Path, Path], tmp_path: Path, type_command: Typed
) -> None:
    code, out, errors = type_command("report", runs[0], tmp_path / "none", "--format", "json")
    assert code == 1
    assert f"gymcp: run folder {tmp_path / 'none'}" in errors
    assert len(json.loads(out)["runs"]) == 1


def test_a_truncated_run_is_named_and_the_rest_is_reported(tmp_path: Path, type_command: Typed) -> None:
    file = write_run(tmp_path, "steady", paying=1) / FILE_NAME
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    code, out, errors = type_command("report", tmp_path, "--json")
    read = json.loads(out)["episodes"]
    assert (code, 0 < read < 241, errors.count("\n")) == (1, True, 1)
    assert f"trajectories.sqlite is damaged: the figures are those of the first {read} episodes" in errors
    assert type_command("export", tmp_path, "--format", "csv")[2].endswith(
        "is damaged; gymcp report and gymcp view show what can be read of it\n"
    )


def test_rows_of_the_terminal_table_are_named_by_their_axis_and_sorted(tmp_path: Path, type_command: Typed) -> None:
    tags = [("zebra", "level 10", "split seeds"), ("ape", "level 2", "split values")]
    with create_run(tmp_path, {"env": "shop", "agent": "x"}), TrajectoryStore.open(tmp_path, write=True) as store:
        for n, of_task in enumerate(tags):
            store.append(order_episode(f"t{n}", 0, pays=True, run="r"), {}, tags=of_task)
    code, out, _ = type_command("report", tmp_path)
    rows = [line.split("│")[1].strip() for line in out.splitlines() if line.startswith("│")]
    assert (code, rows) == (0, ["all", "ape", "zebra", "level 2", "level 10", "split seeds", "split values"])


def test_runs_of_several_suites_are_a_table_of_suites_and_models(tmp_path: Path, type_command: Typed) -> None:
    runs = [write_run(tmp_path / "a", "steady", paying=1, tasks=2), make_run(tmp_path / "b")]
    code, out, errors = type_command("report", *runs, "--format", "md")
    assert (code, errors) == (0, "")
    assert out.startswith("# 2 suites × 2 models: shop 1, shop of unknown version\n")
    assert "| a | shop 1 | no headline figure: 40.0 .. 60.0 %, 4/5 scored, 1 infra |" in out
    assert "no two runs" not in out


def test_tokens_of_the_policy_tiny_are_shown_as_text(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    read = find_decoder(None, [make_run(tmp_path)])
    assert read is not None
    assert any(text.isalpha() for text in read(range(300)))


def test_credit_is_stored_only_with_save(runs: tuple[Path, Path], type_command: Typed) -> None:
    assert type_command("credit", runs[1], "--preset", "rloo", "--save", "--json")[0] == 0
    with TrajectoryStore.open(runs[1]) as store:
        rows = store.summaries()
        assert [store.credits(row.id)[0].preset for row in rows] == ["rloo"] * len(rows)
