"""A judge in training: the environment's grader asks it, and its answers are kept, so that nothing is asked twice."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from chat_server import Reply, chat_server, says
from page_blocks import DOCS, read_blocks

from gymcp.agents.runner.rollout import Job
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.envs import LoadedEnv, load_env, load_spec
from gymcp.errors import ConfigError
from gymcp.evaluators.judge.answers import ANSWERS_FILE
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.store import TrajectoryStore, open_run
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.recipe.reward import check_reward
from gymcp.trainers.rollouts.judge import open_judge
from gymcp.trainers.rollouts.rollouts import TrainingEpisodes
from gymcp.trainers.run.loop import train
from gymcp.trainers.run.metrics_log import read_metrics
from gymcp.types import Trajectory

MARK = re.compile(r"RECORD ([0-9a-f]{16})")


def polite(number: int, body: dict[str, Any]) -> Reply:
    """The customer was told politely if the agent wished a good day."""
    text = body["messages"][1]["content"]
    found = MARK.search(text)
    assert found is not None
    return says(json.dumps({"mark": found[1], "reason": "r", "points": {"polite": "Have a good day" in text}}))


@pytest.fixture
def env(tmp_path: Path) -> LoadedEnv:
    """The environment of docs/judge.md, whose grader asks a judge."""
    (block,) = (block for block in read_blocks(DOCS / "judge.md") if block.file == "manners.py")
    (tmp_path / "manners.py").write_text(block.text, encoding="utf-8")
    return load_env(load_spec(str(tmp_path / "manners.py")))


def recipe(judge: str = "", **sections: Any) -> Recipe:
    return make_recipe({"env": "manners", "reward": {"judge": judge}, **sections})


async def play_gold(own: Recipe, env: LoadedEnv, folder: Path) -> Trajectory:
    async with open_judge(own, env, folder) as judged:
        with TrajectoryStore.open(folder, write=True) as store:
            episodes = TrainingEpisodes(env=judged, recipe=own, sandbox=get_sandbox("bwrap"), store=store)
            (record,) = await episodes.play(SCRIPTED["oracle"], [Job(task=env.suite.tasks[0], trial=0, seed=0)])
    return record


def test_the_judge_that_a_recipe_names_grades_and_is_asked_once(env: LoadedEnv, tmp_path: Path) -> None:
    with chat_server(polite) as server:
        own = recipe(f"openai:{server.url}#m")
        first = asyncio.run(play_gold(own, env, tmp_path))
        asked = len((tmp_path / ANSWERS_FILE).read_text().splitlines())
        again = asyncio.run(play_gold(own, env, tmp_path))
    assert (first.score, first.components["manners"], asked) == (1.0, 1.0, 3)
    assert (again.score, again.components) == (first.score, first.components)
    assert len((tmp_path / ANSWERS_FILE).read_text().splitlines()) == asked, "its answers were recorded"


def test_a_training_run_with_a_judge_has_scores(env: LoadedEnv, tmp_path: Path) -> None:
    small = {
        "model": {"vocabulary": 400, "hidden": 16, "layers": 1, "heads": 2, "context": 640},
        "warm_start": {"tasks": 1, "epochs": 1},
        "rollout": {"groups": 1, "episodes": 2, "max_tokens": 4, "max_turns": 1},
        "learn": {"iterations": 1},
        "evaluation": {"every": 0},
    }
    with chat_server(polite) as server:
        own = recipe(f"openai:{server.url}#m", **small)
        assert train(own, env, tmp_path / "run", resume=False).iterations == 1
    row = read_metrics(tmp_path / "run")[-1]
    assert (row["outcome/scored"], row["component/manners"]) == (2, 0.0)
    assert open_run(tmp_path / "run").config["judge"] == own.reward.judge


def test_an_invalid_judge_is_refused_before_anything_is_played(env: LoadedEnv) -> None:
    with pytest.raises(ConfigError, match=r"recipe 'run': reward\.judge: no policy 'gpt'; write tiny"):
        check_reward(recipe("gpt"), env.spec)
