"""Reports of several runs, and of damaged ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from recorded_runs import write_hostile, write_run
from records import HOSTILE_TEXT
from test_report import Page

from gymcp.errors import StoreError
from gymcp.evaluators.metrics.reasons import group_reasons, reason_kind
from gymcp.evaluators.report import read_report, write_report
from gymcp.evaluators.report.gates import gate_command, gates_of
from gymcp.outcome import Outcome
from gymcp.store import EpisodeRow, Run, TrajectoryStore, create_run, open_run
from gymcp.store.database import FILE_NAME
from gymcp.types import GoldTurn, Json, Task, ToolCall, Trajectory


def no_tasks(run: Run) -> dict[str, Task]:
    return {}


def gate(folder: Path, agent: str, scores: list[float], **config: Json) -> Path:
    said = {"env": "shop", "suite": "shop", "env_digest": "e", "suite_digest": "s", "agent": agent, **config}
    with create_run(folder, said), TrajectoryStore.open(folder, write=True) as store:
        for n, score in enumerate(scores):
            store.append(Trajectory(id=f"{agent}{n}", env="shop", task=f"t{n}", score=score), {})
    return folder


def test_a_report_of_several_runs_has_verdict_differences_and_weak_spots(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / "steady", "steady", paying=30, tasks=40),
        write_run(tmp_path / "hasty", "hasty", paying=2, tasks=40),
    ]
    report = read_report(runs, no_tasks)
    shown = Page(report.text("html"))
    assert (shown.links, shown.tags & {"script", "img", "iframe"}) == ([], set())
    for text in (
        "steady is the best in success.",
        "steady is better than hasty by 35.0 points",
        "80/81 scored, 1 infra",
        "refund",
    ):
        assert text in shown.text
    assert "transcript-0" in "".join(shown.within)
    markdown = report.text("md")
    assert "**steady is the best in success.**" in markdown
    assert "### By category" in markdown
    found = json.loads(report.text("json"))
    assert [run["scored"] for run in found["runs"]] == [80, 80]
    assert found["comparison"]["pairs"][0]["better"] == "steady"
    assert found["runs"][1]["worst"][0]["mean"] == 0.0


def test_runs_that_differ_by_chance_are_not_ranked(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, name, paying=paying, tasks=10) for name, paying in (("one", 5), ("two", 6))]
    assert "cannot be told apart" in Page(read_report(runs, no_tasks).text("html")).text


def test_unreadable_or_incomparable_runs_are_named_and_the_rest_is_reported(tmp_path: Path) -> None:
    whole = write_run(tmp_path / "whole", "steady", paying=5, tasks=40)
    cut = write_run(tmp_path / "cut", "hasty", paying=5, tasks=40)
    file = cut / FILE_NAME
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    other = gate(tmp_path / "other", "react", [1.0, 0.0], suite="bank")
    empty = gate(tmp_path / "empty", "react", [], suite_version="1", suite_digest=None)
    (tmp_path / "nothing").mkdir()
    report = read_report([whole, cut, other, empty, tmp_path / "nothing"], no_tasks)
    for text in (report.text("html"), report.text("md").replace("\\", "")):
        for words in (
            "is damaged: the figures are those of the first",
            "nothing: holds no run.json",
            "empty: has no score",
            "31.2 %",
            "2 suites × 3 agents: bank, shop",
        ):
            assert words in text
    assert len(json.loads(report.text("json"))["problems"]) == 3
    with pytest.raises(StoreError, match=r"holds no run\.json"):
        read_report([tmp_path / "nothing"], no_tasks)


def rows_of(run: Path) -> list[EpisodeRow]:
    with TrajectoryStore.open(run) as store:
        return store.summaries()


def test_gates_are_found_beside_the_run_if_their_tasks_are_the_same(tmp_path: Path) -> None:
    run = gate(tmp_path / "mine", "react", [0.5, 0.5])
    gate(tmp_path / "a", "oracle", [1.0, 0.0])
    gate(tmp_path / "b", "null", [0.0, 0.0])
    gate(tmp_path / "c", "mutated", [0.0], suite_digest="another")
    states = {each.agent: (each.state, each.scored, each.broken) for each in gates_of(open_run(run), rows_of(run))}
    assert states == {"oracle": ("broken", 2, 1), "null": ("held", 2, 0), "mutated": ("not run", 0, 0)}
    write_report(run)
    text = Page((run / "report.html").read_text()).text
    assert "✗ oracle must score 100.0 %: broken in 1 of 2" in text
    assert "✓ null must score 0.0 %: held in all 2" in text
    assert "– mutated must score 0.0 %: no run of it beside this one" in text


def test_only_episodes_of_the_runs_own_tasks_prove_a_gate(tmp_path: Path) -> None:
    run = gate(tmp_path / "mine", "react", [0.5, 0.5], source="shop", tasks="t[01]", limit=2, seed=7)
    null = tmp_path / "a"
    with create_run(null, {**open_run(run).config, "agent": "null"}), TrajectoryStore.open(null, write=True) as store:
        store.append(Trajectory(id="n", env="shop", task="t9", score=0.0), {})
    gate(tmp_path / "b", "oracle", [1.0])
    states = {each.agent: (each.state, each.shared, each.tasks) for each in gates_of(open_run(run), rows_of(run))}
    assert states == {"oracle": ("held", 1, 2), "null": ("other tasks", 0, 2), "mutated": ("not run", 0, 2)}
    write_report(run)
    text = Page((run / "report.html").read_text()).text
    assert "– null must score 0.0 %: its run beside this one has none of the 2 tasks" in text
    assert "✓ oracle must score 100.0 %: held in all 1, on 1 of the 2 tasks" in text
    beside = tmp_path / "mine-null"
    assert f"gymcp eval shop --agent null --tasks 't[01]' --limit 2 --seed 7 --out {beside}" in text


def test_the_hint_of_a_gate_names_a_free_folder_and_a_command_to_type(tmp_path: Path) -> None:
    run = gate(tmp_path / "mine", "react", [0.5], source="a b.py")
    (tmp_path / "mine-null").mkdir()
    null, other = (
        next(each for each in gates_of(open_run(run), rows_of(run)) if each.agent == agent)
        for agent in ("null", "oracle")
    )
    words = f"gymcp eval 'a b.py' --agent null --out {tmp_path / 'mine-null-2'}"
    assert gate_command(null, open_run(run)) == words
    assert gate_command(replace(other, folder=run, shared=1), open_run(run)) == ""
    limited = replace(open_run(run), config={**open_run(run).config, "privileges": []})
    assert gate_command(null, limited) == ""


def test_a_report_compares_calls_with_gold(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "steady", paying=2, tasks=4, trials=1)
    gold = tuple(
        ToolCall(id=str(n), name=name, arguments={"order": "7", **more})
        for n, (name, more) in enumerate((("get_order", {}), ("pay_order", {"note": ""})))
    )
    tasks = {f"task{n:03}": Task(id=f"task{n:03}", prompts=("Pay.",), gold=(GoldTurn(calls=gold),)) for n in range(4)}
    radar = write_report(run, lambda run: tasks)["radar"]
    assert (radar["accuracy"], radar["selection"], radar["efficiency"]) == (0.5, 0.75, 1.0)
    assert "MCP-RADAR" in (run / "report.html").read_text()
    of_some = write_report(run, lambda run: {name: task for name, task in tasks.items() if name < "task002"})["radar"]
    assert (of_some["tasks"], of_some["accuracy"]) == (2, 1.0)
    text = Page((run / "report.html").read_text()).text
    assert "Of the 2 tasks with gold calls, out of 4; so accuracy is not the success above, which is of all 4" in text


def test_a_training_run_has_learning_curves(tmp_path: Path) -> None:
    with TrajectoryStore.open(tmp_path, write=True) as store:
        store.append(Trajectory(id="a", env="shop", task="t", score=1.0, outcome=Outcome.SCORED), {})
    (tmp_path / "training.json").write_text(json.dumps({"recipe": {"env": "shop", "name": "small", "seed": 3}}))
    rows = [
        {"iteration": n, "success": n / 10, "test/seeds/success": n / 10, "test/seeds/low": 0, "test/seeds/high": 1}
        for n in range(4)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"iteration": 4, "succ')
    write_report(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "shop · training 'small'" in Page(page).text
    assert page.count('class="curve s5"') == 1
    assert 'class="band' in page
    assert read_report([tmp_path], no_tasks).object()["runs"][0]["curves"] == rows


def test_hostile_texts_stay_texts_in_every_format(tmp_path: Path) -> None:
    runs = [write_hostile(tmp_path / "a"), write_run(tmp_path / "b", "steady", paying=1, tasks=2)]
    report = read_report(runs, no_tasks)
    shown = Page(report.text("html"))
    assert shown.links == []
    assert shown.tags.isdisjoint({"script", "img"})
    assert len(report.text("html")) < 1_000_000
    markdown = report.text("md")
    assert "<script>" not in markdown
    assert not set(markdown) & {"\x1b", "\u202e"}
    assert json.loads(report.text("json"))["runs"][0]["agent"] == HOSTILE_TEXT


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ('turn 1 of 3: no call has answered {"a": [1]}', "turn … of …: no call has answered …"),
        ("in the final state accounts.ann is 100, wanted 95", "in the final state accounts.ann is …, wanted …"),
        (
            'turn 2 of 4: TwitterAPI.tweets[0].content differs: expected \'a, b\', found {"x": [1, {"y": 2}]}',
            "turn … of …: TwitterAPI.tweets[*].content differs: expected …, found …",
        ),
        (
            'state: in the final state orders/O237 is missing, wanted {"id": "O237", "cu... (166 characters);'
            ' answer: the answer is "a\\"b", wanted "done"',
            "state: in the final state orders/* is missing, wanted …; answer: the answer is …, wanted …",
        ),
        (
            "turn 1 of 4: Files.root[0].x differs: expected another long value, found"
            ' {"$dir": ["a", {"b": {"$file": ["c…',
            "turn … of …: Files.root[*].x differs: expected …, found …",
        ),
        ('a.b differs: expected {"x": "y…, found {"z": ["w…', "a.b differs: expected …, found …"),
        ("a.b differs: expected Dear Ann, hello…, found Dear Bob, good…", "a.b differs: expected …, found …"),
        (f'a.b is {{"x": ["{"y" * 700}", {{}}]}}, wanted 1', "a.b is …"),
        ("argument 'amount' is missing in call 'x'", "argument 'amount' is missing in call …"),
        ("orders.7.status is 'open', wanted paid", "orders.*.status is …, wanted …"),
        ("the user's order isn't paid", "the user's order isn't paid"),
        ("", "no reason given"),
    ],
)
def test_reasons_of_a_kind_are_counted_together(reason: str, kind: str) -> None:
    assert reason_kind(reason) == kind


def test_each_kind_of_reason_has_its_number_and_one_example() -> None:
    failed = [("t2", "a.b is 2, wanted 1"), ("t1", "a.b is 3, wanted 1"), ("t3", "a.c is 3, wanted 1")]
    found = [(each.kind, each.episodes, each.task, each.example) for each in group_reasons(failed)]
    assert found == [
        ("a.b is …, wanted …", 2, "t1", "a.b is 3, wanted 1"),
        ("a.c is …, wanted …", 1, "t3", "a.c is 3, wanted 1"),
    ]
