"""ScienceWorld without a simulator: the declared tree of a world, the grader, a missing Java runtime, another wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from gymcp.envs.catalog.scienceworld import ENV
from gymcp.envs.spec import load_env
from gymcp.envs.suites.scienceworld.grader import task_solved
from gymcp.envs.suites.scienceworld.installation import SCIENCEWORLD, install_scienceworld
from gymcp.envs.suites.scienceworld.java import OLDEST_JAVA, find_java
from gymcp.envs.suites.scienceworld.tasks import make_tasks
from gymcp.errors import ConfigError, GraderError, IntegrityError, UsageError
from gymcp.mcp_servers.programs.scienceworld.gateway import _decode, _encode
from gymcp.mcp_servers.programs.scienceworld.world_tree import declare_doors, declare_tree, locate_objects, read_goals
from gymcp.types import Json, Task, Trajectory

PROPERTIES = ("propMaterial", "propContainer", "propDevice", "propLife", "propElectricalConnection")


def thing(number: int, name: str, *contents: Json, **properties: Json) -> Json:
    """A thing as the simulator describes it."""
    return {
        "uuid": str(number),
        "name": name,
        **{key: properties.get(key) for key in PROPERTIES},
        "contents": {f"{each['name']}-{each['uuid']}": each for each in contents},
    }


def end(number: int, name: str, *connected_to: int) -> Json:
    return thing(number, name, propElectricalConnection={"connectedTo": [str(each) for each in connected_to]})


def water(degrees: float, matter: str = "liquid") -> Json:
    return {"stateOfMatter": matter, "temperatureC": degrees, "isCombusting": False, "hasCombusted": False}


def kitchen(*contents: Json, number: int = 1) -> Json:
    return thing(0, "universe", thing(number, "kitchen", *contents))


def test_numbers_and_order_of_objects_are_no_part_of_the_world() -> None:
    cup, pot = thing(2, "tin cup"), thing(3, "metal pot", thing(4, "water", propMaterial=water(20.0)))
    other = [thing(70, "metal pot", thing(71, "water", propMaterial=water(21.5))), thing(72, "tin cup")]
    expected = [
        {
            "name": "kitchen",
            "in": [{"name": "metal pot", "in": [{"name": "water", "matter": "liquid"}]}, {"name": "tin cup"}],
        }
    ]
    assert declare_tree(kitchen(cup, pot), {}) == declare_tree(kitchen(*other, number=69), {}) == expected


@pytest.mark.parametrize(
    "other",
    [
        thing(2, "tin cup"),
        thing(2, "metal pot", thing(3, "water", propMaterial=water(20.0))),
        thing(2, "metal pot", propContainer={"isOpen": True, "isClosable": True}),
        thing(2, "metal pot", propDevice={"isActivable": True, "isActivated": True, "isBroken": False}),
        thing(2, "metal pot", propMaterial=water(96.0, "solid")),
        thing(2, "metal pot", propLife={"isSickly": False, "isDead": True}),
    ],
)
def test_worlds_that_differ_in_a_thing_differ(other: Json) -> None:
    assert declare_tree(kitchen(thing(2, "metal pot")), {}) != declare_tree(kitchen(other), {})


def test_temperatures_are_told_in_steps_of_ten_degrees_outside_rooms() -> None:
    told = [
        declare_tree(kitchen(thing(2, "x", propMaterial=water(degrees))), {})[0]["in"][0] for degrees in (-4, 0, 30)
    ]
    assert [each.get("degrees") for each in told] == [0, None, None]
    told = [declare_tree(kitchen(thing(2, "x", propMaterial=water(degrees))), {})[0]["in"][0] for degrees in (94, 96)]
    assert [each.get("degrees") for each in told] == [90, 100]


def test_a_living_thing_is_called_by_its_stage_of_life() -> None:
    tree, bee = ["living thing", "apple tree", "apple tree in the adult stage"], ["living thing", "bee", "adult bee"]
    referents = {"2": {"referents": tree}, "3": {"referents": bee}}
    assert declare_tree(kitchen(thing(2, "apple tree"), thing(3, "bee 0")), referents)[0]["in"] == [
        {"name": "adult bee"},
        {"name": "apple tree in the adult stage"},
    ]


def test_wires_are_named_by_what_they_are_connected_to() -> None:
    wire = thing(2, "red wire", end(3, "terminal 1", 6), end(4, "terminal 2"))
    battery = thing(5, "battery", end(6, "anode", 3))
    assert declare_tree(kitchen(wire, battery), {})[0]["in"] == [
        {"name": "battery", "wires": ["anode - red wire terminal 1"]},
        {"name": "red wire", "wires": ["terminal 1 - battery anode"]},
    ]


def test_doors_and_goals_are_read() -> None:
    universe = thing(0, "universe", thing(1, "kitchen", thing(3, "sink")), thing(2, "hallway"))
    paths = locate_objects(universe)
    assert declare_doors([("1", "2", True), ("3", "2", False)], paths) == {
        "kitchen - hallway": True,
        "kitchen/sink - hallway": False,
    }
    text = "Completed keys: \n0\ttrue\tGoalA\tfirst\n1\tfalse\tGoalB\tnext\nUnordered\n0\ttrue\tGoalC\tbeside\n"
    assert read_goals(text) == "10|1"


@pytest.mark.parametrize("text", ["", "plain", "two\nlines\r\n", "a\\nb \\ c"])
def test_a_text_survives_the_gateway(text: str) -> None:
    assert _decode(f"!y{_encode(text)}\n") == text
    assert [_encode(each) for each in (True, 3)] == ["btrue", "i3"]


TASK = Task(id="boil-1", prompts=("Boil water.",), target={"score": 100})
PLAYED = Trajectory(id="1", env="scienceworld", task="boil-1", final_state="s")


@pytest.mark.parametrize(
    ("score", "over", "value", "progress"), [(100, True, 1.0, 1.0), (83, False, 0.0, 0.83), (-100, True, 0.0, 0.0)]
)
def test_a_task_is_solved_at_the_full_score_only(score: int, over: bool, value: float, progress: float) -> None:
    graded = task_solved(TASK, PLAYED, lambda _: {"score": score, "over": over})
    assert (graded.value, dict(graded.components)) == (value, {"progress": progress})


@pytest.mark.parametrize("state", [None, "broken", {"rooms": []}])
def test_a_record_without_a_score_is_no_verdict(state: Json) -> None:
    with pytest.raises(GraderError, match="no final state of a world was recorded"):
        task_solved(TASK, PLAYED, lambda _: state)


def test_no_java_is_one_line_that_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path / "home"))
    with pytest.raises(UsageError, match=r"none in PATH; install it: apt-get install default-jre-headless"):
        load_env(ENV)
    assert not (tmp_path / "home").exists(), "nothing was fetched for a machine that cannot use it"


def runtime(home: Path, version: str) -> Path:
    """A folder like a Java runtime's; its launcher."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    (home / "lib" / "modules").touch()
    (home / "lib" / "libjava.so").touch()
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    launcher = home / "bin" / "java"
    launcher.write_text("#!/bin/sh\n")
    launcher.chmod(0o755)
    return launcher


