"""Reports of training runs: held-out success first, paired with iteration 0 by task."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from recorded_runs import write_run, write_training_run
from records import HOSTILE_TEXT, order_episode
from test_report import Page

from gymcp.cli.summary_table import print_suites, print_summary, training_lines
from gymcp.evaluators.report import read_report, write_report
from gymcp.evaluators.report.curves import unit_of
from gymcp.evaluators.statistics import mean_ci95
from gymcp.store import Run, TrajectoryStore
from gymcp.store.heldout import HeldoutResult, record_heldout
from gymcp.store.run_folder import record_start
from gymcp.types import Json, Task

RECIPE = {"env": "shop", "name": "small", "seed": 3, "learn": {"iterations": 2, "learning_rate": 1e-4}}


def no_tasks(run: Run) -> dict[str, Task]:
    return {}


def evaluation_row(iteration: int, solved: int, *, tasks: int = 8, **more: Json) -> dict[str, Json]:
    results = {f"task{n}": float(n < solved) for n in range(tasks)}
    bounds = mean_ci95({task: [value] for task, value in results.items()})
    assert bounds is not None
    figures = {"success": solved / tasks, "low": bounds.low, "high": bounds.high, "scored": tasks}
    return {"iteration": iteration, **{f"test/seeds/{name}": value for name, value in figures.items()}, **more}


ROWS = [
    evaluation_row(0, 2),
    {"iteration": 1, "success": 0.25, "entropy": 0.5, "kl": 0.01, "anchor/singletons": 0.4, "seconds": 3.0,
     "seconds/rollout": 2.0, "advantage/size": 0.7, "loss": -1.5, "skipped": "no"},
    evaluation_row(2, 6) | {"success": 0.5, "entropy": 0.4, "kl": 0.02, "seconds": 4.0, "seconds/rollout": 3.0},
]  # fmt: skip


RESULTS = [
    HeldoutResult(iteration=iteration, split="seeds", success={f"task{n}": n < solved for n in range(8)})
    for iteration, solved in ((0, 2), (2, 6))
]


def write_training(
    folder: Path, rows: list[dict[str, Json]] = ROWS, results: Sequence[HeldoutResult] = RESULTS, **recipe: Json
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with TrajectoryStore.open(folder, write=True) as store:
        for n in range(4):
            store.append(order_episode(f"practice{n}", 0, pays=n < 1, run=folder.name), {}, tags=("orders",))
    state = {"iteration": 2, "recipe": {**RECIPE, **recipe}, "ended": "finished"}
    (folder / "training.json").write_text(json.dumps(state))
    record_heldout(folder, results)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_the_headline_is_the_last_held_out_success_with_its_paired_change(tmp_path: Path) -> None:
    run = write_training(tmp_path / "run")
    record_start(run, {"env": "shop", "suite": "orders", "suite_version": "4", "recipe": RECIPE}, seeds=[3])
    write_report(run)
    page = (run / "report.html").read_text()
    text = Page(page).text
    assert "shop · training 'small': 75.0 %" in text
    assert '<div class="headline"><strong>75.0 %</strong><span>95 % interval 40.9 to 92.9 %</span><svg' in page
    assert "of 8 held-out tasks (split seeds) are solved after iteration 2." in text
    assert "+50.0 points since iteration 0 (25.0 %); 95 % interval +5.3 to +94.7 points" in text
    assert "paired over 8 tasks: 4 better, 0 worse, p = 0.12" in text
    assert (
        text.index("75.0 %") < text.index("Practice, last iteration50.0 %") < text.index("Practice, mean of all25.0 %")
    )
    assert "suite orders 4 · started 20" in text
    assert "unnamed" not in text


def test_the_summary_has_the_held_out_success_of_the_headline(tmp_path: Path) -> None:
    summary = write_report(write_training(tmp_path / "run"))
    (held,) = summary["held_out"]
    assert (held["success"], held["iteration"], held["change"]["better"], held["refused"]) == (0.75, 2, 4, None)
    (line,) = training_lines([held])
    assert line == (
        "seeds: +50.0 points since iteration 0 (25.0 %); 95 % interval +5.3 to +94.7 points; paired over 8 tasks:"
        " 4 better, 0 worse, p = 0.12"
    )


def test_a_change_without_results_of_tasks_is_said_not_to_be_paired(tmp_path: Path) -> None:
    write_report(write_training(tmp_path / "run", results=()))
    text = Page((tmp_path / "run" / "report.html").read_text()).text
    assert "+50.0 points since iteration 0 (25.0 %); not paired by task" in text
    assert "tasks of shop" in text


def test_a_run_without_evaluations_shows_its_practice_and_says_so(tmp_path: Path) -> None:
    write_report(write_training(tmp_path / "run", [ROWS[1]]))
    text = Page((tmp_path / "run" / "report.html").read_text()).text
    assert "25.0 %of practice" in text
    assert "No held-out task has been evaluated yet" in text


def test_the_origin_of_a_training_run_is_recorded_and_its_recipe_is_a_table(tmp_path: Path) -> None:
    run = write_training(tmp_path / "run", learn={"iterations": 9, "learning_rate": 1e-4})
    record_start(run, {"env": "shop", "recipe": RECIPE}, seeds=[3], versions={"torch": "2.13.0"})
    report = read_report([run], no_tasks)
    page = report.text("html")
    text = Page(page).text
    assert "version of torch2.13.0" in text
    assert "started20" in text
    assert "not recorded" not in text
    assert (
        "<h3>learn</h3><dl><div><dt>iterations</dt><dd>9</dd></div><div><dt>learning_rate</dt><dd>0.0001</dd>" in page
    )
    assert "&quot;iterations&quot;" not in page
    assert "| learn.iterations | 9 |" in report.text("md").replace("\\", "")
    origin = report.object()["runs"][0]["provenance"]
    assert (origin["versions"]["torch"], origin["config"]["recipe"]["learn"]["iterations"]) == ("2.13.0", 9)


def test_an_unreadable_record_of_the_start_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    run = write_training(tmp_path / "run")
    (run / "run.json").write_text("{")
    report = read_report([run], no_tasks)
    assert len(report.problems) == 1
    assert "run.json is not JSON" in report.problems[0]
    assert "75.0 %" in report.text("html")


def test_every_numeric_column_has_a_small_chart_with_its_unit(tmp_path: Path) -> None:
    write_report(write_training(tmp_path / "run"))
    page = (tmp_path / "run" / "report.html").read_text()
    columns = {key for row in ROWS for key, value in row.items() if isinstance(value, float) and key != "iteration"}
    columns |= {"test/seeds/scored"}
    assert page.count('<figure class="panel">') == len(columns) == 12
    for words in (
        "<b>entropy</b><span>nats</span>",
        "<b>rollout</b><span>s</span>",
        "<b>singletons</b><span>share</span>",
    ):
        assert words in page
    for group in ("anchor", "advantage", "seconds", "held out: seeds", "policy and update"):
        assert f"<h3>{group}</h3>" in page
    units = [unit_of(name) for name in ("seconds/update", "test/seeds/level 2", "grad_norm", "tokens", "nonsense")]
    assert units == ["s", "share", "L2 norm", "tokens", ""]


def test_only_a_share_of_held_out_tasks_is_called_one() -> None:
    at = "test/seeds/"
    columns = {
        f"{at}success": "share",
        f"{at}round": "share",
        f"{at}split seeds": "share",
        f"{at}tasks": "tasks",
        f"{at}scored": "tasks",
        f"{at}calls_of_solved_beyond_gold": "calls per episode",
        f"{at}component/parcels": "mean per episode",
        f"{at}component_of_solved/parcels": "mean per episode",
        f"{at}cost/bytes": "bytes per episode",
        f"{at}cost/calls": "calls per episode",
        f"{at}cost/money": "mean per episode",
        f"{at}cost/risk": "mean per episode",
        f"{at}cost/seconds": "s per episode",
        "cost/bytes": "bytes per episode",
        "component/parcels": "mean per episode",
        f"{at}future/figure": "",
    }
    assert {name: unit_of(name) for name in columns} == columns


def test_training_runs_are_drawn_together_with_a_band_over_seeds(tmp_path: Path) -> None:
    rows = [[evaluation_row(0, 2), evaluation_row(2, solved, success=0.5)] for solved in (4, 6, 5)]
    runs = [
        write_training(tmp_path / "s1", rows[0], seed=1),
        write_training(tmp_path / "s2", rows[1], seed=2),
        write_training(tmp_path / "other", rows[2], name="fast", learn={"iterations": 2, "learning_rate": 1e-3}),
    ]
    report = read_report(runs, no_tasks)
    assert report.problems == ()
    page = report.text("html")
    shown = Page(page)
    assert shown.links == []
    assert "3 training runs of shop" in shown.text
    assert "small: mean of 2 seeds; band from the lowest to the highest" in shown.text
    assert "small, 2 seedsall262.5 %50.0 to 75.0 % over seeds+37.5" in shown.text
    assert "learn.learning_rate0.00010.001" in shown.text
    assert "learn.iterations" not in shown.text  # they do not differ
    assert page.count('class="band s0"') == page.count('class="band s1"') == 1
    assert "not compared" not in shown.text


def test_training_runs_stand_beside_evaluations(tmp_path: Path) -> None:
    runs = [write_training(tmp_path / "t"), write_run(tmp_path / "e", "steady", paying=1, tasks=2)]
    report = read_report(runs, no_tasks)
    assert report.problems == ()
    text = Page(report.text("html")).text
    assert "1 suite × 1 agent: shop" in text
    assert "Training runs" in text
    assert "What was learnt" in text


@pytest.mark.parametrize(
    "row",
    [
        {"iteration": 0, "test/seeds/success": "1"},
        {"iteration": 0, "test/seeds/success": 7},
        {"iteration": 0, "test/seeds/success": True, "loss": 1e308},
        {"iteration": 0, f"test/{HOSTILE_TEXT}/success": 1.0},
        {"iteration": 0, HOSTILE_TEXT: -1e308, f"{HOSTILE_TEXT}/x": 1e308},
        {"iteration": 0, **{f"c{n}": n for n in range(3000)}},
        {"iteration": 0, "loss": float("nan"), "test/a/success": float("inf")},
    ],
)
def test_hostile_metrics_stay_text_and_bounded(tmp_path: Path, row: dict[str, Json]) -> None:
    run = write_training(tmp_path / "a", [row, ROWS[2]], name=HOSTILE_TEXT, env=HOSTILE_TEXT)
    other = write_training(tmp_path / "b", [row], seed=9, learn=HOSTILE_TEXT)
    for text in (read_report([run], no_tasks).text("html"), read_report([run, other], no_tasks).text("html")):
        shown = Page(text)
        assert (shown.links, shown.tags & {"script", "img", "iframe"}) == ([], set())
        assert "nan" not in text.partition("<main>")[2].replace("nance", "")
        assert len(text) < 1_000_000


def test_held_out_success_over_too_few_scored_tasks_is_no_headline(tmp_path: Path) -> None:
    lost = evaluation_row(4, 6) | {"test/seeds/tasks": 10}
    run = write_training(tmp_path / "run", [*ROWS, lost])
    write_report(run)
    page = Page((run / "report.html").read_text()).text
    assert "shop · training 'small': 60.0 .. 80.0 %" in page
    assert "8 of 10 tasks (80 %) have a score, below the floor of 95 %: over all tasks, success is between" in page
    assert "(all succeeded); to accept this coverage: --min-coverage 0.8." in page
    assert "are solved after iteration" not in page
    assert "Held out, seeds: 60.0 .. 80.0 % after iteration 4" in read_report([run], no_tasks).text("md").replace(
        "\\", ""
    )
    refused = json.loads((run / "summary.json").read_text())["refused"]
    assert refused.startswith("held out, seeds: 8 of 10 tasks (80 %) have a score")
    (held,) = json.loads((run / "summary.json").read_text())["held_out"]
    assert (held["success_bounds"], held["scored"], held["tasks"]) == ([0.6, 0.8], 8, 10)
    assert "8 of 10 tasks" in held["refused"]
    write_report(run, min_coverage=0.8)
    assert "75.0 %" in Page((run / "report.html").read_text()).text.partition("Learning curve")[0]


def test_an_evaluation_without_any_score_takes_the_headline_back(tmp_path: Path) -> None:
    run = write_training(tmp_path / "run", [*ROWS, {"iteration": 4, "test/seeds/scored": 0, "test/seeds/tasks": 8}])
    write_report(run)
    page = Page((run / "report.html").read_text()).text
    assert "0 of 8 tasks (0 %) have a score" in page
    assert "small': 0.0 .. 100.0 %" in page


def test_a_training_is_headlined_by_its_held_out_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_training_run(tmp_path / "t1")
    print_summary(write_report(run))
    rows = read_rows(capsys.readouterr().out)
    assert rows["held out: seeds, iteration 4"] == ["50.0 %", "37.5 – 75.0", "-"]
    assert rows["practice"][0] == "37.5 %"
    assert "all" not in rows
    assert any(row.startswith("practice: pass@8") for row in rows)
    assert "seeds: +25.0 points since iteration 0 (25.0 %), not paired by task" in rows


def test_several_trainings_have_a_row_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainings = [write_training_run(tmp_path / name) for name in ("t1", "t2")]
    print_suites(read_report(trainings, no_tasks).object())
    rows = read_rows(capsys.readouterr().out)
    assert rows["t1"] == rows["t2"] == ["seeds", "4", "50.0 %", "37.5 – 75.0", "-", "+25.0"]


def read_rows(table: str) -> dict[str, list[str]]:
    """First cell of each row of a table on the terminal -> its other cells."""
    lines = ([cell.strip() for cell in re.split("[│┃]", line.strip("│┃ "))] for line in table.splitlines())
    return {cells[0]: cells[1:] for cells in lines}
