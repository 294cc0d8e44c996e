"""TextWorld's games: made by its own code in a sandbox, played by ours. The first session needs a package index.

Four games of those that gymcp brings are made anew here, all of them by `benchmarks/precomputed.py` every night.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import warm_command
from page_blocks import DOCS, read_blocks
from textworld_peer import OTHER_WAYS

from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.envs.audit.leaks import find_leaks
from gymcp.envs.catalog.textworld import ENV
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.envs.suites.textworld.games import PRECOMPUTED, add_gold, games_fingerprint, install_textworld, maker
from gymcp.envs.suites.textworld.solutions import as_call, last_necessary
from gymcp.envs.suites.textworld.tasks import STEPS, TOOLS, Kind, list_suite_kinds, make_suite, make_tasks
from gymcp.envs.suites.upstream.precomputed import read_precomputed
from gymcp.envs.suites.upstream.run_once import run_once
from gymcp.errors import ConfigError
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.native.runtime import ToolError
from gymcp.mcp_servers.programs.textworld.server import TextWorld
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.types import GoldTurn, Json, Suite, Task, Trajectory

KINDS = (
    Kind(split="seeds", family="coin", level=3, number=0),
    *(Kind(split="seeds", family="treasure", level=level, number=0) for level in (4, 5)),
    Kind(split="foods", family="cooking", level=4, number=0),
)


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return list(make_tasks("seeds", levels=[1, 2, 3], count=1))


def play_tasks(env: LoadedEnv, agent: str) -> dict[str, Trajectory]:
    by_task: dict[str, Trajectory] = {}

    def take(done: Rollout, last: bool) -> None:
        by_task[done.job.task.id] = done.trajectory

    async def play() -> None:
        jobs = [Job(task=task, trial=0, seed=0) for task in env.suite.tasks]
        async with open_warm_sandbox(get_sandbox("bwrap")) as warm:
            await run_jobs(env, warm, SCRIPTED[agent], jobs, Schedule(concurrency=4), take)

    asyncio.run(play())
    return by_task


@pytest.fixture(scope="module")
def env(tasks: list[Task]) -> LoadedEnv:
    return load_env(replace(ENV, suite=Suite(name="textworld", version="test", tasks=tuple(tasks))))


@pytest.mark.parametrize(("agent", "score"), [("oracle", 1.0), ("null", 0.0), ("mutated", 0.0)])
def test_scripted_agents_have_the_expected_scores_in_the_sandbox(env: LoadedEnv, agent: str, score: float) -> None:
    assert {name: record.score for name, record in play_tasks(env, agent).items()} == dict.fromkeys(
        [task.id for task in env.suite.tasks], score
    )


def test_two_episodes_of_the_same_calls_have_the_same_states(env: LoadedEnv) -> None:
    first, second = play_tasks(env, "oracle"), play_tasks(env, "oracle")
    keys = {name: [step.state_key for step in record.steps] for name, record in first.items()}
    assert keys == {name: [step.state_key for step in record.steps] for name, record in second.items()}
    assert all(len(set(of_one)) == len(of_one) for of_one in keys.values())


def test_the_walkthrough_is_unreadable_from_inside(env: LoadedEnv) -> None:
    assert asyncio.run(find_leaks(env, get_sandbox("bwrap"))) == []


def test_our_player_agrees_with_textworlds_own_logic_at_every_step() -> None:
    """Facts, commands, score and failure are the same along random plays, except commands of which we know more.

    TextWorld makes the games in another order than that in which gymcp's were made: a game must be the same, and not
    depend on the games made before it.
    """
    orders = [kind.order(0) for kind in reversed(KINDS)]
    program = maker("textworld_peer", modules=("gymcp.mcp_servers.programs.textworld.maker",))
    answers = run_once(program, get_sandbox("bwrap"), "".join(f"{order.line()}\n" for order in orders))
    brought = read_precomputed(PRECOMPUTED, games_fingerprint())
    for order, line in zip(orders, answers.splitlines(), strict=True):
        made, steps = json.loads(line)
        assert json.loads(json.dumps(add_gold(made))) == brought[order.key]
        world = TextWorld(made["game"])
        for command, facts, commands, score, failed in steps:
            if command:
                name, arguments = as_call(command) or ("", {})
                getattr(world, name)(**arguments)
            assert [list(fact) for fact in world._world.facts()] == facts
            assert (world.score, world.lost) == (score, failed)
            if not (world.won or world.lost):
                ours = [command for command in world.commands().split("\n") if not command.startswith(OTHER_WAYS)]
                assert ours == commands


def test_the_suite_needs_no_run_of_textworld(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The games that gymcp brings are those of this code: else `python benchmarks/precomputed.py --write` is due."""
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path))
    assert len(make_suite().tasks) == 92
    assert list(tmp_path.iterdir()) == []


