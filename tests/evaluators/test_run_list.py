"""The list of runs without a browser: what is found, its summaries, and what addresses can name."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from recorded_runs import write_run, write_training_run
from records import SEARCH, episode, make_sample, order_episode
from test_suite_matrix import no_tasks, write_suite_run
from test_viewer import enter
from viewer_process import run_viewer

from gymcp.errors import StoreError
from gymcp.evaluators.report import read_report
from gymcp.evaluators.viewer import discovery
from gymcp.evaluators.viewer.curves import curves_object
from gymcp.evaluators.viewer.discovery import find_runs
from gymcp.evaluators.viewer.episode import episode_object
from gymcp.evaluators.viewer.query import QueryError, condition
from gymcp.evaluators.viewer.run_list import RunList, open_run_list
from gymcp.evaluators.viewer.runs import open_runs
from gymcp.evaluators.viewer.summary import describe_runs, summarise_run, time_steps
from gymcp.evaluators.viewer.task_facts import task_object
from gymcp.outcome import Outcome
from gymcp.store import TrajectoryStore, create_run
from gymcp.store.database import FILE_NAME
from gymcp.types import Action, GoldTurn, Observation, RequestTimes, SideAnswer, Task, ToolCall, Usage


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two good runs, a training run, a truncated one, one without episodes, and things that are no runs."""
    top = tmp_path_factory.mktemp("runs")
    write_run(top / "a", "steady", paying=5, tasks=10)
    write_run(top / "deep" / "er" / "b", "hasty", paying=2, tasks=10)
    write_training_run(top / "train")
    cut = write_run(top / "cut", "cut", paying=5, tasks=40) / FILE_NAME
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    (top / "empty").mkdir()
    (top / "bare").mkdir()
    (top / "bare" / "run.json").write_text("{")
    (top / "loop").symlink_to(top)
    return top


def until(runs: RunList, holds: Callable[[RunList], bool]) -> None:
    """Wait until it holds."""
    end = time.monotonic() + 60
    while not holds(runs):
        assert time.monotonic() < end
        time.sleep(0.02)  # a thread reads


@pytest.fixture(scope="module")
def runs(folder: Path) -> Iterator[RunList]:
    with open_run_list([folder]) as runs:
        until(runs, lambda each: each.object()["unread"] == 0)
        yield runs


def test_runs_are_found_at_any_depth_and_links_are_not_followed(folder: Path) -> None:
    found = find_runs([folder])
    assert [str(each.relative_to(folder)) for each in found.folders] == ["a", "bare", "cut", "deep/er/b", "train"]
    assert found.problems == ()
    assert find_runs([folder / "a", folder / "empty", folder]).folders[:2] == (folder / "a", folder / "empty")


def test_a_search_has_a_bound_and_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "MAX_RUNS", 2)
    found = find_runs([folder])
    assert len(found.folders) == 2
    assert found.problems == (f"folder {folder}: holds more runs; the first 2 are listed: name a subfolder",)
    monkeypatch.setattr(discovery, "MAX_RUNS", 1000)
    monkeypatch.setattr(discovery, "MAX_FOLDERS", 1)
    assert "only its first 1 folders were searched" in find_runs([folder]).problems[0]


def test_summaries_have_the_figures_and_say_what_is_wrong(runs: RunList, folder: Path) -> None:
    by_label = {each["label"]: each for each in runs.object()["runs"]}
    good = by_label["a"]
    assert (good["episodes"], good["scored"], good["solved"], good["outcomes"]) == (
        21, 20, 10, {"scored": 20, "env_infra": 1},
    )  # fmt: skip
    assert (good["low"], good["high"]) == pytest.approx((0.248, 0.752), abs=1e-3)
    assert (good["prompt_tokens"], good["completion_tokens"], good["problem"]) == (294, 168, "")
    assert by_label["bare"]["readable"] is False
    assert by_label["bare"]["problem"] == f"run folder {folder / 'bare'}: holds no trajectories.sqlite"
    cut = by_label["cut"]
    assert (cut["readable"], "is damaged: the first" in cut["problem"]) == (True, True)
    assert 0 < cut["episodes"] < 81
    train = by_label["train"]
    assert (train["iterations"], train["model"], train["agent"]) == (4, "pays", "training")
    assert train["held_out"] == {
        "split": "seeds", "iteration": 4, "success": 0.5, "low": 0.375, "high": 0.75, "bounds": None, "coverage": "",
    }  # fmt: skip


