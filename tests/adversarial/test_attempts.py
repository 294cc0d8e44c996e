"""Every attempt fails on every start path, is reported as what it is, and works if nothing confines it.

Attempts that the harness judges alike on all paths (`start_paths.JUDGED_ALIKE`) are made on two of them, as root and as
an ordinary user, and in containers; `make nightly` makes every attempt on every path (`benchmarks/full_tests.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import inside_files
import inside_kernel
import inside_mounts
import inside_network
import inside_processes
import pytest
from expected import GREED, LIES, LISTS, REPLIES, WORLDS
from inside import ATTEMPTS
from naive import NOT_FOOLED
from start_paths import JUDGED_ALIKE, NEW_WIRE_SAMPLE, START_PATHS

from gymcp.mcp_servers.transports.direct_requests import FIRST_ID

PLAYED = (inside_files, inside_mounts, inside_kernel, inside_network, inside_processes)
"""Imported for their entries in the table."""
Played = Callable[[str, str], dict[str, Any]]
USERS = ("root", "user")
OWN_SESSION = {**{name: greed.reported for name, greed in GREED.items()}, **REPLIES, **LISTS, **LIES, **WORLDS}


def make_param(path: str, user: str) -> Any:
    """Parameters of a test that reads what was said there; with xdist one process plays it and reads it."""
    group = f"played-{START_PATHS[path].sandbox}-{user}"
    return pytest.param(path, user, marks=pytest.mark.xdist_group(group))


everywhere = pytest.mark.parametrize(
    ("path", "user"), [make_param(path, user) for path in START_PATHS for user in USERS]
)
unconfined = pytest.mark.xdist_group("played-none")


def test_there_are_many_attempts_and_no_name_is_taken_twice() -> None:
    assert len(ATTEMPTS) >= 40
    assert not ATTEMPTS.keys() & OWN_SESSION.keys()
    assert len(OWN_SESSION) == len(GREED) + len(REPLIES) + len(LISTS) + len(LIES) + len(WORLDS)
    assert {what.control for what in ATTEMPTS.values()} == {"any", "root"}


def test_every_attempt_is_made_as_root_as_a_user_and_in_containers() -> None:
    for path, user in (("exec", "root"), ("exec", "user"), ("docker", "user")):
        assert {name for name in OWN_SESSION if not START_PATHS[path].plays(name, user)} == set()
    assert {*REPLIES, *LISTS} > JUDGED_ALIKE


def test_the_documentation_lists_every_attempt() -> None:
    groups: dict[str, list[str]] = {}
    for what in ATTEMPTS.values():
        groups.setdefault(what.group, []).append(what.name)
    groups |= {"resources": [*GREED], "protocol": [*REPLIES, *LISTS, *LIES], "digester": [*WORLDS]}
    wanted = "\n".join(f"- {group}: {', '.join(names).replace('_', ' ')}" for group, names in sorted(groups.items()))
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    assert wanted in text, wanted


def test_every_attempt_stands_in_a_row_of_the_boundaries() -> None:
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    rows = text.partition("## Boundaries")[2].partition("\n## ")[0].splitlines()
    cells = [row.split("|")[3] for row in rows if row.startswith("|")]
    named = {re.sub(r"\(.*?\)", "", name).strip() for cell in cells for name in re.split(r",(?![^(]*\))", cell)}
    assert {name.replace("_", " ") for name in (*ATTEMPTS, *OWN_SESSION)} - named == set()


def test_rows_name_tests_that_exist() -> None:
    """A test file is named with one of its tests, since a file can exist and be about something else."""
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    sections = [text.partition(f"## {title}")[2].partition("\n## ")[0] for title in ("Boundaries", "Attacks that")]
    named = re.findall(r"`([\w./]*(?:\.py|tests/\w+/))(?:::(\w+))?`", "\n".join(sections))
    assert len(named) > 60
    assert [name for name in named if not _is_in_a_test_file(*name)] == []


def _is_in_a_test_file(file: str, test: str) -> bool:
    root = Path(__file__).parents[2]
    files = [root / file] if "/" in file else list((root / "tests").rglob(file))
    if len(files) != 1 or not files[0].exists():
        return False
    if not files[0].name.startswith("test_"):
        return not test
    return f"def {test}(" in files[0].read_text(encoding="utf-8") if test else False


@everywhere
def test_attempts_fail(path: str, user: str, played: Played, subtests: pytest.Subtests) -> None:
    attempts = played(path, user)["attempts"]
    for name in ATTEMPTS:
        with subtests.test(name):
            achieved, said = attempts[name]
            assert achieved is False, f"{name} on {path} as {user}: {achieved}: {said}"


@everywhere
def test_attempts_are_reported(path: str, user: str, played: Played, subtests: pytest.Subtests) -> None:
    attempts = played(path, user)["attempts"]
    for name, wanted in OWN_SESSION.items():
        with subtests.test(name):
            if name not in attempts:
                assert not START_PATHS[path].plays(name, user)
                continue
            _, said = attempts[name]
            assert re.search(wanted, said, re.DOTALL), f"{name} on {path} as {user}: {said}"
            assert "forged" not in said
            assert "\x1b" not in said


@pytest.mark.parametrize(
    ("path", "user"),
    [make_param(path, user) for path in START_PATHS if START_PATHS[path].has_new_wire for user in USERS],
)
def test_attempts_on_the_new_wire_are_reported(path: str, user: str, played: Played, subtests: pytest.Subtests) -> None:
    """Past the SDK's client, the same is said of the same answers."""
    found = played(path, user)
    assert int(found["number_on_new_wire"].removeprefix("result: ")) >= FIRST_ID  # else it went through the client
    attempts = found["on_new_wire"]
    assert attempts.keys() >= NEW_WIRE_SAMPLE
    for name, (_, said) in attempts.items():
        with subtests.test(name):
            assert re.search(OWN_SESSION[name], said, re.DOTALL), f"{name} on {path} as {user}: {said}"
            assert "forged" not in said
            assert "\x1b" not in said


