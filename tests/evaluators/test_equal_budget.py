"""A searched run beside as many independent tries as it pays for, on figures that are computed by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from records import order_episode
from test_report import Page
from test_suite_matrix import no_tasks

from gymcp.cli.runs.compare import execute
from gymcp.evaluators.compare import Contender, compare
from gymcp.evaluators.equal_budget import TITLE, EqualBudget, Taken, compare_budgets, list_ways
from gymcp.evaluators.report import read_report
from gymcp.outcome import Outcome
from gymcp.store import EpisodeRow, TrajectoryStore, create_run
from gymcp.types import Json, Usage

AGENT = {"env": "shop", "suite": "shop", "agent": "react", "policy": "tiny"}
ONE = Usage(prompt_tokens=90, completion_tokens=10, tool_calls=4, cost=0.5, wall_s=2.0)
SEARCH = Usage(prompt_tokens=300, completion_tokens=50, tool_calls=10, cost=2.0, wall_s=9.0)


def run(
    name: str, successes: Sequence[Sequence[float | None]], usage: Usage, /, prefix: str = "t", **config: Json
) -> Contender:
    rows = [
        EpisodeRow(
            id=f"{name}/{task}/{trial}",
            env="shop",
            task=f"{prefix}{task}",
            trial=trial,
            score=score,
            outcome=Outcome.SCORED if score is not None else Outcome.ENV_INFRA,
            usage=usage,
        )
        for task, of_task in enumerate(successes)
        for trial, score in enumerate(of_task)
    ]
    return Contender(name=name, config={**AGENT, "min_coverage": 0.0, **config}, rows=rows)


TRIES = run("tries", [[1, 0, 0], [0, 0, 0], [1, 1, 1], [1, 1, 0]], ONE)
SEARCHED = run("searched", [[1], [0], [1], [1]], SEARCH, search="lookahead,width=3")


def measure(*contenders: Contender) -> tuple[EqualBudget, ...]:
    return compare_budgets(contenders, compare(contenders))


def test_the_tries_take_at_most_what_the_search_takes_of_anything() -> None:
    """The search takes 3.5 tries' tokens, 4 tries' money and 2.5 tries' calls: two tries take no more of any."""
    (found,) = measure(SEARCHED, TRIES)
    assert (found.tasks, found.pays_for, found.bound_by) == (4, 2.5, "calls")
    search, one, two = found.ways
    assert (search.name, one.name, two.name) == (
        "searched",
        "1 try of tries",
        "best of 2 tries of tries (upper bound)",
    )
    assert search.taken == Taken(tokens=350, calls=10, cost=2.0, seconds=9.0)
    assert one.taken == Taken(tokens=100, calls=4, cost=0.5, seconds=2.0)
    assert two.taken == Taken(tokens=200, calls=8, cost=1.0, seconds=4.0)
    assert (search.success, one.success) == (0.75, 0.5)
    # pass@2 of 3: of one right 1 - 1/3, of none 0, of three and of two 1
    assert two.success == pytest.approx((2 / 3 + 0 + 1 + 1) / 4)
    assert all(way.ci95 is not None and way.ci95.low <= way.success <= way.ci95.high for way in found.ways)
    assert found.words.startswith("For an answer, searched takes, in calls, what 2.50 tries of tries take.")
    assert list_ways(found)[0][3:] == ("350", "10", "2", "9")


def test_a_search_that_pays_for_more_tries_than_were_played_says_how_many_to_play() -> None:
    (found,) = measure(replace(SEARCHED, rows=[replace(row, usage=ONE) for row in SEARCHED.rows]), TRIES)
    assert (found.pays_for, len(found.ways)) == (1.0, 2)
    dear = Usage(tool_calls=20)
    (found,) = measure(replace(SEARCHED, rows=[replace(row, usage=dear) for row in SEARCHED.rows]), TRIES)
    assert found.ways[-1].name == "best of 3 tries of tries (upper bound)"
    assert "tries has 3 of each task: for all of them, play it with --trials 5." in found.words
    cheap = Usage(tool_calls=3)
    (found,) = measure(replace(SEARCHED, rows=[replace(row, usage=cheap) for row in SEARCHED.rows]), TRIES)
    assert (found.pays_for, len(found.ways)) == (0.75, 2)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("search_rubric", "The tokens and the cost of the judge of the search are left out; they are in summary.json."),
        ("search_head", "The tokens that the head of the search read are left out."),
    ],
)
def test_the_words_say_that_tokens_of_a_judge_or_a_head_are_left_out(key: str, says: str) -> None:
    (plain,), (found,) = (
        measure(replace(SEARCHED, config={**SEARCHED.config, **more}), TRIES) for more in ({}, {key: "x"})
    )
    assert found.words == f"{plain.words} {says}"


