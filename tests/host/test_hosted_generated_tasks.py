"""Episodes of tasks that an environment makes beyond its suite."""

from __future__ import annotations

from hosting import DEBTS, Hosted

from gymcp.agents.runner.regrading import regrade
from gymcp.envs.spec import load_env
from gymcp.store import TrajectoryStore


def test_a_generated_task_is_played_recorded_and_graded_again(hosted: Hosted) -> None:
    wanted = {"split": "train", "levels": [2], "number": 3}
    episodes = [hosted.start("debts", None, generate=wanted, agent="trains", seed=seed) for seed in (7, 8)]
    assert [(each["task"], each["seed"], each["trial"]) for each in episodes] == [
        ("train-2-3", 7, 0),
        ("train-2-3", 8, 1),
    ]
    pay = {"source": "ann", "target": "bob", "amount": 54}
    hosted.ask(episodes[0], "call", name="transfer", arguments=pay)
    assert [hosted.ask(episode, "finish")["score"] for episode in episodes] == [1.0, 0.0]
    with TrajectoryStore.open(hosted.out / "debts-trains", write=True) as store:
        assert store.load(str(episodes[0]["id"])).provenance["generated"] == {**wanted, "families": []}
        graded = regrade(load_env(DEBTS), store, store.summaries())
        assert sorted((row.task, trajectory.score) for row, trajectory in graded) == [
            ("train-2-3", 0),
            ("train-2-3", 1),
        ]


def test_a_task_that_the_environment_cannot_make_is_one_error(hosted: Hosted) -> None:
    environments = {each["name"]: each["generates"] for each in hosted.get("/v1/environments").json()["environments"]}
    assert (environments["debts"], environments["bank"]) == (True, False)
    for wanted, says in (
        ({"split": "moon"}, "no split 'moon'; have train"),
        ({"number": -1}, "numbered from 0"),
        ({"families": ["old"]}, "its more_tasks: hosting.py:"),
    ):
        answer = hosted.post("/v1/episodes", {"environment": "debts", "generate": wanted})
        assert (answer.status_code, says in answer.json()["error"]["message"]) == (404, True), answer.text