@everywhere
def test_servers_start_as_the_path_says(path: str, user: str, played: Played) -> None:
    """Else an attempt would be made on another path than it is reported of."""
    found = played(path, user)
    assert found["refused"] == []
    assert (found["templates"] > 0) is (START_PATHS[path].start != "exec")


@everywhere
def test_other_episodes_go_on(path: str, user: str, played: Played) -> None:
    assert played(path, user)["honest_answers"] >= 10


@unconfined
@pytest.mark.parametrize("user", USERS)
def test_controls_work(user: str, played: Played, subtests: pytest.Subtests) -> None:
    """Unconfined the same attempts succeed: as an ordinary user if the kernel lets one at all."""
    attempts = played("none", user)["attempts"]
    for name in ATTEMPTS:
        if user != "root" and ATTEMPTS[name].control != "any":
            continue
        with subtests.test(name):
            achieved, said = attempts[name]
            if achieved is not True and (why := _impossible_here(name, said)) is not None:
                pytest.skip(why)
            assert achieved is True, f"{name} as {user}: {achieved}: {said}"


@unconfined
def test_controls_of_the_reports(played: Played, subtests: pytest.Subtests) -> None:
    """Without a sandbox an ordinary user's server uses up resources, and fools a harness that believes it."""
    attempts = played("none", "user")["attempts"]
    for name in OWN_SESSION:
        with subtests.test(name):
            kind, said = attempts[name]
            assert kind == "control"
            if name in GREED:
                assert said.endswith(GREED[name].gets) or f"{GREED[name].gets};" in said, said
            else:
                assert said != NOT_FOOLED


@unconfined
def test_every_attempt_has_a_control_on_record(played: Played, record_property: Any) -> None:
    found: dict[str, Any] = {}
    for user in ("user", "root"):
        found |= played("none", user)["attempts"]
    on_record = {name for name in (*ATTEMPTS, *OWN_SESSION) if found[name][0] in (True, "control")}
    left = {*ATTEMPTS, *OWN_SESSION} - on_record
    assert {name for name in left if _impossible_here(name, found[name][1]) is None} == set()
    record_property("adversarial attempts, each with a control that worked", len(on_record))


def _impossible_here(name: str, said: str) -> str | None:
    """Reason why nobody can do this on this machine, unconfined or not; None if somebody can."""
    if "Function not implemented" in said:
        return f"{name}: this kernel has it for nobody: {said}"
    if name == "run_a_set_id_program" and os.getuid() != 0:
        return f"{name}: only root can make a program that runs as root for all"
    return None
