"""`--policy tiny`: the policy in the package has the published size and success rates."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gymcp.agents.policies.models import TokenModel
from gymcp.agents.policies.specs import TRAINED, ModelOptions, open_model, parse_policy
from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.react import ReactSettings, react
from gymcp.envs import load_env, load_spec
from gymcp.envs.suites.backoffice import make_tasks
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.types import Sampling

CLAIMED = {1: 0.9, 2: 0.7}
"""Success rate on new companies by level: see benchmarks/RESULTS.md."""
TASKS_OF_A_KIND = 6


def test_the_shipped_policy_is_small() -> None:
    assert sum(file.stat().st_size for file in TRAINED.iterdir()) < 10_000_000
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= {
        file.name for file in TRAINED.iterdir()
    }


@pytest.mark.parametrize("level", CLAIMED)
def test_the_shipped_policy_has_the_published_scores_on_a_fixed_sample(level: int) -> None:
    found: list[Rollout] = []

    async def play() -> None:
        env = load_env(load_spec("backoffice"))
        tasks = list(make_tasks("seeds", levels=[level], count=TASKS_OF_A_KIND))
        async with open_model(parse_policy("tiny"), ModelOptions()) as model:
            assert isinstance(model, TokenModel)
            agent = react(model, ReactSettings(sampling=Sampling(max_tokens=32, temperature=0.0)))
            jobs = [Job(task=task, trial=0, seed=0) for task in tasks]
            take = lambda done, last: found.append(done) if last else None  # noqa: E731
            await run_jobs(env, get_sandbox("bwrap"), agent, jobs, Schedule(concurrency=8), take)

    asyncio.run(play())
    scored = [done.trajectory.success for done in found if done.trajectory.outcome.has_score]
    assert len(scored) == 8 * TASKS_OF_A_KIND
    assert sum(map(bool, scored)) / len(scored) >= CLAIMED[level]


def test_a_style_gives_random_weights_instead() -> None:
    async def folder(text: str) -> Path:
        async with open_model(parse_policy(text), ModelOptions()) as model:
            assert isinstance(model, TokenModel)
            return Path(model.renderer.tokenizer.name_or_path)

    assert asyncio.run(folder("tiny")) == TRAINED
    assert asyncio.run(folder("tiny:terse")) != TRAINED