def test_a_scripted_agent_has_no_time_of_decisions(tmp_path: Path) -> None:
    with create_run(tmp_path, {"env": "shop", "agent": "oracle"}), TrajectoryStore.open(tmp_path, write=True) as store:
        one = order_episode("t", 0, pays=True, run="r", usage=Usage(tool_calls=2, agent_s=0.4))
        store.append(one, {})
    found = time_steps(tmp_path)
    assert found["model_latency"] is None
    assert found["tool_latency"].count == 2


def test_latencies_are_quantiles_of_recorded_steps(runs: RunList) -> None:
    until(runs, lambda each: each.object()["runs"][0]["model_latency"] is not None)
    first = runs.object()["runs"][0]
    assert first["model_latency"] == {"count": 42, "p50_s": 0.2, "p95_s": 0.3}
    assert first["tool_latency"] == {"count": 42, "p50_s": 0.01, "p95_s": 0.02}
    assert first["timed_episodes"] == 21
    assert (first["request_latency"], first["first_token_latency"]) == (None, None)


def test_times_of_requests_are_in_the_list_and_beside_the_step(tmp_path: Path) -> None:
    record = order_episode("t", 0, pays=True, run="r")
    times = (RequestTimes(request_s=0.25, first_token_s=0.125), None)
    steps = [replace(step, request_times=each) for step, each in zip(record.steps, times, strict=True)]
    with create_run(tmp_path, {"env": "shop"}), TrajectoryStore.open(tmp_path, write=True) as store:
        store.append(replace(record, steps=tuple(steps)), {})
    found = replace(summarise_run(tmp_path), **time_steps(tmp_path)).object()
    assert found["request_latency"] == {"count": 1, "p50_s": 0.25, "p95_s": 0.25}
    assert found["first_token_latency"] == {"count": 1, "p50_s": 0.125, "p95_s": 0.125}
    assert found["tokens_per_s"] == 32.0  # 8 tokens in 0.25 s
    with open_runs([tmp_path]) as runs:
        shown = episode_object(runs, 1, None)["steps"]
    assert [step["request"] for step in shown] == [{"request_s": 0.25, "first_token_s": 0.125}, None]


def test_answers_beside_the_steps_are_counted_and_shown_by_kind(tmp_path: Path) -> None:
    record = order_episode("t", 0, pays=True, run="r")
    steps = tuple(replace(step, context=1) for step in record.steps)
    call = ToolCall(id="9", name="ask_helper")
    answers = (
        SideAnswer(step=0, context=0, asked="A title?", action=Action(text="Order 7"), sampled=make_sample("0")),
        SideAnswer(step=1, context=2, action=Action(tool_calls=(call,))),
    )
    with create_run(tmp_path, {"env": "shop"}), TrajectoryStore.open(tmp_path, write=True) as store:
        store.append(replace(record, steps=steps, side_answers=answers), {})
    with open_runs([tmp_path]) as runs:
        shown = episode_object(runs, 1, None)
    assert [step["context"] for step in shown["steps"]] == [1, 1]
    found = shown["side_answers"]
    assert (found["agent"], found["side"]) == (1, 1)
    assert [(each["step"], each["context"], each["kind"]) for each in found["shown"]] == [
        (0, 0, "side call"),
        (1, 2, "agent"),
    ]
    title, delegation = found["shown"]
    assert (title["asked"], title["text"], title["tokens"]["drawn"]) == ("A title?", "Order 7", 4)
    assert (delegation["calls"][0]["name"], delegation["tokens"]) == ("ask_helper", None)


