"""UI-S1 on live worlds: credit and rows of episodes with replaced actions, runs that learn from them, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from coin_flip_bank import BANK
from interruption import train_until

from gymcp.agents import Plan, Schedule, run_plan
from gymcp.envs import load_env, load_spec
from gymcp.errors import ConfigError
from gymcp.mcp_servers import get_sandbox
from gymcp.store import TrajectoryStore
from gymcp.store.metric_rows import METRICS_FILE
from gymcp.trainers.credit.assign import assign_credit
from gymcp.trainers.credit.tree.presets import make_tree_preset
from gymcp.trainers.credit.tree.tree_batch import join_trees
from gymcp.trainers.learner.token_rows import rows_of
from gymcp.trainers.recipe.load import load_recipe, make_recipe
from gymcp.trainers.run.iteration import make_examples
from gymcp.trainers.run.loop import train
from gymcp.trainers.run.metrics_log import read_metrics
from gymcp.types import Action, Observation, Sampled, SideAnswer, Step, Trajectory

NOTHING = Observation(messages=(), tools=())
TABLE: dict[str, Any] = {
    "env": str(BANK),
    "deterministic": True,
    "model": {"vocabulary": 600, "hidden": 32, "layers": 1, "heads": 2, "context": 900},
    "warm_start": {"tasks": 3, "epochs": 24, "batch_size": 3, "learning_rate": 0.01},
    "rollout": {
        "groups": 3, "episodes": 4, "max_tokens": 40, "max_turns": 4, "concurrency": 4, "slots": 4,
        "controller": "ui_s1",
    },
    "credit": {"preset": "ui_s1"},
    "learn": {"iterations": 3},
    "evaluation": {"every": 0, "tasks": 1},
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def oracle_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run in which the oracle solves all three tasks."""
    folder = tmp_path_factory.mktemp("shown")
    with TrajectoryStore.open(folder, write=True) as store:
        run_plan(load_env(load_spec(str(BANK))), get_sandbox("bwrap"), Plan(agent="oracle"), store, Schedule())
    return folder


def sample(prompt: tuple[int, ...], *ids: int) -> Sampled:
    return Sampled(prompt_ids=prompt, ids=ids, logprobs=(-1.0,) * len(ids), versions=(("3", 0, len(ids)),))


def step(sampled: Sampled | None) -> Step:
    return Step(turn=0, observation=NOTHING, action=Action(text="x"), sampled=sampled)


def make_pair() -> list[Trajectory]:
    """The two episodes of docs/tree-credit.md: the first one's second action was replaced by token 9."""
    own = SideAnswer(step=1, context=0, action=Action(text="no"), sampled=sample((1, 2, 3), 7, 8), replaced=True)
    patched = (step(sample((1,), 2)), step(None), step(sample((1, 2, 3, 9, 4), 5)))
    matching = (step(sample((1,), 2)), step(sample((1, 2, 3), 9)), step(sample((1, 2, 3, 9, 4), 6)))
    facts: dict[str, Any] = {"env": "e", "task": "t", "group": "e/t"}
    return [
        Trajectory(id="0", steps=patched, side_answers=(own,), score=1.0, **facts),
        Trajectory(id="1", steps=matching, score=0.0, **facts),
    ]


def test_recorded_episodes_have_the_credit_of_the_page() -> None:
    """Whatever the environment's verdict was: matches alone count."""
    batch = join_trees(make_pair(), {})
    assert batch.column("tokens").tolist() == [1, 2, 1, 1, 1, 1]
    credit = assign_credit(batch, make_tree_preset("ui_s1"))
    assert credit.advantage.tolist() == [-7 / 8, -5 / 4, -1 / 2, 7 / 8, 5 / 4, 1 / 2]


def test_the_own_answer_is_learnt_in_its_context_and_the_other_action_is_only_read() -> None:
    credit = assign_credit(join_trees(make_pair(), {}), make_tree_preset("ui_s1"))
    examples, _ = make_examples(credit)
    assert [each.row.token_ids for each in examples] == [(1, 2, 3, 7, 8), (1, 2, 3, 9, 4, 5), (1, 2, 3, 9, 4, 6)]
    assert [each.advantages[0].tolist() for each in examples] == [
        [0, -7 / 8, 0, -5 / 4, -5 / 4],
        [0, 0, 0, 0, 0, -1 / 2],
        [0, 7 / 8, 0, 5 / 4, 0, 1 / 2],
    ]