def test_tasks_that_only_one_of_them_has_a_score_of_are_left_out() -> None:
    half = replace(SEARCHED, rows=[replace(row, score=None) if row.task == "t1" else row for row in SEARCHED.rows])
    (found,) = measure(half, TRIES)
    assert (found.tasks, found.ways[0].success) == (3, 1.0)


@pytest.mark.parametrize(
    ("search", "plain"),
    [
        ({}, {}),
        ({"search": "beam"}, {"search": "beam"}),
        ({"search": "beam"}, {"branch": "ways=2"}),
        ({"search": "beam"}, {"policy": "other"}),
        ({"search": "beam"}, {"agent": "other"}),
        ({"search": "beam"}, {"suite": "other"}),
    ],
    ids=["no search", "two searches", "branches", "other policy", "other agent", "other tasks"],
)
def test_only_tries_of_the_same_agent_at_the_same_tasks_are_its_rivals(
    search: dict[str, Json], plain: dict[str, Json]
) -> None:
    a, b = run("a", [[1]] * 3, SEARCH, **search), run("b", [[1]] * 3, ONE, **plain)
    assert measure(a, b) == ()


def write(folder: Path, trials: int, usage: Usage, **config: Json) -> Path:
    with create_run(folder, {**AGENT, **config}), TrajectoryStore.open(folder, write=True) as store:
        for task in range(4):
            for trial in range(trials):
                pays = (task + trial) % 2 == 0
                store.append(order_episode(f"t{task}", trial, pays=pays, run=folder.name, usage=usage), {})
    return folder


def test_compare_and_the_reports_of_several_show_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = "the search saw the verdicts of its episodes"
    searched = write(tmp_path / "s", 1, SEARCH, search="mcts,value=verdict", upper_bound=mark)
    tries = write(tmp_path / "t", 3, ONE)
    for as_json in (False, True):
        execute([searched, tries], metric=None, resolution=0.05, min_coverage=None, as_json=as_json)
    text, _, printed = capsys.readouterr().out.partition("{")
    flat = " ".join(text.split())
    assert f"{TITLE}, per answer" in flat
    assert "For an answer, s (upper bound) takes, in calls, what 2.50 tries of t take. The best of" in flat
    assert mark in flat
    (budget,) = json.loads("{" + printed)["budgets"]
    assert (budget["pays_for"], [way["taken"]["calls"] for way in budget["ways"]]) == (2.5, [10, 4, 8])
    report = read_report([searched, tries], no_tasks)
    shown = Page(report.text("html")).text
    assert TITLE in shown
    assert "best of 2 tries of t (upper bound)83.3 %" in shown
    assert "best of 2 tries of t (upper bound) | 83.3 %" in report.text("md").replace("\\", "")
    (suite,) = report.object()["suites"]
    assert suite["budgets"][0]["pays_for"] == 2.5
    other = write(tmp_path / "other", 1, ONE, suite="other")
    assert TITLE in Page(read_report([searched, tries, other], no_tasks).text("html")).text


@pytest.mark.parametrize("is_new", [False, True])
def test_a_run_of_before_the_seconds_of_a_judge_counted_says_that_they_are_left_out(
    is_new: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was resumed since: its first episode tells."""
    notes = [{"judged": 1.0, **({"judged_s": 0.5} if is_new else {})}, *[{"judged": 1.0, "judged_s": 0.5}] * 3]
    searched = tmp_path / "s"
    config = {**AGENT, "search": "mcts,value=judge", "search_rubric": {"name": "r"}}
    with create_run(searched, config), TrajectoryStore.open(searched, write=True) as store:
        for task, note in enumerate(notes):
            record = order_episode(f"t{task}", 0, pays=True, run="s", usage=SEARCH)
            store.append(replace(record, provenance={"search": note}), {})
    tries = write(tmp_path / "t", 3, ONE)
    execute([searched, tries], metric=None, resolution=0.05, min_coverage=None, as_json=False)
    shown = Page(read_report([searched, tries], no_tasks).text("html")).text
    for text in (capsys.readouterr().out, shown):
        assert "The tokens and the cost of the judge of the search are left out" in " ".join(text.split())
        assert ("Its seconds are left out, too" in " ".join(text.split())) is not is_new
