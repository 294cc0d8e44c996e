"""Programs over vendors' SDKs, as a user writes them: those of examples/programs whose packages the tests have."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from gold_policy import GoldPolicy
from program_kits import SCRIPTS, choose_kits, play

from gymcp.agents.policies.models import ChatModel
from gymcp.agents.programs.settings import ProgramSettings
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import load_env
from gymcp.outcome import Outcome

BANK = load_env(load_spec(str(Path(__file__).parents[2] / "examples" / "bank.py")))


@pytest.fixture(scope="module")
def packages() -> Path:
    """Folder of the packages: beside the interpreter, or another that its virtualenv refers to."""
    found = importlib.util.find_spec("openai")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parents[1]


def play_one(program: ProgramSettings) -> None:
    policy = GoldPolicy(BANK.suite.tasks)
    (episode,) = play(BANK, program, BANK.suite.tasks[:1], ChatModel(name="gold", policy=policy), concurrency=1)
    assert (episode.outcome, episode.score) == (Outcome.SCORED, 1.0), episode.reason
    assert episode.steps[-1].action.text == "Bob has his money."
    assert [message.role for message in policy.asked[-1]] == ["user", "assistant", "tool"], "the whole conversation"


@pytest.mark.parametrize("script", ["openai_sdk.py", "openai_tool_runner.py", "anthropic_tool_runner.py"])
def test_a_program_over_a_vendors_sdk_plays_an_episode(script: str, packages: Path) -> None:
    play_one(ProgramSettings(argv=(sys.executable, str(SCRIPTS / script)), mounts=(packages,)))


def test_a_program_in_typescript_plays_an_episode(node: None) -> None:
    (kit,) = choose_kits("mcp-typescript")
    play_one(kit.install())
