"""Reports of runs on several suites and models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from recorded_runs import write_hostile
from records import order_episode
from test_report import Page

from gymcp.evaluators.names import label_of_part, model_name, natural_order, run_name
from gymcp.evaluators.report import read_report
from gymcp.evaluators.viewer.summary import summarise_run
from gymcp.outcome import Outcome
from gymcp.store import Run, TrajectoryStore, create_run
from gymcp.types import RequestTimes, Task, Trajectory


def no_tasks(run: Run) -> dict[str, Task]:
    return {}


def write_suite_run(folder: Path, suite: str, model: str, *, paying: int, tasks: int = 4) -> Path:
    config = {
        "env": suite,
        "suite": suite,
        "suite_version": "1",
        "agent": "react",
        "policy": f"openai:http://h/v1#{model}",
    }
    with create_run(folder, config), TrajectoryStore.open(folder, write=True) as store:
        for n in range(tasks):
            store.append(order_episode(f"{suite}{n}", 0, pays=n < paying, run=str(folder)), {}, tags=("orders",))
    return folder


def test_suites_and_models_are_a_table_with_intervals_latency_and_links_to_each_run(tmp_path: Path) -> None:
    runs = [
        write_suite_run(tmp_path / f"{suite}-{model}", suite, model, paying=paying)
        for suite, model, paying in (("tau2", "m1", 4), ("bfcl", "m1", 2), ("bfcl", "m2", 1))
    ]
    report = read_report(runs, no_tasks)
    assert report.problems == ()
    shown = Page(report.text("html"))
    assert shown.links == []
    assert "2 suites × 2 models: bfcl, tau2" in shown.text
    assert "runs of" not in shown.text
    assert "no two runs" not in shown.text
    for text in ("100.0 %", "50.0 %", "25.0 %", "51.0 to 100.0 %", "model p50", "model p95", "tool p50", "56", "32"):
        assert text in shown.text
    assert "200 ms290 ms" not in shown.text  # the 95th percentile of 0.1 and 0.3 s is 0.3
    assert "200 ms300 ms20 ms20 ms" in shown.text
    assert len([link for link in shown.within if link.startswith("run-") and "transcript" not in link]) == 3
    assert "bfcl: bfcl-m1 and bfcl-m2 cannot be told apart" in shown.text
    found = report.object()
    assert [(each["name"], len(each["runs"])) for each in found["suites"]] == [("bfcl", 2), ("tau2", 1)]
    assert [each["latency"]["model"]["p50_s"] for each in found["runs"]] == [0.2] * 3


def test_the_net_of_price_stands_beside_success_if_calls_had_a_price(tmp_path: Path) -> None:
    asks, free, other = tmp_path / "asks", tmp_path / "free", tmp_path / "other"
    with create_run(asks, {"env": "tau2", "suite": "tau2"}), TrajectoryStore.open(asks, write=True) as store:
        for task, net in (("a", 1.0), ("b", 0.9)):
            store.append(order_episode(task, 0, pays=True, run="asks", components={"net_of_price": net}), {})
    write_suite_run(free, "bfcl", "m1", paying=4)
    write_suite_run(other, "tau2", "m1", paying=4)
    for runs in ([asks, free], [asks, other]):  # two suites, one suite
        report = read_report(runs, no_tasks)
        assert "95.0 %" in Page(report.text("html")).text
        for format in ("html", "md"):
            assert "net of price" in report.text(format).replace("Net", "net")
    assert "| asks | tau2 | 100.0 % (34.2 to 100.0 %), 2/2 scored | 95.0 % |" in read_report(
        [asks, free], no_tasks
    ).text("md").replace("\\", "")
    report = read_report([free, other], no_tasks)
    assert "net of price" not in (report.text("html") + report.text("md")).lower()
    assert summarise_run(asks).object()["net_of_price"] == pytest.approx(0.95)
    assert "net_of_price" not in summarise_run(free).object()


def with_times(record: Trajectory, *times: RequestTimes) -> Trajectory:
    steps = [replace(step, request_times=each) for step, each in zip(record.steps, times, strict=True)]
    return replace(record, steps=tuple(steps))


def test_requests_and_first_tokens_have_columns_if_any_run_measured_them(tmp_path: Path) -> None:
    plain = write_suite_run(tmp_path / "plain", "tau2", "m1", paying=4)
    timed = tmp_path / "timed"
    with create_run(timed, {"env": "tau2", "suite": "tau2"}), TrajectoryStore.open(timed, write=True) as store:
        record = order_episode("t", 0, pays=True, run="timed")
        times = RequestTimes(request_s=0.08, first_token_s=0.01), RequestTimes(request_s=0.12)
        store.append(with_times(record, *times), {})
    report = read_report([plain, timed, write_suite_run(tmp_path / "b", "bfcl", "m1", paying=1)], no_tasks)
    shown = Page(report.text("html"))
    for text in ("request p50", "request p95", "first token p50", "first token p95", "100 ms118 ms10 ms10 ms"):
        assert text in shown.text
    (run,) = (run for run in report.object()["runs"] if run["latency"]["request"])
    assert run["tokens_per_s"] == 40.0  # 8 tokens in 0.2 s
    assert "tokens/s" in shown.text
    latency = run["latency"]
    assert latency["request"] == {"count": 2, "p50_s": 0.1, "p95_s": pytest.approx(0.118)}
    assert latency["first_token"] == {"count": 1, "p50_s": 0.01, "p95_s": 0.01}
    without = Page(read_report([plain, tmp_path / "b"], no_tasks).text("html"))
    assert "first token" not in without.text
    assert "tokens/s" not in without.text.replace("tokens/s are", "")


def test_a_hostile_run_in_the_table_stays_text(tmp_path: Path) -> None:
    runs = [write_suite_run(tmp_path / "a", "bfcl", "m", paying=1), write_hostile(tmp_path / "b")]
    text = read_report(runs, no_tasks).text("html")
    shown = Page(text)
    assert (shown.links, shown.tags & {"script", "img", "b onerror"}) == ([], set())
    assert len(text) < 1_000_000


def test_parts_have_the_same_order_whichever_episode_ended_first(tmp_path: Path) -> None:
    tags = ["level 10", "level 2", "level 1"]
    listed = []
    for name, order in (("a", (0, 1, 2)), ("b", (2, 0, 1))):
        with create_run(tmp_path / name, {"env": "shop"}), TrajectoryStore.open(tmp_path / name, write=True) as store:
            for n in order:
                store.append(
                    order_episode(f"t{n}", 0, pays=True, run=name), {}, tags=(f"API {n}", tags[n], f"split s{n}")
                )
        summary = read_report([tmp_path / name], no_tasks).object()["runs"][0]
        listed.append([(part["axis"], part["tag"]) for part in summary["breakdown"]])
    assert listed[0] == listed[1]
    assert [tag for axis, tag in listed[0] if axis == "difficulty"] == ["1", "2", "10"]


def test_parts_are_named_by_their_axis() -> None:
    parts = [("difficulty", "2"), ("difficulty", "hard"), ("split", "seeds"), ("category", "refund"), ("tag", "x")]
    assert [label_of_part(*part) for part in parts] == ["level 2", "difficulty hard", "split seeds", "refund", "x"]
    assert sorted(["b 10", "b 9", "a", "b", "10", "9"], key=natural_order) == ["9", "10", "a", "b", "b 9", "b 10"]


def test_a_run_is_named_by_its_model_first_without_the_address() -> None:
    config = {"env": "bfcl", "agent": "react", "policy": "openai:http://127.0.0.1:8799/v1#gpt-x"}
    assert run_name(config) == "gpt-x · bfcl · react"
    assert run_name({"env": "bfcl", "agent": "oracle"}) == "bfcl · oracle"
    assert [model_name(each) for each in ("tiny", "local:/a/b/", "local:mine", "vllm:http://h:1/v1#a/b")] == [
        "tiny",
        "b",
        "mine",
        "a/b",
    ]


def test_a_scripted_agent_has_no_model_latency(tmp_path: Path) -> None:
    with create_run(tmp_path, {"env": "shop", "agent": "oracle"}), TrajectoryStore.open(tmp_path, write=True) as store:
        one = order_episode("t", 0, pays=True, run="r", outcome=Outcome.SCORED)
        scripted = type(one.usage)(tool_calls=2, agent_s=0.4)
        store.append(order_episode("t", 0, pays=True, run="r", usage=scripted), {})
    latency = read_report([tmp_path], no_tasks).object()["runs"][0]["latency"]
    assert latency["model"] is None
    assert latency["tool"]["count"] == 1