def test_a_runtime_is_found_by_its_launcher_and_an_old_one_is_refused(tmp_path: Path) -> None:
    found = find_java(str(runtime(tmp_path / "new", f"{OLDEST_JAVA}.0.15")))
    assert (found.home, found.version) == (tmp_path / "new", OLDEST_JAVA)
    assert {str(mount.target) for mount in found.mounts()} == {
        *("/srv/java/bin/java", "/srv/java/lib/modules", "/srv/java/lib/libjava.so"),
    }
    with pytest.raises(UsageError, match=f"is version 11, too old: it takes {OLDEST_JAVA} or newer"):
        find_java(str(runtime(tmp_path / "old", "11.0.2")))
    (tmp_path / "new" / "lib" / "modules").unlink()
    with pytest.raises(UsageError, match="is not in the folder of a Java runtime"):
        find_java(str(tmp_path / "new" / "bin" / "java"))


def test_a_wheel_of_another_hash_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path))
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / SCIENCEWORLD.filename).write_bytes(b"another wheel")
    with pytest.raises(IntegrityError, match=f"expected sha256 {SCIENCEWORLD.sha256}, found "):
        install_scienceworld()
    assert [path.name for path in (tmp_path / "wheels").iterdir()] == [SCIENCEWORLD.filename]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"split": "seeds"}, "no split 'seeds'; have train, dev, test"),
        ({"split": "test", "families": ["cook"]}, "no family 'cook'; have power-component, "),
        ({"split": "test", "levels": [1]}, "has no levels; choose families instead"),
    ],
)
def test_tasks_that_do_not_exist_are_refused(asked: dict[str, Json], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_tasks(**asked)
