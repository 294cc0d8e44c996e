"""The shelf of servers: its descriptions, its tasks, and episodes with all native services attached."""

from __future__ import annotations

import asyncio
import base64
import io
import re
import zipfile
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from session_calls import call

from gymcp.agents.runner.rollout import Job, rollout
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.envs.episodes.episode import open_episode
from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.envs.suites.toolshelf import grade, make_suite, make_tasks, server_names, shelf_servers
from gymcp.envs.suites.toolshelf.servers import LOCK, THIRD_PARTY
from gymcp.envs.suites.toolshelf.wordings import wordings
from gymcp.errors import ConfigError
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.native.runtime import ToolError, check_schema
from gymcp.mcp_servers.packages.lockfile import read_lock
from gymcp.mcp_servers.programs.shelf.descriptions import read_services
from gymcp.mcp_servers.programs.shelf.server import Shelf, services
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.types import Action, Task, ToolCall

TASKS = tuple(make_tasks("test", count=2))
NATIVE = ("one", "several", "carry", "choose")
"""Families whose tasks need no third-party server."""


def native_env(task: Task) -> LoadedEnv:
    """An environment of the task with the native services alone."""
    suite = replace(make_suite(), tasks=(task,))
    servers = shelf_servers(tuple(services()))
    return load_env(EnvSpec(name="natives", servers=servers, suite=suite, grade=grade, lazy=True))


def test_there_are_70_servers_with_500_tools_100_of_them_of_third_parties() -> None:
    lock = read_lock(LOCK)
    third_party = sum(len(lock[name].tools) for name in THIRD_PARTY)
    assert len(server_names()) == len(set(server_names())) == 70
    assert third_party >= 100
    assert third_party + sum(len(service.operations) for service in services().values()) >= 500


def test_every_tool_of_ours_has_a_name_of_its_own_a_description_and_described_parameters() -> None:
    tools = [(service, tool) for service in services().values() for tool in service.operations.values()]
    assert max(Counter(tool.name for _, tool in tools).values()) == 1
    assert max(Counter(service.description(tool) for service, tool in tools).values()) == 1
    for service, tool in tools:
        schema = service.schema(tool)
        check_schema(schema)
        assert all(part["description"] for part in schema["properties"].values()), tool.name


def test_no_request_names_a_tool() -> None:
    for task in make_suite().tasks:
        said = task.prompts[0].casefold()
        named = [c.name for c in task.gold[0].calls if c.name in said or c.name.replace("_", " ") in said]
        assert not named, task.id


def test_every_service_can_be_asked_for_something_that_it_has() -> None:
    assert wordings().keys() == services().keys()
    for name, wording in wordings().items():
        assert wording.requests.keys() <= services()[name].operations.keys()
        assert wording.nouns.keys() <= services()[name].fields.keys()
        assert len(wording.requests) >= 2, name


def test_the_same_arguments_make_the_same_tasks_and_splits_share_none() -> None:
    assert tuple(make_tasks("test", count=2)) == TASKS
    train = {task.prompts for task in make_tasks("train", count=2)}
    assert not train & {task.prompts for task in TASKS}
    with pytest.raises(ConfigError, match="no family 'gossip'; have one, several"):
        tuple(make_tasks("test", families=["gossip"]))
    with pytest.raises(ConfigError, match="no split 'dev'; have test, train"):
        tuple(make_tasks("dev"))


def test_an_unknown_server_is_named_and_the_known_ones_are_listed() -> None:
    with pytest.raises(ConfigError, match=r"no server 'romos'; have filesystem, git, .*rooms, visitors"):
        shelf_servers(["rooms", "romos"])


