"""Export and import return the recorded run, as far as the format can carry it."""

from __future__ import annotations

import csv
import io
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from inner_command import gymcp
from recorded_runs import make_run, read_run
from records import FIRST, HOSTILE, LOST, PAID, SPOKEN
from typer.testing import Result
from verdicts import Verdicts

from gymcp.errors import ConfigError, StoreError
from gymcp.exchange.csv_table import write_csv
from gymcp.exchange.export import export
from gymcp.exchange.source import open_source
from gymcp.store import EpisodeRow, TrajectoryStore
from gymcp.types import Action, SideAnswer


def run_gymcp(*words: object) -> Result:
    result = gymcp(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def export_run(run: Path, format: str, *options: object) -> Path:
    out = run.parent / f"{run.name}.{format}"
    run_gymcp("export", run, "--format", format, "--out", out, *options)
    return out


def documents(folder: Path) -> list[dict[str, object]]:
    return [json.loads(file.read_text()) for file in sorted(folder.iterdir())]


def test_json_lines_make_the_same_run_again(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", (PAID, SPOKEN, LOST, HOSTILE))
    lines = export_run(run, "jsonl").rename(tmp_path / "run.jsonl")
    run_gymcp("import", lines, "--out", tmp_path / "again")
    again = read_run(tmp_path / "again")
    assert [repr(each) for each in again] == [repr(each) for each in (PAID, SPOKEN, LOST, HOSTILE)]
    assert export_run(tmp_path / "again", "jsonl").read_bytes() == lines.read_bytes()


def test_atif_makes_the_same_run_again(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    folder = export_run(run, "atif")
    run_gymcp("import", folder, "--out", tmp_path / "again")
    assert read_run(tmp_path / "again") == [PAID, SPOKEN, LOST]
    assert sorted(file.name for file in folder.iterdir()) == [
        "000001-pay-bob-1.json",
        "000002-talk-0.json",
        "000003-lost-0.json",
    ]


@pytest.mark.parametrize("format", ["jsonl", "atif"])
def test_an_action_that_was_replaced_comes_back(format: str, tmp_path: Path) -> None:
    own = SideAnswer(step=0, context=0, action=Action(text="no"), sampled=PAID.steps[0].sampled, replaced=True)
    patched = replace(PAID, side_answers=(own,))
    out = export_run(make_run(tmp_path / "run", (patched,)), format)
    path = out.rename(tmp_path / "run.jsonl") if format == "jsonl" else out
    run_gymcp("import", path, "--out", tmp_path / "again")
    assert read_run(tmp_path / "again") == [patched]


def test_the_newest_grade_is_exported(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    graded = replace(PAID, score=1.0, components={"again": 1.0}, reason="all of it")
    with TrajectoryStore.open(run, write=True) as store:
        store.add_grade(graded, grader="another")
    for format in ("jsonl", "atif"):
        out = export_run(run, format)
        path = out.rename(tmp_path / "run.jsonl") if format == "jsonl" else out
        run_gymcp("import", path, "--out", tmp_path / f"from {format}")
        assert read_run(tmp_path / f"from {format}")[0] == graded


@pytest.mark.xdist_group("harbor")
def test_harbors_own_schema_accepts_every_document(tmp_path: Path, harbor: Verdicts) -> None:
    run = make_run(tmp_path / "run", (PAID, SPOKEN, LOST, HOSTILE))
    found = documents(export_run(run, "atif", "--preset", "grpo"))
    verdicts = harbor(found)
    assert [verdict["errors"] for verdict in verdicts] == [[], [], [], []]
    steps = verdicts[0]["kept"]["steps"]
    assert [step["source"] for step in steps] == ["system", "user", "agent", "agent", "user", "agent"]
    assert steps[2]["metrics"]["completion_token_ids"] == [4, 5]
    assert steps[2]["metrics"]["logprobs"] == [-0.1, -0.5]
    assert [step["step_id"] for step in steps] == [1, 2, 3, 4, 5, 6]
    assert verdicts[0]["kept"]["agent"]["tool_definitions"][0]["function"]["name"] == "pay"


@pytest.mark.xdist_group("harbor")
def test_harbors_schema_refuses_a_malformed_document(tmp_path: Path, harbor: Verdicts) -> None:
    (good, *_) = documents(export_run(make_run(tmp_path / "run"), "atif"))
    (verdict,) = harbor([{**good, "score": 1}])
    assert verdict["errors"] == ["trajectory.score: unexpected field (not part of ATIF schema)"]


def test_a_csv_has_a_line_for_every_episode_and_runs_nothing(tmp_path: Path) -> None:
    file = export_run(make_run(tmp_path / "run", (PAID, SPOKEN, LOST, HOSTILE)), "csv")
    with file.open(newline="") as lines:
        paid, spoken, lost, hostile = csv.DictReader(lines)
    assert (paid["task"], paid["score"], paid["component.milestones"], paid["tags"]) == (
        "pay/bob",
        "0.5",
        "0.25",
        "refunds long",
    )
    assert (paid["seed"], paid["success"], spoken["success"], lost["success"]) == (str(2**70), "False", "True", "")
    assert (lost["score"], lost["outcome"], spoken["component.milestones"]) == ("", "env_infra", "")
    assert paid["reason"] == "'=half of it", "a spreadsheet would run it"
    assert hostile["task"] == "../../etc/x\\ud800\\u0000"


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("-1", "'-1"),
        ("a;=1+1", "a;'=1+1"),
        ("a,@SUM(A1)", "a,'@SUM(A1)"),
        ("a\t=1", "a\t'=1"),
        ("a\n+1", "a\n'+1"),
        ('a";"=1', 'a";"\'=1'),
        ("a; =1|-2", "a; '=1|'-2"),
        ("＝1＋1", "'＝1＋1"),
        ("a;＠x", "a;'＠x"),
        (" \t=1", " \t'=1"),
        ("\r=1", "\\u000d=1"),
        ("\u200b=1\x1b[31m", "\\u200b=1\\u001b[31m"),
        ("a = 1, b - 2: -3, well-known", "a = 1, b - 2: -3, well-known"),
        ("\t" * 100_000, "\t" * 100_000),
    ],
    ids=lambda text: ascii(text)[:20],
)
def test_no_cell_begins_a_formula_whatever_separates_cells(text: str, cell: str) -> None:
    file = io.StringIO(newline="")
    write_csv([EpisodeRow(id="1", env="e", task=text, reason=text, tags=(text,), components={text: 1.0})], file)
    file.seek(0)
    (row,) = csv.DictReader(file)
    assert (row["task"], row["reason"], row["tags"]) == (cell, cell, cell)
    assert all(line.startswith('"') and line.endswith('"') for line in file.getvalue().split("\r\n") if line)


def test_a_replaced_attempt_is_left_out_unless_attempts_are_asked_for(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", (LOST, replace(SPOKEN, task="lost")))
    assert len(export_run(run, "jsonl").read_text().splitlines()) == 1
    lines = export_run(run, "jsonl", "--attempts").read_text().splitlines()
    assert [json.loads(line)["attempt"] for line in lines] == [0, 1]


FOREIGN = {
    "schema_version": "ATIF-v1.4",
    "session_id": "trial-7",
    "agent": {"name": "terminus", "version": "2", "model_name": "m"},
    "notes": "by another program",
    "final_metrics": {"total_prompt_tokens": 30, "total_completion_tokens": 4, "total_cost_usd": 0.25},
    "steps": [
        {"step_id": 1, "source": "system", "message": "Be brief."},
        {"step_id": 2, "source": "user", "message": [{"type": "text", "text": "List."}]},
        {
            "step_id": 3,
            "source": "agent",
            "message": "Listing.",
            "reasoning_content": "ls will do",
            "tool_calls": [{"tool_call_id": "a", "function_name": "bash", "arguments": {"command": "ls"}}],
            "observation": {"results": [{"source_call_id": "a", "content": "x y"}]},
            "metrics": {"prompt_tokens": 30, "completion_tokens": 4},
        },
        {"step_id": 4, "source": "agent", "message": "There are two."},
    ],
}


@pytest.mark.xdist_group("harbor")
def test_a_document_of_another_program_becomes_an_episode(tmp_path: Path, harbor: Verdicts) -> None:
    file = tmp_path / "trajectory.json"
    file.write_text(json.dumps(FOREIGN))
    assert harbor([FOREIGN])[0]["errors"] == []
    run_gymcp("import", file, "--out", tmp_path / "run")
    with TrajectoryStore.open(tmp_path / "run") as store:
        (found,) = store.iter_trajectories()
    first, second = found.steps
    assert (found.task, found.score, found.usage.cost, found.usage.models["m"]["requests"]) == (
        "trial-7",
        None,
        0.25,
        2,
    )
    assert [message.content for message in first.observation.messages] == ["Be brief.", "List."]
    assert first.action.tool_calls[0].arguments == {"command": "ls"}
    assert [(m.role, m.content, m.tool_call_id) for m in second.observation.messages] == [("tool", "x y", "a")]
    assert (second.action.text, first.sampled) == ("There are two.", None)
    assert found.provenance["atif"]["reasoning"] == {"0": "ls will do"}
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["coverage"] == "0/1 scored, 1 ungraded"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ("{}", "is no ATIF document: its schema_version is None"),
        ('{"schema_version": "ATIF-v2.0"}', "is ATIF-v2.0; this gymcp reads ATIF-v1.0 to ATIF-v1.8"),
        ('{"schema_version": "ATIF-v1.7", "agent": {}}', "it has no steps, or no agent"),
        ('{"schema_version": "ATIF-v1.7", "agent": {}, "steps": [{}]}', "is not the ATIF that it says: KeyError"),
        ('{"format": "gymcp-9"}', "is of format 'gymcp-9'; this gymcp reads gymcp-1"),
        ('{"format": "gymcp-1"}', "is no episode of format gymcp-1: KeyError: 'tools'"),
    ],
)
def test_a_file_without_an_episode_is_one_error_and_makes_no_folder(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    result = gymcp("import", file, "--out", tmp_path / "run")
    assert isinstance(result.exception, ConfigError)
    assert why in str(result.exception)
    assert not (tmp_path / "run").exists()


def test_bad_options_are_one_error(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for words, kind, why in (
        (("export", run, "--format", "xml"), ConfigError, "no format 'xml'; have jsonl, parquet, atif, csv"),
        (("export", tmp_path, "--format", "csv"), StoreError, "holds no run.json"),
        (("export", run, "--format", "csv", "--out", tmp_path), StoreError, "is a folder: name another"),
        (("export", run, "--format", "atif", "--out", tmp_path), StoreError, "is a folder that is not empty"),
        (("export", run, "--format", "csv", "--preset", "grpo"), ConfigError, "no steps to give advantages to"),
        (("export", run, "--format", "atif", "--set", "x=1"), ConfigError, "of which preset?"),
        (("import", tmp_path / "none.json", "--out", tmp_path / "x"), ConfigError, "cannot be read: No such file"),
        (("import", export_run(run, "atif"), "--out", run), StoreError, "already holds a run"),
    ):
        result = gymcp(*words)
        assert isinstance(result.exception, kind), (words, result.output)
        assert why in str(result.exception)
    assert sorted(path.name for path in run.iterdir() if path.name.endswith(".tmp")) == []


@pytest.mark.parametrize("format", ["jsonl", "atif"])
def test_memory_does_not_grow_with_the_run(tmp_path: Path, format: str) -> None:
    """Eight times the episodes take less than twice the memory."""
    sampled = replace(FIRST, ids=tuple(range(4, 1_004)), logprobs=(-0.5,) * 1_000, versions=(("v0", 0, 1_000),))
    long = replace(SPOKEN, steps=(replace(SPOKEN.steps[0], sampled=sampled),))
    peaks = []
    for count in (5, 40):
        run = make_run(tmp_path / f"{count}", [replace(long, id=f"e{n}", task=f"t{n}") for n in range(count)])
        with open_source(run) as source:
            tracemalloc.start()
            export(source, format, tmp_path / f"out-{count}")
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0], peaks
