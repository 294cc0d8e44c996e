"""The section ``[reward]`` of a recipe: what a step costs, parts of the verdict, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies import signal_columns

from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import load_env
from gymcp.envs.tool_costs import CallCost, ToolCosts
from gymcp.errors import ConfigError
from gymcp.evaluators.graders.questions import ASK_USER
from gymcp.store import open_run
from gymcp.store.run_folder import RUN_FILE
from gymcp.trainers.credit.assign import assign_credit
from gymcp.trainers.credit.explanation import explain_preset
from gymcp.trainers.credit.presets import PRESETS
from gymcp.trainers.credit.step_batch import StepBatch, batch_of, batch_of_columns
from gymcp.trainers.credit.transforms import charge_steps
from gymcp.trainers.recipe.build_preset import build_preset
from gymcp.trainers.recipe.environment import wrap_environment
from gymcp.trainers.recipe.load import load_recipe, make_recipe, restore_recipe
from gymcp.trainers.recipe.recipe import Recipe, RewardRecipe
from gymcp.trainers.recipe.reward import check_reward
from gymcp.trainers.rollouts.rollouts import rollout_metrics
from gymcp.trainers.run.checkpoints import recipe_as_json
from gymcp.trainers.run.provenance import check_code_unchanged, record_training_start
from gymcp.types import Action, Observation, Sampled, Score, Step, ToolCall, ToolResult, Trajectory

COSTS = ToolCosts(tools={"refund": CallCost(risk=1.0), ASK_USER: CallCost(money=0.05)}, asking=frozenset({ASK_USER}))


def recipe(preset: str = "loop", **sections: Any) -> Recipe:
    options = {"components": ["reward"]} if preset == "gdpo" else {}
    return make_recipe({"env": "backoffice", "credit": {"preset": preset, **options}, **sections})


def step(tool: str = "", *, cost: float = 0.0, tokens: int = 3) -> Step:
    call = ToolCall(id="1", name=tool)
    result = ToolResult(call_id="1", content="x" * 10, content_bytes=10, seconds=0.5, cost=cost)
    return Step(
        turn=0,
        observation=Observation(messages=(), tools=()),
        action=Action(text="done", tool_calls=(call,) if tool else ()),
        results=(result,) if tool else (),
        state_key="s",
        sampled=Sampled(prompt_ids=(1,), ids=(2,) * tokens, logprobs=(-1.0,) * tokens, versions=(("0", 0, tokens),)),
    )


def record(score: float, *steps: Step, **components: float) -> Trajectory:
    return Trajectory(id=str(score), env="e", task="t", group="g", steps=steps, score=score, components=components)


RECORDS = [
    record(1.0, step(ASK_USER, cost=0.05), step("refund"), step(), milestones=1.0),
    record(0.0, step("refund"), step(tokens=5)),
]
"""One episode that asks, refunds and is right, and one that refunds at once and is wrong."""


def advantages(**reward: Any) -> list[float]:
    credit = assign_credit(batch_of(RECORDS, costs=COSTS), build_preset(recipe(reward=reward)))
    found: list[float] = credit.advantage.tolist()
    return found


def test_the_cost_of_a_step_is_in_its_own_advantage_and_in_no_other() -> None:
    advantage, calls, risk = np.array([1.0, 1.0, 1.0, -1.0]), np.array([1.0, 2.0, 0.0, 0.0]), np.array([0, 0, 0.5, 0])
    found = charge_steps(advantage, [(calls, 0.25), (risk, 2.0)])
    # not [0.25, 0.25, ...] as in a return: the first step is charged for its one call, not for the two that followed
    assert found.tolist() == [0.75, 0.5, 0.0, -1.0]


@pytest.mark.parametrize(
    ("reward", "charged"),
    [
        ({}, [0, 0, 0, 0, 0]),
        ({"asking": 1.0}, [0.05, 0, 0, 0, 0]),
        ({"money": 1.0}, [0, 0, 0, 0, 0]),  # questions have a weight of their own
        ({"risk": 0.5}, [0, 0.5, 0, 0.5, 0]),
        ({"calls": 0.1, "bytes": 0.01}, [0.2, 0.2, 0, 0.2, 0]),
        ({"seconds": 1.0}, [0.5, 0.5, 0, 0.5, 0]),
        ({"length": 0.1}, [0.3, 0.3, 0.3, 0.3, 0.5]),
    ],
)
def test_each_weight_charges_the_steps_that_cost_something(reward: dict[str, float], charged: list[float]) -> None:
    assert advantages(**reward) == pytest.approx(np.subtract([1, 1, 1, -1, -1], charged))


def test_components_are_added_to_the_score_that_the_preset_compares() -> None:
    assert advantages(components={"milestones": 0.5}) == pytest.approx([1.5] * 3 + [-1.5] * 2)  # 1.5 beside 0


@pytest.mark.parametrize("preset", sorted(PRESETS.keys() - {"matchtir", "expert_iteration"}))  # drops what failed
def test_a_charge_leaves_the_formula_of_every_preset_as_it_is(preset: str) -> None:
    batch = batch_of_columns(
        [[0.0, 1.0], [0.0, 0.0]],
        ["a", "a"],
        **signal_columns([[0.0] * 2] * 2) | {"entropy": [[0.1, 0.2], [0.3, 0.1]], "value": [[0.0, 0.5], [0.2, 0.1]]},
        calls=[[1.0, 0.0], [1.0, 1.0]],
        cost_calls=[[1.0, 0.0], [1.0, 2.0]],
    )
    plain, charged = build_preset(recipe(preset)), build_preset(recipe(preset, reward={"calls": 0.5}))
    found, before = _credit(batch, charged), _credit(batch, plain)
    first, others = before[0] - [0.5, 0.0, 0.5, 1.0], before[1:]
    assert found[0] == pytest.approx(first)
    assert [term.tolist() for term in found[1:]] == [term.tolist() for term in others]
    assert charged.loss == plain.loss


@pytest.mark.parametrize("weight", [0.25, 1.0, 4.0])
def test_the_weight_of_the_preset_is_no_factor_of_the_charge(weight: float) -> None:
    found = []
    for reward in ({}, {"risk": 0.5}):
        own = make_recipe(
            {"env": "backoffice", "credit": {"preset": "hdpo", "accuracy_weight": weight}, "reward": reward}
        )
        found.append(assign_credit(batch_of(RECORDS, costs=COSTS), build_preset(own)).advantage)
    assert found[0] - found[1] == pytest.approx([0, 0.5, 0, 0.5, 0])


def test_a_preset_whose_first_loss_has_no_weight_cannot_charge() -> None:
    credit = {"preset": "hdpo", "accuracy_weight": 0.0}
    with pytest.raises(
        ConfigError, match=r"reward\.risk charges steps in the first loss of the preset, whose weight is"
    ):
        make_recipe({"env": "backoffice", "credit": credit, "reward": {"risk": 0.5}})


def _credit(batch: StepBatch, preset: Any) -> list[Any]:
    return [term.advantage for term in assign_credit(batch, preset).terms]


@pytest.mark.parametrize("preset", sorted(PRESETS.keys()))
def test_without_rewards_a_preset_is_what_it_was(preset: str) -> None:
    assert build_preset(recipe(preset, reward={})) == build_preset(recipe(preset))
    assert all(
        "Charge" not in type(each).__name__
        for term in build_preset(recipe(preset)).loss_terms
        for each in term.transforms
    )


def test_the_explanation_prints_the_formula_of_the_charge() -> None:
    lines = explain_preset(build_preset(recipe(reward={"calls": 0.5, "risk": 1.0})))
    assert "column cost_risk: risk of the step's calls, as the environment declares it" in lines
    (line,) = (each for each in lines if each.startswith("  then:"))
    assert line.startswith("  then: A(i,t) - 0.5 cost_calls(i,t) - cost_risk(i,t): the step's own costs;")
    # without the charge [1, 1] and [-1, -1, -1]; the calls are [1, 0] and [1, 1, 0]
    assert lines[-1].endswith("advantages [0.5, 1], [-1.5, -1.5, -1]")


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        (
            {"monney": 1.0},
            "no key 'reward.monney'; have asking, bytes, calls, components, grader, judge, length, money, risk,",
        ),
        ({"money": -1.0}, "reward.money is -1.0; it must not be negative"),
        ({"risk": "high"}, "reward.risk is 'high'; it must be a number"),
        ({"components": {"state": -0.5}}, "reward.components.state is -0.5; it must not be negative"),
        ({"components": {"state": "much"}}, "reward.components.state is 'much'; it must be a number"),
        ({"components": 3}, "reward.components is 3; it must be a section"),
    ],
)
def test_an_impossible_reward_is_refused(reward: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        recipe(reward=reward)


@pytest.mark.parametrize(
    ("preset", "sections", "says"),
    [
        ("otc", {"reward": {"components": {"state": 1.0}}}, "reward.components changes the score, which this preset"),
        (
            "bnpo",
            {"reward": {"components": {"state": 1.0}}},
            "raises scores above 1, and bnpo needs scores from 0 to 1",
        ),
        ("loop", {"reward": {"money": 1.0}, "learn": {"cost_weight": 1.0}}, "learn.cost_weight and reward.money both"),
        (
            "loop",
            {"reward": {"asking": 1.0}, "learn": {"cost_weight": 1.0}},
            "learn.cost_weight and reward.asking both",
        ),
    ],
)
def test_a_reward_that_does_not_go_with_the_rest_is_refused(preset: str, sections: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        recipe(preset, **sections)


@pytest.mark.parametrize(
    ("env", "sections", "says"),
    [
        (
            "backoffice",
            {"reward": {"money": 1.0}},
            "environment 'backoffice' declares no cost in money; have seconds, calls, bytes, risk, length",
        ),
        ("backoffice", {"reward": {"asking": 1.0}}, "declares no cost in asking; have seconds, calls, bytes, risk"),
        (
            "backoffice",
            {"reward": {"components": {"tone": 1.0}}},
            "reward.components: environment 'backoffice' has no component 'tone'; have state, answer, milestones",
        ),
        ("git", {"reward": {"components": {"tone": 1.0}}}, "has no component 'tone'; have none"),
        ("git", {"reward": {"seconds": 1.0}, "deterministic": True}, "deterministic, and reward.seconds would charge"),
    ],
)
def test_a_reward_that_the_environment_does_not_declare_is_refused(env: str, sections: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_reward(recipe(**sections), load_spec(env))


def test_a_reward_that_the_environment_declares_is_accepted() -> None:
    weights = {"asking": 1.0, "risk": 0.1, "length": 0.01, "components": {"milestones": 0.5, "net_of_price": 1.0}}
    check_reward(recipe(reward=weights), load_spec("backoffice_asking"))
    check_reward(recipe(reward={"seconds": 0.1}, deterministic=True), load_spec("backoffice"))  # it declares them


def test_metrics_have_the_mean_cost_of_an_episode_by_component() -> None:
    found = rollout_metrics(RECORDS, COSTS)
    costs = {name: value for name, value in found.items() if name.startswith("cost/")}
    assert costs == pytest.approx(
        {"cost/seconds": 0.75, "cost/calls": 1.5, "cost/bytes": 15.0, "cost/risk": 1.0, "cost/asking": 0.025}
    )


def test_a_stored_recipe_keeps_its_rewards_and_an_older_one_has_none() -> None:
    own = recipe(reward={"risk": 0.5, "components": {"milestones": 0.5}})
    stored = recipe_as_json(own)
    assert restore_recipe(stored) == own
    older = {key: value for key, value in stored.items() if key != "reward"}
    assert restore_recipe(older) == replace(own, reward=RewardRecipe())


def test_a_grader_of_the_recipe_is_a_component_beside_the_verdict_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text(
        "from gymcp.types import Score\n"
        "def GRADE(task, trajectory, states): return Score(value=1 / len(trajectory.steps))\n"
    )
    path = tmp_path / "mine.toml"
    path.write_text('env = "rounds"\n[reward]\ngrader = "short.py"\ncomponents = { grader = 0.5 }\n')
    own = load_recipe(path)
    loaded = wrap_environment(own, replace(load_spec("rounds"), grade=lambda *_: Score(value=1.0)))
    check_reward(own, loaded.spec)
    found = loaded.spec.grade(loaded.suite.tasks[0], RECORDS[0], dict[str, Any]().__getitem__)
    assert found.value == 1.0
    assert found.components == pytest.approx({"grader": 1 / 3})
    with pytest.raises(ConfigError, match="no grader 'short'; have NAME or NAME:KEY"):
        wrap_environment(recipe(reward={"grader": "short"}), load_spec("rounds"))


def test_a_grader_of_the_recipe_replaces_no_component_of_the_environment() -> None:
    own, rounds = recipe(reward={"grader": "state"}), load_spec("rounds")
    with pytest.raises(
        ConfigError, match=r"reward\.grader would add the component 'grader', and environment 'rounds' has"
    ):
        wrap_environment(own, replace(rounds, components=("grader",)))
    undeclared = wrap_environment(own, replace(rounds, grade=lambda *_: Score(value=1.0, components={"grader": 0.5})))
    with pytest.raises(ConfigError, match="the verdict has a component 'grader' already"):
        undeclared.spec.grade(undeclared.suite.tasks[0], RECORDS[0], dict[str, Any]().__getitem__)


def test_a_run_whose_grader_file_has_changed_is_not_resumed_and_an_older_run_is(tmp_path: Path) -> None:
    file, folder, older = tmp_path / "short.py", tmp_path / "run", tmp_path / "older"
    file.write_text("def GRADE(task, trajectory, states): ...\n")
    own, env = recipe(reward={"grader": str(file)}), load_env(load_spec("rounds"))
    for each in (folder, older):
        each.mkdir()
        record_training_start(each, own, env, None, None)
    began = json.loads((older / RUN_FILE).read_text())
    del began["config"]["grader_digest"]
    (older / RUN_FILE).write_text(json.dumps(began))
    check_code_unchanged(folder, own, None, None)
    file.write_text("def GRADE(task, trajectory, states): raise ValueError\n")
    check_code_unchanged(older, own, None, None)
    with pytest.raises(ConfigError, match=r"the file of grader '.*short\.py' has changed since the run began; put it"):
        check_code_unchanged(folder, own, None, None)


def test_a_run_with_a_grader_of_gymcp_has_no_digest_of_it(tmp_path: Path) -> None:
    own = recipe(reward={"grader": "state"})
    record_training_start(tmp_path, own, load_env(load_spec("rounds")), None, None)
    assert "grader_digest" not in open_run(tmp_path).config