def test_a_service_refuses_what_its_records_do_not_allow() -> None:
    shelf = Shelf(services()["library"], seed=0)
    free = next(row for row in shelf.rows.values() if row["state"] == "available")
    with pytest.raises(ToolError, match="it is available; that needs on_loan"):
        shelf.call("take_book_back", {"book_id": free["id"]})
    with pytest.raises(ToolError, match="no book with the id BO-99"):
        shelf.call("get_book", {"book_id": "BO-99"})
    with pytest.raises(ToolError, match=r"there is a book .* already"):
        shelf.call("acquire_book", {"title": free["title"], "author": "Ada Holm", "shelf": "SHE-1"})
    assert shelf.changes == {}
    shelf.call("lend_book", {"book_id": free["id"], "reader": "Ada Holm", "due": "2026-05-01"})
    assert shelf.changes[free["id"]] == {**free, "state": "on_loan", "reader": "Ada Holm", "due": "2026-05-01"}
    pantry = Shelf(services()["pantry"], seed=0)
    food = next(iter(pantry.rows.values()))
    with pytest.raises(ToolError, match="which is too little"):
        pantry.call("eat_food", {"food_id": food["id"], "amount": food["portions"] + 1})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("rooms", "'rooms' comes before any service"),
        ("service a | b\nrecord x XX name", "service a: needs a record, fields"),
        ("service a | b\nname mix(x) | y\nset_it set nme | z", "set_it: there is no nme"),
        ("service a | b\nname mixed | y", "'name mixed | y' is neither a field nor a tool"),
    ],
)
def test_a_description_that_is_wrong_says_where(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_services(text)


def test_gold_solves_what_null_and_mutated_do_not() -> None:
    tasks = [next(task for task in TASKS if task.tags[0] == family) for family in NATIVE]
    wanted = {"oracle": 1.0, "null": 0.0, "mutated": 0.0}

    async def scores() -> dict[tuple[str, str], float | None]:
        found = {}
        async with open_warm_sandbox(get_sandbox("bwrap")) as warm:
            for task in tasks:
                env = native_env(task)
                for agent in wanted:
                    job = Job(task=task, trial=0, seed=1)
                    played = await rollout(env, warm, SCRIPTED[agent], job, timeout_s=120)
                    found[task.id, agent] = played.trajectory.score
        return found

    assert asyncio.run(scores()) == {(task.id, agent): score for task in tasks for agent, score in wanted.items()}


def test_a_change_that_was_not_asked_for_fails() -> None:
    """The agent plays the gold, and changes one record more in another service."""
    task = next(task for task in TASKS if task.tags[0] == "one")
    other = "lights" if "lights" not in (task.initial_state or {}) else "plants"
    tool, row = ("dim_lamp", "LA-01") if other == "lights" else ("set_water_amount", "PT-01")
    value = {"brightness": 101} if other == "lights" else {"water_ml": 1}
    extra = ToolCall(id="extra", name=tool, arguments={f"{services()[other].record}_id": row, **value})

    async def play() -> tuple[float | None, str]:
        async with open_episode(native_env(task), get_sandbox("bwrap"), task, seed=1) as episode:
            await episode.step(Action(tool_calls=(*task.gold[0].calls, extra)))
            await episode.step(Action(text="Done."))
            assert episode.trajectory is not None
            return episode.trajectory.score, episode.trajectory.reason

    score, reason = asyncio.run(play())
    assert (score, other in reason) == (0.0, True)


@pytest.mark.parametrize(
    ("server", "tool", "arguments"),
    [
        ("word", "create_document", {"filename": "note.docx", "title": "Note"}),
        ("excel", "create_workbook", {"path": "/workspace/note.xlsx"}),
    ],
)
def test_a_document_is_recorded_without_the_time_at_which_it_was_written(
    server: str, tool: str, arguments: dict[str, Any]
) -> None:
    """So two equal plays end in equal worlds, however far apart they are."""
    (spec,) = load_env(
        EnvSpec(name="one", servers=shelf_servers((server,)), suite=make_suite(), grade=grade, lazy=True)
    ).servers

    async def play() -> bytes:
        async with open_session(spec, get_sandbox("bwrap"), initial_state=None, seed=1) as session:
            assert not (await call(session, tool, **arguments)).is_error
            await session.update()
            (file,) = (await session.state())[1]["files"].values()
            return base64.b64decode(file["base64"])

    with zipfile.ZipFile(io.BytesIO(asyncio.run(play()))) as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        properties = archive.read("docProps/core.xml")
    assert re.findall(rb"<dcterms:\w+[^<>]*>([^<]*)</", properties) == [b"", b""]