def test_an_episode_all_of_whose_actions_were_replaced_is_learnt() -> None:
    own = SideAnswer(step=0, context=0, action=Action(text="no"), sampled=sample((1,), 7), replaced=True)
    record = Trajectory(id="0", env="e", task="t", steps=(step(None),), side_answers=(own,), score=1.0)
    (row,) = rows_of(record)
    assert (row.token_ids, row.loss_mask) == ((1, 7), (False, True))


def test_a_run_that_is_interrupted_learns_the_same_and_the_credit_is_that_of_its_records(
    oracle_run: Path, tmp_path: Path
) -> None:
    env = load_env(load_spec(str(BANK)))
    rollout = {**TABLE["rollout"], "demonstrations": str(oracle_run)}
    recipe = make_recipe({**TABLE, "rollout": rollout})

    assert train(recipe, env, tmp_path / "whole", resume=False).iterations == 3
    train_until(2, recipe, env, tmp_path / "cut")
    assert train(recipe, env, tmp_path / "cut", resume=True).iterations == 3
    assert (tmp_path / "cut" / METRICS_FILE).read_bytes() == (tmp_path / "whole" / METRICS_FILE).read_bytes()
    rows = [row for row in read_metrics(tmp_path / "whole") if row["iteration"] > 0]
    assert any(row["grad_norm"] > 0 for row in rows)
    with TrajectoryStore.open(tmp_path / "whole") as store:
        records = list(store.iter_trajectories())
    with TrajectoryStore.open(oracle_run) as store:
        demonstrated = {record.task: [each.action for each in record.steps] for record in store.iter_trajectories()}
    replaced = 0
    for record in records:
        own = [answer.step for answer in record.side_answers]
        assert own == [at for at, each in enumerate(record.steps) if each.sampled is None]
        assert all(record.steps[at].action == demonstrated[record.task][at] for at in own)
        replaced += len(own)
    assert 0 < replaced < sum(len(record.steps) for record in records)


def test_the_first_solved_episode_of_each_task_is_compared_with(oracle_run: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(
        f"env = '{BANK}'\n[rollout]\ncontroller = 'ui_s1'\ndemonstrations = 'none'\n[credit]\npreset = 'ui_s1'\n"
    )
    (tmp_path / "none").mkdir()
    env = load_env(load_spec(str(BANK)))
    with TrajectoryStore.open(tmp_path / "none", write=True) as store:
        run_plan(env, get_sandbox("bwrap"), Plan(agent="null", limit=2), store, Schedule())
    recipe = load_recipe(tmp_path / "recipe.toml")
    assert recipe.rollout.demonstrations == str(tmp_path / "none")
    with pytest.raises(
        ConfigError, match=r"no solved episode of 'bank' .* for 3 of 3 training tasks, such as 'pay_back"
    ):
        train(recipe, env, tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"credit": {"preset": "grpo"}}, "'ui_s1' replaces actions, and preset 'grpo' does not read where"),
        ({"rollout": {"demonstrations": ""}}, "set rollout.demonstrations to the folder of a run that solved"),
        ({"rollout": {"controller": ""}}, "reads at which steps an action was replaced; set rollout.controller"),
        ({"rollout": {"controller": "cleaner"}, "credit": {"preset": "cleaner"}}, "demonstrations is set, and only"),
        ({"curriculum": {"order": "frontier"}}, "'frontier', which makes tasks that no recorded episode is of"),
        ({"rollout": {"branching": {"ways": 3}}}, "branching.ways is set, and .* 'ui_s1' does not read it"),
        ({"rollout": {"agent": "cmd:true"}}, "a program cannot go on from a record"),
    ],
)  # fmt: skip
def test_a_recipe_that_replaces_for_nothing_is_one_error(table: dict[str, Any], says: str) -> None:
    rollout = {"controller": "ui_s1", "demonstrations": "/runs/shown", **table.pop("rollout", {})}
    with pytest.raises(ConfigError, match=says):
        make_recipe({"env": "rounds", "credit": {"preset": "ui_s1"}, "rollout": rollout, **table})