def test_the_games_of_the_suite_are_played_as_the_page_types_it(tmp_path: Path) -> None:
    """Three of the 92; training makes more, with TextWorld itself."""
    (block,) = (block for block in read_blocks(DOCS / "textworld.md") if "eval textworld" in block.text)
    lines = [line.partition("  #")[0].split() for line in block.text.splitlines()]
    assert [words[1] for words in lines] == ["eval", "check", "train"]
    for words, more in zip(lines, (("--out", "run"), ()), strict=False):
        asked = [*words[1:], "--limit", "3", *more]
        done = warm_command.run(asked, cwd=tmp_path, env=os.environ, timeout_s=300)
        assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["success"] == 1.0


def test_the_same_arguments_make_the_same_tasks(tasks: list[Task]) -> None:
    assert list(make_tasks("seeds", levels=[1, 2, 3], count=1)) == tasks


def test_initial_states_hold_no_walkthrough(tasks: list[Task]) -> None:
    for task in tasks:
        assert set(task.initial_state) == {"game"}
        assert set(task.initial_state["game"]) == {"kinds", "rules", "facts", "names", "texts", "quests"}


def test_splits_share_no_game_and_the_foods_of_testing_are_new(tasks: list[Task]) -> None:
    trained = list(make_tasks("train", families=["coin"], levels=[2], count=1))
    worlds = [json.dumps(task.initial_state) for task in (*tasks, *trained)]
    assert len(set(worlds)) == len(worlds)
    kinds = [replace(kind, split="train", number=number) for kind in KINDS for number in range(16)]
    ordered = [kind.order(0) for kind in (*kinds, *list_suite_kinds())]
    assert len({(order.challenge, order.settings, order.seed) for order in ordered}) == len(ordered)
    with pytest.raises(ConfigError, match="no split 'values'; have train, seeds, foods, sizes"):
        next(iter(make_tasks("values")))


def test_gold_fits_into_the_steps_and_names_its_last_necessary_call(tasks: list[Task]) -> None:
    for task in tasks:
        (gold,) = task.gold
        calls = [(call.name, dict(call.arguments)) for call in gold.calls if not isinstance(call.arguments, str)]
        assert len(calls) < STEPS[int(task.tags[1].split()[1])]
        assert {name for name, _ in calls} <= set(TOOLS[task.tags[0]])
        assert task.last_necessary == (0, last_necessary(task.initial_state["game"], calls))


def kitchen() -> tuple[TextWorld, GoldTurn]:
    (task,) = make_tasks("seeds", families=["cooking"], levels=[3], count=1)
    return TextWorld(task.initial_state["game"]), task.gold[0]


def test_a_way_there_and_back_leads_to_the_same_state(tasks: list[Task]) -> None:
    world = TextWorld(next(task for task in tasks if task.tags[:2] == ("coin", "level 2")).initial_state["game"])
    before, direction = list(world.facts), world.look().split("Exits: ")[1].rstrip(".").split(", ")[0]
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}[direction]
    world.go(direction)
    assert world.facts != before
    world.go(back)
    assert world.facts == before


def test_a_meal_is_made_only_of_what_is_ready_and_burning_it_loses() -> None:
    world, gold = kitchen()
    with pytest.raises(ToolError, match="all ingredients in hand"):
        world.prepare_meal()
    for call in gold.calls:
        arguments: Json = call.arguments
        getattr(world, call.name)(**arguments)
        if call.name == "cook":
            break
    assert (world.won, world.lost) == (False, False)
    assert world.cook(**arguments).endswith("You have lost.")
    with pytest.raises(ToolError, match="the game is over"):
        world.prepare_meal()


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("go", {"direction": "up"}, "there is no exit up"),
        ("take", {"thing": "unicorn"}, "there is no unicorn here"),
        ("eat", {"food": "cookbook"}, "you cannot eat cookbook now"),
        ("cook", {"food": "cookbook", "appliance": "stove"}, "you cannot cook cookbook stove now"),
    ],
)
def test_an_impossible_call_is_a_tool_error(tool: str, arguments: dict[str, str], says: str) -> None:
    with pytest.raises(ToolError, match=says):
        getattr(kitchen()[0], tool)(**arguments)


def test_textworld_is_installed_without_the_packages_for_compiled_games() -> None:
    (packages,) = install_textworld().glob("venv/lib/python*/site-packages")
    installed = {path.name for path in Path(packages).iterdir()}
    assert {"textworld", "networkx", "tatsu"} <= installed
    assert not {"jericho", "spacy"} & installed
