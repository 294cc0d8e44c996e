"""Derived seeds never change: recorded runs and reference vectors depend on these numbers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

from gymcp import seeds
from gymcp.agents.runner.run import Plan, make_jobs
from gymcp.envs.users import SimulatedUser
from gymcp.protocols import UserView
from gymcp.seeds import derive_seed
from gymcp.types import Action, Decision, Message, Sampling, Task, Tool

ROOT = Path(__file__).parents[1]
TASKS = (Task(id="refund", prompts=("Refund it.",)), Task(id="lookup/2", prompts=("Look it up.",)))


def test_names_give_the_seeds_of_recorded_runs() -> None:
    assert derive_seed(0, "refund", 0) == 1990532611
    assert derive_seed(7, "refund", 1) == 1342127673
    assert derive_seed(7, "lookup/2", 3) == 900709932
    assert derive_seed(0, 0) == 713683445
    assert derive_seed(0, 1) == 1419524863
    assert derive_seed(1234567890, 12) == 1638515852
    assert derive_seed("user", 41, 5) == 1630594132
    assert derive_seed("branch", 41, "2.1/3.1") == 1554229146
    assert derive_seed(0, "transfer") == 1217086079


def derives_a_seed(path: Path) -> bool:
    """True if the module seeds a generator with a text; in suites, only one with the seed of a run counts."""
    text = r"f\"\{seed\b" if "suites" in path.parts else r"(?:f\"|hashlib)"
    return re.search(rf"Random\({text}", (ROOT / path).read_text(encoding="utf-8")) is not None


def test_every_module_that_derives_a_seed_by_itself_is_named() -> None:
    folders = [ROOT / name for name in ("agents", "envs", "evaluators", "trainers")]
    files = [path.relative_to(ROOT) for folder in folders for path in folder.rglob("*.py")]
    own = [path for path in files if derives_a_seed(path)]
    named = re.findall(r"`(\w[\w/]+\.py)`", seeds.__doc__ or "")
    assert sorted(str(path) for path in own) == sorted(named)


def test_every_job_of_a_plan_has_the_seed_it_always_had() -> None:
    seeds = {seed: [job.seed for job in make_jobs(Plan(agent="null", trials=2, seed=seed), TASKS)] for seed in (0, 7)}
    assert seeds == {
        0: [1990532611, 769939721, 276782905, 1225407961],
        7: [596347816, 1835211726, 1342127673, 237957307],
    }


def test_every_answer_of_a_simulated_user_has_the_seed_it_always_had() -> None:
    class Recorder:
        """Records the seeds that it is asked with."""

        def __init__(self) -> None:
            self.seeds: list[int | None] = []

        async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
            self.seeds.append(sampling.seed)
            return Decision(action=Action(text="Hello."))

    recorder = Recorder()
    user = SimulatedUser(policy=recorder, scenario="You are a customer.")
    for seed, count in ((0, 0), (0, 2), (41, 5)):
        messages = (Message(role="user", content="Hello."),) * count
        asyncio.run(user.reply(UserView(messages=messages, seed=seed)))
    assert recorder.seeds == [1283126750, 542260402, 1630594132]
