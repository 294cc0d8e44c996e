"""Agents of the user: found by file, module or plug-in, told apart by their parameters, refused with one line."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gymcp.agents.policies.models import ChatModel
from gymcp.agents.strategies.react import ReactSettings, react
from gymcp.agents.strategies.user_agents import check_user_agents, load_agent, make_user_agents
from gymcp.errors import ConfigError
from gymcp.outcome import Outcome
from gymcp.types import Action, GiveUp, Observation, Task
from gymcp.user_code import find_plugins

TASK = Task(id="t", prompts=("Do it.",))
MODEL = ChatModel(name="silent", policy=None)  # type: ignore[arg-type]
"""A model that no agent of these tests asks."""
SOURCE = """
from gymcp.types import Action


class Speaker:
    def __init__(self, task, seed):
        self.words = f"{task.id} {seed}"

    async def act(self, observation):
        return Action(text=self.words)


class Mute:
    def __init__(self, task, seed):
        pass


class Plain(Mute):
    def act(self, observation):
        return Action(text="now")


class Broken(Mute):
    def __init__(self, task, seed):
        raise KeyError("missing")


def over_a_model(model, settings):
    return Speaker


def over_nothing(model, settings):
    return None


def of_one(task):
    return Speaker


async def later(task, seed):
    return Speaker(task, seed)


class Crashing(Mute):
    async def act(self, observation):
        raise KeyError("missing")


def make_crashing(task, seed):
    return Crashing(task, seed)


def crashing_over_a_model(model, settings):
    return make_crashing


NUMBER = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def first_action(name: str, file: Path) -> object:
    agent = load_agent(f"{file}:{name}")
    assert agent is not None
    make = make_user_agents(agent, None, ReactSettings())
    check_user_agents(make, TASK)
    return asyncio.run(make(TASK, 7).act(Observation(messages=(), tools=())))


def test_an_agent_in_a_file_is_made_for_each_episode(file: Path) -> None:
    agent = load_agent(f"{file}:Speaker")
    assert agent is not None
    assert (agent.name, agent.source, agent.takes_model) == ("mine.py:Speaker", f"{file}:Speaker", False)
    assert agent.digest == hashlib.sha256(file.read_bytes()).hexdigest()
    assert getattr(first_action("Speaker", file), "action", None) == Action(text="t 7")


def test_a_function_of_model_and_settings_takes_a_model(file: Path) -> None:
    agent = load_agent(f"{file}:over_a_model")
    assert agent is not None
    assert agent.takes_model


def test_a_module_has_agents_as_a_file_has() -> None:
    agent = load_agent("gymcp.agents:react")
    assert agent is not None
    assert (agent.name, agent.make, agent.takes_model) == ("gymcp.agents:react", react, True)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Nobody", "defines no 'Nobody'; have Speaker, Mute, Plain, Broken, over_a_model"),
        ("NUMBER", "is an int, not a function or class: def NAME(task, seed) -> agent"),
        ("of_one", "takes (task); it is called with 2 arguments: def NAME(task, seed) -> agent"),
        ("later", "mine.py:40: is async; make it a plain function"),
        ("not a name", "'not a name' is no name; give FILE.py:NAME, MODULE:NAME"),
    ],
)
def test_an_object_without_the_agent_protocol_is_one_line(name: str, says: str, file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_agent(f"{file}:{name}")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Mute", "which is no agent: it has no method 'async def act"),
        ("Plain", "mine.py:19: its act must be 'async def act"),
        ("Broken", "mine.py:25: KeyError: 'missing'"),
    ],
)
def test_a_failing_agent_factory_is_refused_before_the_first_episode(name: str, says: str, file: Path) -> None:
    with pytest.raises(ConfigError, match=says.replace("(", r"\(")):
        first_action(name, file)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no/such/file.py:Agent", "no file 'no/such/file.py'"),
        ("mine.py", "name the agent in the file: mine.py:NAME"),
        ("gymcp_no_such_module:Agent", "no module 'gymcp_no_such_module' is installed; give a file by its path"),
    ],
)
def test_a_missing_file_or_name_is_one_line(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_agent(text)


def test_a_file_that_raises_is_one_line_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("\nraise RuntimeError('boom')\n")
    with pytest.raises(ConfigError, match=r"^agent file '.*bad.py': bad.py:2: RuntimeError: boom$"):
        load_agent(f"{tmp_path / 'bad.py'}:Agent")


def install(folder: Path, name: str, text: str, entries: str) -> None:
    """A package of one module, as an installer leaves it."""
    (folder / f"{name}.py").write_text(text)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(entries)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], None]:
    """Installs packages in a folder that only this test has on its path."""
    monkeypatch.syspath_prepend(tmp_path)

    def add(name: str, text: str, entries: str) -> None:
        install(tmp_path, name, text, entries)
        monkeypatch.delitem(sys.modules, name, raising=False)

    return add


def test_a_package_brings_agents(packages: Callable[[str, str, str], None]) -> None:
    packages("gymcp_test_agents", SOURCE, "[gymcp.agents]\nspeaker = gymcp_test_agents:Speaker\n")
    assert list(find_plugins("gymcp.agents")) == ["speaker"]
    agent = load_agent("speaker")
    assert agent is not None
    assert (agent.name, agent.takes_model, len(agent.digest)) == ("gymcp_test_agents:Speaker", False, 64)


@pytest.mark.parametrize("name", ["Crashing", "make_crashing", "crashing_over_a_model"])
@pytest.mark.parametrize("is_plug_in", [False, True])
def test_an_agent_that_raises_is_shown_and_not_tried_again(
    name: str,
    is_plug_in: bool,
    file: Path,
    packages: Callable[[str, str, str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The outcome is ``agent_error``, which no schedule tries again, whichever way the agent came in."""
    packages("gymcp_test_crashing", SOURCE, f"[gymcp.agents]\ncrash = gymcp_test_crashing:{name}\n")
    agent = load_agent("crash" if is_plug_in else f"{file}:{name}")
    assert agent is not None
    make = make_user_agents(agent, MODEL if agent.takes_model else None, ReactSettings())
    with caplog.at_level(logging.WARNING, logger="gymcp"):
        ended = asyncio.run(make(TASK, 7).act(Observation(messages=(), tools=())))
    assert isinstance(ended, GiveUp)
    assert (ended.outcome, ended.outcome.runs_again) == (Outcome.AGENT_ERROR, False)
    (record,) = caplog.records
    assert "in act\n" in record.getMessage()
    assert record.getMessage().endswith("KeyError: 'missing'")


def test_a_broken_plug_in_is_named_with_its_package(packages: Callable[[str, str, str], None]) -> None:
    packages("gymcp_test_broken", "raise RuntimeError('boom')\n", "[gymcp.agents]\nbad = gymcp_test_broken:Agent\n")
    with pytest.raises(ConfigError, match=r"plug-in 'bad' of package 'gymcp_test_broken' \(gymcp_test_broken:Agent\)"):
        load_agent("bad")


def test_a_name_that_is_neither_place_nor_plug_in_is_left_to_the_caller() -> None:
    assert load_agent("wizard") is None
