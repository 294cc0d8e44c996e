"""SPA-RL: a head that predicts progress, against the vector."""

from __future__ import annotations

import numpy as np
import torch
from vectors import VECTORS, near

from gymcp.trainers.credit.assign import assign_credit
from gymcp.trainers.credit.presets import make_preset
from gymcp.trainers.credit.signals.progress import progress_reward
from gymcp.trainers.credit.step_batch import batch_of_columns
from gymcp.trainers.learner.critic import Critic


def test_spa_reward_and_loss_of_its_head() -> None:
    vector = VECTORS["spa_reward"]
    inputs = vector["inputs"]
    shares = np.array(inputs["c_hat"])
    found = progress_reward(shares, np.array(inputs["grounding"], float), alpha=inputs["alpha"], beta=inputs["beta"])
    assert found.tolist() == near(vector["turn_reward"])
    head = Critic(4, torch.device("cpu"), learning_rate=0.0, epochs=1, seed=0)
    state = head.state()
    state["head"]["3.bias"] += float(shares.mean())  # the same value for every step, so the episode has the same sum
    head.load(state)
    loss = head.fit(torch.zeros(3, 4), np.array([inputs["R"]]), sums=np.zeros(3, np.int64))
    assert loss == near(vector["estimator_loss"])


def test_spa_rewards_steps_that_the_environment_took() -> None:
    batch = batch_of_columns(
        [[0.0, 0.0, 1.0]], "g", progress=[[0.1, 0.5, 0.3]], value=[[0.0] * 3], errors=[[0.0, 1.0, 0.0]]
    )
    credit = assign_credit(batch, make_preset("spa", lam=0.0))
    assert credit.batch.column("progress_reward").tolist() == near(VECTORS["spa_reward"]["turn_reward"])