def test_the_matrix_counts_trials_by_task_and_run(runs: RunList) -> None:
    found = runs.matrix()
    names = [task["task"] for task in found["tasks"]]
    (first,) = (run["cells"] for run in found["runs"] if run["number"] == 0)
    cells = {names[place]: cell for place, *cell in first}
    assert (cells["task003"], cells["task006"], cells["lost"]) == ([1, 2, 2], [1, 2, 2], [0, 0, 1])
    assert cells["task004"] == [2, 2, 2]
    assert {run["number"] for run in found["runs"]} == {0, 2, 3, 4}  # all but the one without episodes


def test_suites_by_models_have_the_figures_of_the_report(tmp_path: Path) -> None:
    for suite, model, paying in (("tau2", "m1", 4), ("bfcl", "m1", 2), ("bfcl", "m2", 1)):
        write_suite_run(tmp_path / f"{suite}-{model}", suite, model, paying=paying)
    write_training_run(tmp_path / "train")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    runs = RunList([tmp_path])
    for each in runs.all():
        runs.read_now(each)
    found, listed = runs.suites(), {each.number: each for each in runs.all()}
    cells = [
        (suite["name"], found["models"][place], listed[number].label)
        for suite in found["suites"]
        for place, number in suite["runs"]
    ]
    assert cells == [("bfcl", "m1", "bfcl-m1"), ("bfcl", "m2", "bfcl-m2"), ("tau2", "m1", "tau2-m1")]
    report = read_report([tmp_path / label for *_, label in cells], no_tasks)
    assert [each.name for each in report.suites] == ["bfcl", "tau2"]
    summaries = {each.label: each.summary for each in listed.values()}
    for evidence in report.evidence:
        overall, summary = evidence.metrics.overall, summaries[evidence.name]
        assert summary is not None
        assert overall.ci95 is not None
        assert (summary.low, summary.high) == (overall.ci95.low, overall.ci95.high)
        assert (summary.coverage, summary.bounds) == ("4/4 scored", None)


def test_too_few_scores_are_two_bounds_and_no_headline_as_in_the_report(tmp_path: Path) -> None:
    lost = order_episode("lost", 0, pays=False, run="r", score=None, outcome=Outcome.ENV_INFRA, reason="server died")
    for name, config in (("strict", {}), ("lenient", {"min_coverage": 0.5})):
        folder = tmp_path / name
        with create_run(folder, {"env": "shop", **config}), TrajectoryStore.open(folder, write=True) as store:
            store.append(order_episode("t", 0, pays=True, run="r"), {})
            store.append(lost, {})
    strict, lenient = summarise_run(tmp_path / "strict"), summarise_run(tmp_path / "lenient")
    assert (strict.bounds, strict.coverage) == ((0.5, 1.0), "1/2 scored, 1 infra")
    assert lenient.bounds is None


def test_a_training_that_lost_held_out_tasks_has_bounds_in_the_list(tmp_path: Path) -> None:
    half = summarise_run(write_training_run(tmp_path / "half", scored=4)).held_out
    assert half is not None
    assert (half.bounds, half.coverage) == ((0.25, 0.75), "4/8 scored")
    whole = summarise_run(write_training_run(tmp_path / "whole", scored=8)).held_out
    assert whole is not None
    assert whole.bounds is None


SHOWN = ("episodes", "scored", "solved", "low", "high", "bounds", "coverage", "iterations", "held_out")


@pytest.mark.parametrize("name", ["a", "cut", "train", "strict"])
def test_a_runs_own_page_has_the_figures_of_the_list(folder: Path, tmp_path: Path, name: str) -> None:
    run = folder / name
    if name == "strict":  # below the floor of coverage: two bounds
        run = write_run(tmp_path / "run", "steady", paying=1, tasks=1, trials=1)
    listed = summarise_run(run).object()
    with open_runs([run], follow=False) as runs:
        (own,) = describe_runs(runs)["runs"]
    assert {key: own[key] for key in SHOWN} == {key: listed[key] for key in SHOWN}
    assert (own["bounds"] is None) is (name != "strict")


