"""A training run of 23906e3, before recipe keys were renamed, goes on under today's keys or is refused by name.

Recorded with the code of that commit: `gymcp train small.toml`, which is `OLD` as TOML; curves, TensorBoard's file and
the trained model are left out, as training writes them anew.
"""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gymcp.agents.programs.settings import ProgramSettings, make_program
from gymcp.envs import load_env, load_spec
from gymcp.errors import ConfigError
from gymcp.store import TrajectoryStore
from gymcp.store.run_folder import record_start
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.recipe.paths import place_paths
from gymcp.trainers.run.checkpoints import CHECKPOINT, find_saved_state
from gymcp.trainers.run.loop import train
from gymcp.trainers.run.metrics_log import read_metrics
from gymcp.trainers.run.provenance import check_code_unchanged

OLD: dict[str, Any] = {
    "env": "backoffice",
    "name": "small",
    "model": {"vocabulary": 400, "hidden": 8, "layers": 1, "heads": 2, "context": 640},
    "tasks": {"levels": [1], "families": ["cancel", "ticket"]},
    "warm_start": {"tasks": 6, "epochs": 1, "batch": 3},
    "rollout": {"groups": 2, "episodes": 2, "max_tokens": 8, "turns": 2, "concurrency": 4, "slots": 4},
    "learn": {"iterations": 1},
    "evaluation": {"every": 0, "tasks": 1},
}
RENAMED = (("warm_start", "batch", "batch_size"), ("rollout", "turns", "max_turns"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return shutil.copytree(Path(__file__).parent / "old_run", tmp_path / "run")


def todays_keys(*, iterations: int) -> dict[str, Any]:
    table = copy.deepcopy(OLD)
    for section, old, new in RENAMED:
        table[section][new] = table[section].pop(old)
    return {**table, "learn": {"iterations": iterations}}


def test_an_old_training_run_is_continued_with_its_recipe_in_todays_keys(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ending = train(make_recipe(todays_keys(iterations=2)), load_env(load_spec("backoffice")), run, resume=True)
    assert (ending.iterations, ending.reason) == (2, "finished")
    assert f"training run {run}: recorded no defaults of its preset, so it takes today's" in caplog.messages
    assert [row["iteration"] for row in read_metrics(run)] == [0, 1, 2]
    assert [path.name for path in (run / CHECKPOINT).iterdir()] == ["2"]
    with TrajectoryStore.open(run) as store:
        assert len(list(store.iter_trajectories())) == 8


def test_the_error_for_its_own_recipe_file_names_the_new_key() -> None:
    for section, old, new in RENAMED:
        table = todays_keys(iterations=1)
        table[section][old] = table[section].pop(new)
        with pytest.raises(ConfigError, match=rf"^recipe: no key '{section}\.{old}'; it is now '{section}\.{new}'$"):
            make_recipe(table)


def test_an_old_training_run_of_another_recipe_is_refused_with_the_part_that_differs(run: Path) -> None:
    recipe = make_recipe({**todays_keys(iterations=1), "credit": {"preset": "grpo"}})
    with pytest.raises(ConfigError, match=r"was started with another recipe: credit; only learn\.iterations may grow"):
        find_saved_state(run, recipe, resume=True)


def test_an_old_training_run_with_a_key_that_is_gone_is_refused_with_the_way_out(run: Path) -> None:
    state = json.loads((run / "training.json").read_text())
    state["recipe"]["learn"]["forgotten"] = 1
    (run / "training.json").write_text(json.dumps(state))
    says = r"no key 'learn\.forgotten'.*; continue the run with the version that started it, or start it again"
    with pytest.raises(ConfigError, match=says):
        find_saved_state(run, make_recipe(todays_keys(iterations=2)), resume=True)


def test_a_training_whose_command_was_recorded_as_typed_goes_on_from_any_folder(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "mine.py").write_text("")
    (tmp_path / "mine.py").write_text("another file of that name, in the working folder")
    monkeypatch.chdir(tmp_path)
    state = json.loads((run / "training.json").read_text())
    state["recipe"]["rollout"]["agent"] = "cmd:python3 ./mine.py 'two words'"
    (run / "training.json").write_text(json.dumps(state))
    table = todays_keys(iterations=1)

    def resume(command: str) -> ProgramSettings:
        read = {**table, "rollout": {**table["rollout"], "agent": f"cmd:{command}"}}
        place_paths(read, beside)
        recipe = make_recipe(read)
        assert find_saved_state(run, recipe, resume=True) is not None
        program = make_program(recipe.rollout.agent)
        check_code_unchanged(run, recipe, program, None)
        return program

    program = make_program(f"cmd:python3 {beside}/mine.py")
    record_start(run, {"agent_digest": program.digest})
    assert resume("python3 mine.py 'two words'").argv == ("python3", f"{beside}/mine.py", "two words")
    for other in ("python3 mine.py 'three words'", "python3 mine.py", f"python3 {beside}/other.py 'two words'"):
        with pytest.raises(ConfigError, match="was started with another recipe: rollout;"):
            resume(other)
    (beside / "mine.py").write_text("changed")
    with pytest.raises(ConfigError, match=r"the file of agent 'cmd:python3 .* has changed since the run began"):
        resume("python3 mine.py 'two words'")
