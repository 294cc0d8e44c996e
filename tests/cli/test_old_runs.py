"""Run folders that gymcp recorded at 23906e3, before modules, names and record fields were renamed, are still read.

Recorded with the code of that commit: `gymcp eval backoffice --limit 4`, once with the oracle and once with `--agent
react --policy tiny --temperature 0`, whose episodes hold the tokens that the model drew.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path

import httpx
import pytest
from cli_runner import gymcp
from viewer_process import run_viewer

from gymcp.store import TrajectoryStore, open_run

RECORDED = Path(__file__).parent / "old_runs"
EPISODES = 4


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, Path]:
    return {name: shutil.copytree(RECORDED / name, tmp_path / name) for name in ("oracle", "react")}


def scores(run: Path) -> dict[str, float | None]:
    with TrajectoryStore.open(run) as store:
        return {row.task: row.score for row in store.summaries()}


def test_the_runs_were_recorded_before_the_renames() -> None:
    for name in ("oracle", "react"):
        run = open_run(RECORDED / name)
        assert (run.config["agent"], run.config["env"]) == (name, "backoffice")
        assert run.git == "23906e38d6181f82ca820f9098b92b87f7140abb"


def test_an_old_run_is_graded_again_with_the_same_scores(runs: dict[str, Path]) -> None:
    for run in runs.values():
        before = scores(run)
        done = gymcp("grade", run, "--json")
        graded = json.loads(done.stdout)
        assert (done.returncode, graded["changed"], graded["failed"], graded["scored"]) == (0, 0, 0, EPISODES)
        assert scores(run) == before
    assert set(scores(runs["oracle"]).values()) == {1.0}


def test_old_runs_are_compared_and_reported(runs: dict[str, Path]) -> None:
    compared = json.loads(gymcp("compare", runs["oracle"], runs["react"], "--json").stdout)
    (success,) = compared["comparisons"]
    assert [(one["name"], one["mean"]["value"]) for one in success["runs"]] == [("oracle", 1.0), ("react", 0.75)]
    assert success["pairs"][0]["paired"]["difference"] == -0.25
    assert gymcp("report", runs["react"]).returncode == 0
    summary = json.loads((runs["react"] / "summary.json").read_text())
    assert (summary["episodes"], summary["scored"], summary["agent"]) == (EPISODES, EPISODES, "react")
    assert "</html>" in (runs["react"] / "report.html").read_text()


def test_the_viewer_shows_each_step_of_an_old_episode(runs: dict[str, Path]) -> None:
    with (
        run_viewer(runs["react"]) as address,
        httpx.Client(base_url=address.split("/?token=")[0], timeout=60) as browser,
    ):
        entered = browser.get("/", params={"token": address.split("/?token=")[1]})
        (folder,) = re.findall(r'content="0; url=(/[\w-]{32}/)', entered.text)
        listed = browser.get(f"{folder}api/episodes").json()
        assert listed["total"] == EPISODES
        episode = browser.get(f"{folder}api/episodes/1").json()
    assert episode["steps"]


def test_the_tokens_of_an_old_episode_are_as_they_were_drawn(runs: dict[str, Path]) -> None:
    with TrajectoryStore.open(runs["react"]) as store:
        records = list(store.iter_trajectories())
    samples = [step.sampled for record in records for step in record.steps]
    assert len(samples) > EPISODES
    for sampled in samples:
        assert sampled is not None
        assert len(sampled.ids) == len(sampled.logprobs) > 0
        assert all(logprob <= 0 for logprob in sampled.logprobs)
    prompts = [step.sampled.prompt_ids for step in records[0].steps if step.sampled is not None]
    assert all(later[: len(earlier)] == earlier for earlier, later in itertools.pairwise(prompts))