def test_a_growing_run_and_a_new_one_appear(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", "steady", paying=1, tasks=1, trials=1)
    with open_run_list([tmp_path]) as runs:
        until(runs, lambda each: each.object()["unread"] == 0)
        with create_run(run, {"env": "shop", "suite": "shop", "suite_version": "1", "agent": "steady"}, resume=True):
            with TrajectoryStore.open(run, write=True) as store:
                store.append(order_episode("new", 0, pays=True, run="steady"), {})
            until(runs, lambda each: each.object()["runs"][0]["episodes"] == 3)
            until(runs, lambda each: each.object()["runs"][0]["running"])
        until(runs, lambda each: not each.object()["runs"][0]["running"])
        write_run(tmp_path / "b", "later", paying=1, tasks=1, trials=1)
        until(runs, lambda each: [run.get("episodes") for run in each.object()["runs"]] == [3, 2])


def test_runs_are_opened_by_number_alone(runs: RunList) -> None:
    with runs.open_numbers((0,)) as opened:
        assert opened.index.page(0, "", "recorded", 0)["total"] == 21
    with runs.open_numbers((0, 3)) as pair:
        assert [each.folder.name for each in pair.opened] == ["a", "b"]
    with pytest.raises(KeyError), runs.open_numbers((99,)):
        pass
    with pytest.raises(StoreError, match=r"holds no trajectories.sqlite"), runs.open_numbers((1,)):
        pass
    for _ in range(3):
        for number in (0, 2, 3, 4):
            for other in (0, 2, 3, 4):
                with runs.open_numbers((number, other)) as pair:
                    assert len(pair.opened) == 2


def test_addresses_name_runs_by_number_never_by_path(folder: Path) -> None:
    with run_viewer(folder) as address, httpx.Client(timeout=60) as browser:
        assert httpx.get(address.split("?")[0] + "api/runs", timeout=60).status_code == 403
        browser.base_url = httpx.URL(address.split("/?token=")[0] + enter(browser, browser.get(address)))
        listed = browser.get("api/runs")
        assert len(listed.json()["runs"]) == 5
        assert "default-src 'none'" in listed.headers["content-security-policy"]
        assert browser.get("api/runs", headers={"host": "evil.example"}).status_code == 421
        assert browser.post("api/runs").status_code == 405
        assert browser.get("runs/0/").status_code == 200
        assert browser.get("runs/0/static/main.js").status_code == 200
        assert browser.get("runs/0/api/about").json()["listed"] is True
        assert browser.get("runs/0-3/api/pairs").json()["total"] > 0
        assert browser.get("runs/4/api/curves").json()[0]["name"] == "test/seeds/success"
        assert browser.get("runs/1/api/about").json() == {
            "error": f"run folder {folder / 'bare'}: holds no trajectories.sqlite"
        }
        for name in ("99", "-1", "a", "..", "%2e%2e", f"%2f{folder}%2fa", "0-1-2", "0-", "٣"):
            answer = browser.get(f"runs/{name}/api/about")
            assert (answer.status_code, "steady" in answer.text) == (404, False), name
        assert browser.get("runs/0/static/..%2Fapp.py").status_code == 404
        assert browser.get("runs/0/api/nothing").status_code == 404


@pytest.mark.parametrize(
    ("query", "count"), [("iteration:1", 4), ("version:0", 4), ("iteration>2", 8), ("version<1", 4)]
)
def test_iterations_and_versions_are_searched(tmp_path: Path, query: str, count: int) -> None:
    with open_runs([write_training_run(tmp_path / "train")]) as runs:
        assert runs.index.page(0, query, "recorded", 0)["total"] == count
        assert runs.index.page(0, "", "iteration", 0)["rows"][0]["version"] == 3


def test_the_error_for_an_unknown_key_names_iteration_and_version() -> None:
    with pytest.raises(QueryError, match=r"no such key; have .*version, iteration.*"):
        condition("foo:1")


def test_an_ordinary_run_has_no_iterations(folder: Path) -> None:
    with open_runs([folder / "a"]) as runs:
        assert runs.index.page(0, "iteration>=0", "recorded", 0)["total"] == 0


def test_curves_begin_with_held_out_success_and_its_interval(tmp_path: Path) -> None:
    run = write_training_run(tmp_path / "train")
    found = curves_object(run)
    assert [each["name"] for each in found] == ["test/seeds/success", "entropy", "kl", "success"]
    assert found[0]["points"] == [(0, 0.25), (4, 0.5)]
    assert found[0]["band"] == [[0, 0.125, 0.5], [4, 0.375, 0.75]]
    assert found[1]["points"] == [(1, 2.0), (2, 1.0), (3, 2 / 3), (4, 0.5)]
    lines = ['{"iteration": 5, "x": 1e999, "y": true, "z": "a"}', "{", "[1]", '{"iteration": "a"}', '{"iteration": 6']
    with (run / "metrics.jsonl").open("a") as file:
        file.write("\n".join(lines))
    assert curves_object(run) == found
    (run / "metrics.jsonl").unlink()
    assert curves_object(run) == []


def test_long_curves_are_thinned(tmp_path: Path) -> None:
    run = write_training_run(tmp_path / "train")
    rows = (json.dumps({"iteration": n, "x": n}) for n in range(5_000))
    (run / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    ((points,),) = ([each["points"]] for each in curves_object(run))
    assert (len(points), points[0], points[-1]) == (400, (0, 0.0), (4999, 4999.0))


def test_gold_target_and_tools_stand_beside_an_episode(tmp_path: Path) -> None:
    shown = episode("pay")
    first = replace(shown.steps[0], observation=Observation(messages=(), tools=(SEARCH, SEARCH)))
    with create_run(tmp_path, {"env": "shop"}), TrajectoryStore.open(tmp_path, write=True) as store:
        store.append(replace(shown, steps=(first, shown.steps[1])), {})
    gold = GoldTurn(calls=(ToolCall(id="1", name="pay_order", arguments={"order": "7"}),), final_text="Paid.")
    task = Task(id="pay", prompts=("Pay.",), target={"paid": True}, gold=(gold,))
    with open_runs([tmp_path]) as runs:
        found = task_object(runs, 1, lambda run: {"pay": task})
        assert (found["unknown"], found["target"]) == ("", '{\n  "paid": true\n}')
        assert found["gold"] == [
            {"calls": [{"name": "pay_order", "arguments": '{\n  "order": "7"\n}'}], "text": "Paid."}
        ]
        assert [(each["at"], each["count"]) for each in found["tools"]] == [(0, 2), (1, 1)]
        assert found["tools"][1]["tools"][0]["name"] == "search"
        assert '"q": {}' in found["tools"][1]["tools"][0]["schema"]
    with open_runs([tmp_path]) as runs:
        unknown = task_object(runs, 1, lambda run: {})
        assert (unknown["gold"], "not in a run folder" in unknown["unknown"]) == ([], True)


def test_a_run_that_goes_away_says_so(tmp_path: Path) -> None:
    assert summarise_run(tmp_path / "gone").problem == f"run folder {tmp_path / 'gone'}: no such folder"
    (tmp_path / "empty").mkdir()
    assert summarise_run(tmp_path / "empty").problem == f"run folder {tmp_path / 'empty'}: holds no run"
    (tmp_path / "fifo").mkdir()
    os.mkfifo(tmp_path / "fifo" / "run.json")
    assert "holds no trajectories.sqlite" in summarise_run(tmp_path / "fifo").problem
