"""The laboratories `rounds` and `looks`: their rules by enumeration, played on the servers' classes in this process."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gymcp.envs.suites.rounds import (
    LEVELS,
    LOOKS,
    ROUNDS,
    SPLITS,
    Laboratory,
    grade_looks,
    grade_round,
    make_suite,
    make_tasks,
)
from gymcp.envs.suites.rounds.demonstrators import Demonstrator, looking_oracle, teacher, teacher_with_habits
from gymcp.errors import ConfigError, GraderError
from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.programs.rounds.house import PARCELS, ROOMS, TOOLS, describe_parcel, make_house
from gymcp.mcp_servers.programs.rounds.looks import Looks
from gymcp.mcp_servers.programs.rounds.server import Rounds
from gymcp.protocols import Agent
from gymcp.types import Action, Message, Observation, Step, Task, ToolCall, ToolResult, Trajectory

SERVERS = {"rounds": Rounds, "looks": Looks}
BOTH = pytest.mark.parametrize("laboratory", [ROUNDS, LOOKS], ids=lambda laboratory: laboratory.name)
ANSWERS = {
    *(f"a {parcel}" for parcel in PARCELS),
    *(f"in the {room}" for room in ROOMS),
    *("a sealed parcel", "no parcel is left", "the round is over"),
}
FIRST, SECOND, THIRD = PARCELS[:3]


def state_of(world: Rounds) -> dict[str, Any]:
    """The declared state, as `class_server` reads it."""
    return {key: value for key, value in vars(world).items() if not key.startswith("_")}


def use(world: Rounds, *tools: str) -> str:
    """The last answer."""
    answer = ""
    for tool in tools:
        answer = getattr(world, tool)()
    return answer


KINDS = {
    (2, False, False, False): "right",
    (1, False, False, False): "nothing",
    (1, True, False, False): "aside",
    (0, False, False, False): "back",
    (1, False, True, False): "spoil",
    (1, False, False, True): "end",
}
"""Kinds of effects by what is left: parcels done, in a side room, spoiled, over."""


def tools_by_effect(make: Callable[[], Rounds]) -> dict[str, list[str]]:
    """The tools by what each does to the state of a world that stands at its second parcel."""
    found: dict[str, list[str]] = {}
    for tool in TOOLS:
        world = make()
        use(world, tool)
        kind = KINDS[world.at, bool(world.aside), world.spoiled, world.over]
        found.setdefault(kind, []).append(tool)
    return found


def at_second(parcel: str) -> Callable[[], Rounds]:
    """Maker of worlds that stand at this parcel, the second of three."""

    def make() -> Rounds:
        world = Rounds([FIRST, parcel, THIRD])
        use(world, make_house(0).right_tool(FIRST))
        return world

    return make


def act(agent: Agent, shown: str) -> Action:
    """The action of an agent that waits for nothing."""
    step = agent.act(Observation(messages=(Message(role="tool", content=shown),), tools=()))
    with pytest.raises(StopIteration) as returned:
        step.send(None)
    assert isinstance(returned.value.value, Action)
    return returned.value.value


def play(laboratory: Laboratory, task: Task, agent: Agent) -> tuple[Rounds, Trajectory]:
    """The world at the end of an episode, and its record, whose states are not kept."""
    assert task.limits is not None
    world = SERVERS[laboratory.name](**task.initial_state)
    shown, steps = task.prompts[0], []
    for _ in range(task.limits.steps):
        action = act(agent, shown)
        if not action.tool_calls:
            break
        shown = use(world, action.tool_calls[0].name)
        assert shown in ANSWERS
        result = ToolResult(call_id=action.tool_calls[0].id, content=shown)
        steps.append(Step(turn=0, observation=Observation(messages=(), tools=()), action=action, results=(result,)))
    return world, Trajectory(id="e", env=laboratory.name, task=task.id, steps=tuple(steps), final_state="end")


def score(laboratory: Laboratory, task: Task, agent: Agent) -> float:
    world, record = play(laboratory, task, agent)
    return grade_round(task, record, {"end": state_of(world)}.__getitem__).value


def success(laboratory: Laboratory, tasks: Sequence[Task], make: Callable[[Task, int], Agent]) -> float:
    return sum(score(laboratory, task, make(task, 0)) for task in tasks) / len(tasks)


class Scripted:
    """Uses these tools, and then says done."""

    def __init__(self, tools: Sequence[str]) -> None:
        self._calls = iter([ToolCall(id=str(number), name=tool) for number, tool in enumerate(tools)])

    async def act(self, observation: Observation) -> Action:
        call = next(self._calls, None)
        return Action(text="done") if call is None else Action(tool_calls=(call,))


def gold(task: Task) -> list[str]:
    return [call.name for call in task.gold[0].calls]


# -------------------------------------------------------------------------------------------------------------- rules


def test_each_parcel_has_one_right_tool_and_seven_wrong_ones_of_five_kinds() -> None:
    for parcel in PARCELS:
        kinds = {kind: len(tools) for kind, tools in tools_by_effect(at_second(parcel)).items()}
        assert kinds == {"right": 1, "nothing": 2, "aside": 2, "back": 1, "spoil": 1, "end": 1}
    assert (len(PARCELS), len(set(PARCELS)), len(set(ROOMS))) == (150, 150, 20)


def test_one_tool_leads_back_from_a_side_room_to_the_same_state() -> None:
    rooms = Counter[str]()
    for parcel in PARCELS:
        make = at_second(parcel)
        for tool in tools_by_effect(make)["aside"]:
            left = make()
            room = use(left, tool)
            ends = {back: (make(), back) for back in TOOLS}
            returned = [back for back, (world, _) in ends.items() if use(world, tool, back) == f"a {parcel}"]
            assert len(returned) == 1
            assert state_of(ends[returned[0]][0]) == state_of(make())
            assert all(state_of(world) == state_of(left) for back, (world, _) in ends.items() if back not in returned)
            rooms[room] += 1
    assert set(rooms) == {f"in the {room}" for room in ROOMS}


def test_a_state_has_one_digest_and_one_answer_whichever_way_led_to_it() -> None:
    do, house = tools_by_effect(at_second(SECOND)), make_house(0)
    (right,), (back,), first = do["right"], do["back"], house.right_tool(FIRST)
    detours = [tool for way, room in house.side_rooms[SECOND].items() for tool in (way, house.ways_back[room])]
    ways = [
        [first, right],
        [first, *do["nothing"], right],
        [first, *detours, right],
        [first, back, first, back, first, right],
    ]
    found = set()
    for way in ways:
        world = Rounds([FIRST, SECOND, THIRD])
        found.add((use(world, *way), digest(state_of(world))))
    assert len(found) == 1
    assert set(state_of(world)) == {"parcels", "at", "aside", "spoiled", "over"}


def test_a_spoiled_round_goes_on_without_a_message() -> None:
    do = tools_by_effect(at_second(SECOND))
    spoiled, good = at_second(SECOND)(), at_second(SECOND)()
    assert use(spoiled, *do["spoil"], *do["right"]) == use(good, *do["nothing"], *do["right"])
    assert (spoiled.spoiled, good.spoiled, spoiled.at) == (True, False, 2)


def test_nothing_happens_after_the_end_or_before_the_first_parcel() -> None:
    do = tools_by_effect(at_second(SECOND))
    over, finished, first = at_second(SECOND)(), Rounds([SECOND]), Rounds([SECOND])
    assert use(over, *do["end"], *TOOLS) == "the round is over"
    assert use(finished, *do["right"], *TOOLS) == "no parcel is left"
    assert use(first, *do["back"]) == f"a {SECOND}"
    assert (over.at, finished.at, finished.spoiled, finished.over, first.at) == (1, 1, False, False, 0)


def test_a_sealed_parcel_shows_its_name_to_a_look_which_changes_nothing() -> None:
    house = make_house(0)
    sealed, plain = sorted(house.sealed)[0], sorted(set(PARCELS) - house.sealed)[0]
    assert len(house.sealed) == round(len(PARCELS) / 4)
    for parcel, shown in ((sealed, "a sealed parcel"), (plain, f"a {plain}")):
        world = Looks([FIRST, parcel])
        before = use(world, house.right_tool(FIRST))
        digests = {digest(state_of(world))}
        assert (before, use(world, "look")) == (shown, f"a {parcel}")
        digests.add(digest(state_of(world)))
        assert len(digests) == 1
    aside = next(iter(house.side_rooms[sealed]))
    room = use(world := Looks([sealed]), aside)
    assert (use(world, "look"), use(world, "look")) == (room, room)


# -------------------------------------------------------------------------------------------------------------- tasks


@BOTH
def test_levels_are_as_long_and_have_as_many_steps_as_specified(laboratory: Laboratory) -> None:
    found = {}
    for level in LEVELS:
        (task,) = make_tasks(laboratory, "train", levels=[level], count=1)
        assert task.limits is not None
        found[level] = (len(task.initial_state["parcels"]), task.limits.steps)
    assert (
        found
        == {
            "rounds": {1: (4, 10), 2: (8, 20), 3: (12, 30), 4: (16, 40), 5: (24, 60)},
            "looks": {1: (4, 16), 2: (6, 24), 3: (8, 32), 4: (12, 48), 5: (16, 64)},
        }[laboratory.name]
    )


@BOTH
def test_no_test_split_shares_a_round_with_training(laboratory: Laboratory) -> None:
    def rounds(split: str, count: int) -> set[tuple[int, tuple[str, ...]]]:
        states = [task.initial_state for task in make_tasks(laboratory, split, count=count)]
        return {(state["house"], tuple(state["parcels"])) for state in states}

    trained, tested = rounds("train", 300), {split: rounds(split, 60) for split in SPLITS}
    assert not any(trained & rounds_of_split for rounds_of_split in tested.values())
    assert {house for house, _ in trained | tested["seeds"] | tested["sizes"]} == {0}
    assert {house for house, _ in tested["houses"]} == {1}
    assert min(len(parcels) for _, parcels in tested["sizes"]) > max(len(parcels) for _, parcels in trained)
    names = Counter(name for _, parcels in trained for name in parcels)
    assert max(names.values()) < 2 * min(names.values()), "names are drawn evenly"


@BOTH
def test_the_same_arguments_make_the_same_tasks_and_there_is_no_last_one(laboratory: Laboratory) -> None:
    assert make_suite(laboratory) == make_suite(laboratory)
    early, late = (next(iter(make_tasks(laboratory, "train", first=first))) for first in (0, 123_456))
    assert early.initial_state != late.initial_state


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"split": "values"}, "rounds: no split 'values'; have train, seeds"),
        ({"split": "train", "levels": [7]}, "rounds: no level 7; have 1, 2"),
        ({"split": "train", "families": ["coin"]}, "rounds: no family 'coin'; have round"),
    ],
)
def test_an_unknown_setting_of_the_laboratory_is_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_tasks(ROUNDS, **arguments)


@BOTH
def test_prompts_tell_nothing_about_the_tables(laboratory: Laboratory) -> None:
    heads = set()
    for task in make_suite(laboratory).tasks:
        request, first = task.prompts[0].split("\n")
        heads.add(request.replace(str(len(task.initial_state["parcels"])), "N", 1))
        sealed = laboratory.find_sealed(make_house(task.initial_state["house"]))
        name = task.initial_state["parcels"][0]
        assert first == ("a sealed parcel" if name in sealed else f"a {name}")
    (head,) = heads
    assert not {*TOOLS, *PARCELS, *ROOMS} & set(head.split())


@BOTH
def test_gold_wins_and_without_its_last_necessary_call_it_does_not(laboratory: Laboratory) -> None:
    for task in make_suite(laboratory).tasks:
        calls = gold(task)
        assert task.last_necessary == (0, len(calls) - 1)
        scores = [score(laboratory, task, Scripted(tools)) for tools in (calls, calls[:-1], [])]
        assert scores == [1.0, 0.0, 0.0]
    mine, others = (list(make_tasks(laboratory, split, count=10)) for split in ("seeds", "houses"))
    assert not any(score(laboratory, there, Scripted(gold(here))) for here, there in zip(mine, others, strict=True))


# ------------------------------------------------------------------------------------------------------------- agents


def test_random_tools_hardly_ever_win() -> None:
    def randomly(task: Task, seed: int) -> Agent:
        return Scripted(random.Random(task.id).choices(TOOLS, k=40))

    assert success(ROUNDS, list(make_tasks(ROUNDS, "train", levels=[1], count=500)), randomly) <= 0.01


@pytest.mark.parametrize(
    ("level", "expected", "with_habits"),
    [(1, 0.52, 0.54), (2, 0.31, 0.36), (3, 0.16, 0.24), (4, 0.11, 0.18), (5, 0.03, 0.1)],
)
def test_the_teachers_win_as_often_as_the_laboratory_is_meant_for(
    level: int, expected: float, with_habits: float
) -> None:
    tasks = list(make_tasks(ROUNDS, "train", levels=[level], count=400))
    for agent, share in ((teacher, expected), (teacher_with_habits, with_habits)):
        error = math.sqrt(share * (1 - share) / len(tasks))
        assert success(ROUNDS, tasks, agent) == pytest.approx(share, abs=3 * error)


def test_a_habit_is_the_teachers_most_frequent_call_and_wrong_but_harmless() -> None:
    house, who = make_house(0), Demonstrator(0, random.Random(1), has_habits=True)
    effects: Counter[str] = Counter()

    async def play() -> None:
        for parcel in PARCELS:
            seen = Observation(messages=(Message(role="tool", content=describe_parcel(parcel)),), tools=())
            taken = Counter([(await who.act(seen)).tool_calls[0].name for _ in range(60)])
            effects[house.effects[parcel][taken.most_common(1)[0][0]]] += 1

    asyncio.run(play())
    assert effects["right"] == pytest.approx(0.6 * len(PARCELS), abs=0.1 * len(PARCELS))
    assert effects["spoil"] + effects["end"] == 0


def test_the_looking_oracle_always_wins_and_looks_at_most_parcels() -> None:
    needless, parcels = 0.0, 0
    for task in make_tasks(LOOKS, "train", levels=[1, 2], count=100):
        world, record = play(LOOKS, task, looking_oracle(task, 0))
        graded = grade_looks(task, record, {"end": state_of(world)}.__getitem__)
        assert graded.value == 1.0
        needless += graded.components["needless_looks"] + graded.components["needed_looks"]
        parcels += len(task.initial_state["parcels"])
    assert needless / parcels == pytest.approx(0.85, abs=0.04)


# ------------------------------------------------------------------------------------------------------------ graders


def test_a_look_is_needed_once_at_each_sealed_parcel() -> None:
    task = next(task for task in make_tasks(LOOKS, "train", count=50) if gold(task).count("look") >= 2)
    calls = [tool for name in gold(task) for tool in ([name] if name == "look" else ["look", name])]
    assert calls.count("look") > gold(task).count("look")
    world, record = play(LOOKS, task, Scripted(calls))
    looks = gold(task).count("look")
    assert grade_looks(task, record, {"end": state_of(world)}.__getitem__).components == {
        "parcels": 1.0,
        "needed_looks": looks,
        "needless_looks": calls.count("look") - looks,
        "sealed": looks,
    }


def test_a_round_is_good_if_all_is_done_and_nothing_is_spoiled() -> None:
    (task,) = make_tasks(ROUNDS, "seeds", levels=[1], count=1)
    record = Trajectory(id="e", env="rounds", task=task.id, final_state="end")
    fresh = state_of(Rounds(**task.initial_state))

    def grade_changed(**changes: Any) -> tuple[float, float]:
        verdict = grade_round(task, record, {"end": {**fresh, **changes}}.__getitem__)
        return verdict.value, verdict.components["parcels"]

    assert grade_changed() == (0.0, 0.0)
    assert grade_changed(at=4) == (1.0, 1.0)
    assert grade_changed(at=4, spoiled=True) == (0.0, 1.0)
    assert grade_changed(at=1, over=True) == (0.0, 0.25)
    broken: tuple[Any, ...] = (None, [], {"at": 4})
    for state in broken:
        with pytest.raises(GraderError, match="no final state of a round"):
            grade_round(task, record, {"end": state}.__getitem__)
