"""A head that is trained on recorded trees tells the value of a step; how it is kept, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from records import stop
from transformers import AutoModelForCausalLM

from gymcp.agents.policies.tiny_model import TinySize, make_tiny_model
from gymcp.errors import ConfigError
from gymcp.outcome import Outcome
from gymcp.store import BranchRecord, TrajectoryStore, create_run
from gymcp.trainers.run.values.step_values import (
    StepValues,
    StepValueSettings,
    check_head,
    fit_step_values,
    hash_head,
    load_step_values,
    save_step_values,
)
from gymcp.types import Action, Observation, Sampled, Step, Trajectory

pytestmark = pytest.mark.usefixtures("one_thread")
TASKS = 30
DRAWN = {True: (30, 31), False: (40, 41)}
"""Tokens of a right step, and of a wrong one."""


def make_path(task: int, *choices: bool, id: str = "", trial: int = 0, parent: str | None = None) -> Trajectory:
    """An episode of these steps, solved if all of both are right."""
    prompt: tuple[int, ...] = (2, 50 + task, 90 + task)
    steps = []
    for number, choice in enumerate(choices):
        drawn = DRAWN[choice]
        sampled = Sampled(prompt_ids=prompt, ids=drawn, logprobs=(-0.5, -0.5), versions=(("0", 0, 2),))
        observation = Observation(messages=(), tools=())
        reward = float(all(choices)) if number == 1 else 0.0
        steps.append(Step(turn=0, observation=observation, action=Action(text="."), reward=reward, sampled=sampled))
        prompt = (*prompt, *drawn, 5, 6 + number)
    return Trajectory(
        id=id,
        env="toy",
        task=str(task),
        group=f"toy/{task}",
        trial=trial,
        parent=parent,
        steps=tuple(steps),
        score=float(all(choices)),
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random model whose last hidden state tells the tokens before."""
    size = TinySize(vocabulary=600, hidden=64, layers=2, heads=2, init_std=0.1)
    return make_tiny_model(tmp_path_factory.mktemp("model"), "compact", size=size)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree for each first choice of each task, whose branch chooses otherwise at the second step."""
    folder = tmp_path_factory.mktemp("runs") / "trees"
    with create_run(folder, {"env": "toy", "agent": "react"}), TrajectoryStore.open(folder, write=True) as store:
        for task in range(TASKS):
            for trial, first in enumerate((True, False)):
                id = f"{task}-{trial}"
                other = make_path(task, first, False, id=f"{id}-branch", trial=trial, parent=id)
                branch = BranchRecord(trajectory=other, branch="1.1", shared=1)
                store.append(make_path(task, first, True, id=id, trial=trial), {}, branches=(branch,))
    return folder


@pytest.fixture(scope="module")
def values(run: Path, model: Path) -> StepValues:
    return fit_step_values(run, f"local:{model}")


@pytest.mark.parametrize(
    ("choices", "value"),
    [((True,), 0.5), ((False,), 0.0), ((True, True), 1.0), ((True, False), 0.0), ((False, True), 0.0)],
    ids=str,
)
def test_a_head_tells_the_mean_score_behind_a_step(values: StepValues, choices: tuple[bool, ...], value: float) -> None:
    """The task is a new one. Half of the episodes that go on from a right first step are solved."""
    assert values.rate(make_path(TASKS + 3, *choices)) == pytest.approx(value, abs=0.15)
    assert values.explained > 0.9


def test_a_head_says_what_it_has_learnt_from_and_nothing_of_an_episode_without_steps(values: StepValues) -> None:
    assert values.tasks == {f"toy/{task}" for task in range(TASKS)}
    assert values.rate(make_path(0)) == 0.0


def test_a_head_learns_nothing_from_episodes_that_a_search_stopped(model: Path, tmp_path: Path) -> None:
    """The search paused after each wrong step, so its worth is not known, and all others are worth 1."""
    with create_run(tmp_path, {"env": "toy"}), TrajectoryStore.open(tmp_path, write=True) as store:
        for task in range(2):
            id = str(task)
            left = stop(make_path(task, True, False, id=f"{id}-left", parent=id), "paused")
            branch = BranchRecord(trajectory=left, branch="1.1", shared=1)
            store.append(make_path(task, True, True, id=id), {}, branches=(branch,))
    with pytest.raises(ConfigError, match=r"every step of run .* is worth 1, the score that all of its episodes have"):
        fit_step_values(tmp_path, f"local:{model}")


def test_a_head_without_held_out_tasks_explains_nothing_that_is_known(run: Path, model: Path) -> None:
    values = fit_step_values(run, f"local:{model}", StepValueSettings(held_out=0.0, rounds=1))
    assert math.isnan(values.explained)


def test_a_saved_head_gives_the_same_values(values: StepValues, tmp_path: Path) -> None:
    save_step_values(values, tmp_path / "head")
    again = load_step_values(tmp_path / "head")
    paths = [make_path(3, True), make_path(4, False, True)]
    assert [again.rate(path) for path in paths] == [values.rate(path) for path in paths]
    assert (again.tasks, again.explained, again.model) == (values.tasks, values.explained, values.model)
    save_step_values(again, tmp_path / "copy")
    assert hash_head(tmp_path / "copy") == hash_head(tmp_path / "head")


def test_a_head_refuses_a_model_that_has_changed(run: Path, model: Path, tmp_path: Path) -> None:
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_step_values(fit_step_values(run, f"local:{tmp_path}", StepValueSettings(rounds=1)), tmp_path / "head")
    load_step_values(tmp_path / "head")
    changed = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        next(changed.parameters())[0, 0] += 1.0
    changed.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"head .*whose weights have changed since it was trained; train a new one"):
        load_step_values(tmp_path / "head")


def test_an_episode_or_folder_that_a_head_cannot_read_is_one_error(
    values: StepValues, run: Path, tmp_path: Path
) -> None:
    path = make_path(3, True)
    silent = replace(path, steps=(replace(path.steps[0], sampled=None),))
    with pytest.raises(ConfigError, match="toy/3: no tokens are recorded"):
        values.rate(silent)
    with pytest.raises(ConfigError, match="toy/3: step 1 has no tokens"):
        values.rate(replace(path, steps=(*path.steps, *silent.steps)))
    foreign = Sampled(prompt_ids=(2, 70_000), ids=(3,), logprobs=(-1.0,), versions=(("0", 0, 1),))
    with pytest.raises(ConfigError, match=r"token 70000 is none of the .* that the head's model"):
        values.rate(replace(path, steps=(replace(path.steps[0], sampled=foreign),)))
    negative = Sampled(prompt_ids=(2, -1), ids=(3,), logprobs=(-1.0,), versions=(("0", 0, 1),))
    with pytest.raises(ConfigError, match=r"token -1 is none of the .* that the head's model"):
        values.rate(replace(path, steps=(replace(path.steps[0], sampled=negative),)))
    with pytest.raises(ConfigError, match="policy 'openai:http://host/v1#m' has no folder on this machine"):
        fit_step_values(run, "openai:http://host/v1#m")
    with pytest.raises(ConfigError, match=r"head .*nowhere: cannot be read .*gymcp learn makes one"):
        load_step_values(tmp_path / "nowhere")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "head.json").write_text("{}")
    (tmp_path / "broken" / "head.pt").write_bytes(b"no tensors")
    with pytest.raises(ConfigError, match=r"head .*broken: cannot be read"):
        load_step_values(tmp_path / "broken")


def test_a_head_is_refused_for_another_environment_and_for_another_tokenizer(
    values: StepValues, model: Path, tmp_path: Path
) -> None:
    check_head(values, "toy", f"local:{model}")
    check_head(values, "toy", "vllm:http://127.0.0.1:1#mine")  # its tokens are not known before it has sampled
    check_head(values, "toy", None)
    with pytest.raises(
        ConfigError, match="trained on episodes of toy, and this run is of 'bank', whose steps it cannot"
    ):
        check_head(values, "bank", f"local:{model}")
    other = make_tiny_model(tmp_path, "terse", size=TinySize(vocabulary=500, hidden=32, layers=1, heads=2))
    with pytest.raises(
        ConfigError, match=f"it reads tokens of model {model}, and policy 'local:.*' has another tokenizer"
    ):
        check_head(values, "toy", f"local:{other}")


def test_a_run_that_teaches_nothing_is_one_error(run: Path, model: Path, tmp_path: Path) -> None:
    """No scores, equal scores, and the tokens of a larger vocabulary."""
    big = Sampled(prompt_ids=(2, 70_000), ids=(3,), logprobs=(-1.0,), versions=(("0", 0, 1),))
    won, lost = (make_path(task, True, right, id=str(task)) for task, right in ((1, True), (2, False)))
    for name, records, says in (
        ("none", [replace(won, score=None, outcome=Outcome.ENV_INFRA)], "no episode of run .*none has a score"),
        ("equal", [won], "every step of run .*equal is worth 1, the score that all of"),
        ("big", [won, replace(lost, steps=(replace(lost.steps[0], sampled=big),))], "token 70000 is none of the"),
    ):  # fmt: skip
        with create_run(tmp_path / name, {"env": "toy"}), TrajectoryStore.open(tmp_path / name, write=True) as store:
            for record in records:
                store.append(record, {})
        with pytest.raises(ConfigError, match=says):
            fit_step_values(tmp_path / name, f"local:{model}")


def test_a_head_for_a_run_of_another_tokenizer_is_refused(run: Path, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with create_run(folder, {"env": "toy", "policy": "tiny"}), TrajectoryStore.open(folder, write=True) as store:
        for task, right in ((1, True), (2, False)):
            store.append(make_path(task, True, right, id=str(task)), {})
    with pytest.raises(ConfigError, match="and policy 'tiny' has another tokenizer; take a policy with the same one"):
        fit_step_values(folder, f"local:{model}")
