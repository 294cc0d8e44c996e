"""Cassettes instead of remote servers: recorded once, replayed without a server."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from remote_servers import TOKEN, ByHand, sdk_serving
from remote_sessions import NOWHERE, TIMEOUT_S, answers_of, inside, stateless
from session_calls import call, nothing

from gymcp.errors import CassetteMiss, ConfigError, EnvInfraError, IntegrityError
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.transports.cassette import cassette_sha256, read_cassette


@pytest.mark.parametrize("wire", ["auto", "2026-07-28"])
def test_a_cassette_is_replayed_in_order_and_no_server_is_called(wire: Any, tmp_path: Path) -> None:
    """The server counts the calls of all clients, so two live episodes could not have the same answers."""
    spec = ServerSpec(name="far", url=NOWHERE, cassette=tmp_path / "far.jsonl", wire=wire)
    with sdk_serving() as url:
        live = replace(spec, url=url, recording=True)
        assert answers_of(live, "a", "a", "b", task="first") == ["a 1", "a 2", "b 3"]
        assert answers_of(live, "a", task="second") == ["a 4"]
    for _ in range(2):
        assert answers_of(spec, "b", "a", "a", task="first") == ["b 3", "a 1", "a 2"]
        assert answers_of(spec, "a", task="second") == ["a 4"]
    assert read_cassette(tmp_path / "far.jsonl").server_info["name"] == "counter"


@pytest.mark.parametrize(
    ("words", "task", "said"),
    [
        (("a", "c"), "first", '{"word": "c"} in task \'first\' is not on cassette'),
        (("a", "a"), "first", "asked 2 times and recorded 1; record it with: gymcp eval ENV --cassette record"),
        (("a",), "other", '{"word": "a"} in task \'other\' is not on cassette'),
    ],
)
def test_a_call_that_was_not_recorded_is_a_miss(words: tuple[str, ...], task: str, said: str, tmp_path: Path) -> None:
    spec = ServerSpec(name="far", url=NOWHERE, cassette=tmp_path / "far.jsonl")
    with sdk_serving() as url:
        answers_of(replace(spec, url=url, recording=True), "a", task="first")
    with pytest.raises(CassetteMiss) as caught:
        answers_of(spec, *words, task=task)
    assert str(caught.value).startswith("server 'far': tool 'count': ")
    assert said in str(caught.value)


def test_one_answer_of_a_stateless_server_serves_every_task_every_time(tmp_path: Path) -> None:
    spec = stateless(NOWHERE, cassette=tmp_path / "far.jsonl")
    server = ByHand(lambda tool, arguments: str(len(server.calls)))
    with server.serving() as url:

        async def work(session: ToolSession) -> None:
            assert [(await call(session, "add", b=1, a=2)).content for _ in range(2)] == ["1", "2"]

        inside(replace(spec, url=url, recording=True), work)

    async def again(session: ToolSession) -> None:
        assert [(await call(session, "add", a=2, b=1)).content for _ in range(3)] == ["1"] * 3
        with pytest.raises(CassetteMiss, match=r'tool \'add\': {"a": 3} is not on cassette'):
            await call(session, "add", a=3)

    inside(spec, again, task="another")


def test_errors_of_tools_are_replayed_and_lost_calls_are_not_recorded(tmp_path: Path) -> None:
    def answer(tool: str, arguments: dict[str, Any]) -> Any:
        if "lost" in arguments:
            return 503, "text/plain", b""
        error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": "no such city"}}
        return 400, "application/json", json.dumps(error).encode()

    spec = ServerSpec(name="far", url=NOWHERE, cassette=tmp_path / "far.jsonl")
    server = ByHand(answer)

    async def work(session: ToolSession) -> None:
        wrong = await call(session, "add", city="?")
        assert (wrong.is_error, wrong.content) == (True, "no such city")
        with pytest.raises(EnvInfraError):
            await call(session, "add", lost=True)

    with server.serving() as url:
        inside(replace(spec, url=url, recording=True), work)
    inside(spec, work)
    assert len(read_cassette(tmp_path / "far.jsonl").answers) == 1


def test_a_cassette_is_readable_and_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "far.jsonl"
    monkeypatch.setenv("GYMCP_TEST_TOKEN", TOKEN)
    monkeypatch.setenv("GYMCP_TEST_REGION", "a")  # no secret: it stays where it occurs by chance
    with sdk_serving() as url:
        headers = {"Authorization": "Bearer ${GYMCP_TEST_TOKEN}", "Region": "${GYMCP_TEST_REGION}"}
        spec = stateless(url, headers=headers, cassette=path, recording=True)

        async def work(session: ToolSession) -> None:
            assert (await call(session, "whoami")).content == "Bearer ${GYMCP_TEST_TOKEN}"

        inside(spec, work)
    assert TOKEN not in path.read_text()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert (rows[0]["cassette"], rows[0]["server"], rows[0]["url"]) == (1, "far", url)
    assert [row["tool"]["name"] for row in rows[1:3]] == ["count", "whoami"]
    assert (rows[3]["call"], rows[3]["arguments"]) == ("whoami", {})
    assert rows[3]["result"]["content"] == [{"type": "text", "text": "Bearer ${GYMCP_TEST_TOKEN}"}]
    assert len(rows) == 4
    before = cassette_sha256(path)
    with sdk_serving() as url:
        inside(replace(spec, url=url), work)
    assert [json.loads(line) for line in path.read_text().splitlines()][1:] == rows[1:]
    assert cassette_sha256(path) == before or url != rows[0]["url"]


def test_many_episodes_record_on_one_cassette_without_mixing(tmp_path: Path) -> None:
    path = tmp_path / "far.jsonl"

    async def main(url: str) -> None:
        async def one(number: int) -> None:
            spec = ServerSpec(name="far", url=url, cassette=path, recording=True)
            opened = open_session(spec, get_sandbox("none"), initial_state=None, seed=0, task=str(number))
            async with asyncio.timeout(TIMEOUT_S), opened as session:
                await call(session, "add", number=number)
                await call(session, "add", number=number)

        await asyncio.gather(*(one(number) for number in range(8)))

    with ByHand(lambda tool, arguments: str(arguments["number"])).serving() as url:
        asyncio.run(main(url))
    answers = read_cassette(path).answers
    assert sorted(key[0] or "" for key in answers) == [str(number) for number in range(8)]
    assert {len(found) for found in answers.values()} == {2}
    assert [entry.name for entry in tmp_path.iterdir()] == ["far.jsonl"]


def test_a_second_recording_adds_new_answers_and_reports_differing_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = ServerSpec(name="far", url=NOWHERE, cassette=tmp_path / "far.jsonl")
    with sdk_serving() as url:
        live = replace(spec, url=url, recording=True)
        assert answers_of(live, "a") == ["a 1"]
        with caplog.at_level(logging.WARNING):
            assert answers_of(live, "a", "b") == ["a 2", "b 3"]
    assert "server 'far': answered 1 calls in other words than on cassette" in caplog.text
    assert answers_of(spec, "a", "b") == ["a 1", "b 3"]


def test_tools_that_differ_from_the_cassette_are_refused(tmp_path: Path) -> None:
    server = ByHand(lambda tool, arguments: "3")
    spec = ServerSpec(name="far", url=NOWHERE, cassette=tmp_path / "far.jsonl", recording=True)
    with server.serving() as url:
        live = replace(spec, url=url)
        inside(live, nothing)
        server.tools = ["add", "subtract"]
        with pytest.raises(IntegrityError, match=r"its tools are not those of cassette '.*': subtract; to record"):
            inside(live, nothing)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "not found; record it with: gymcp eval ENV --cassette record"),
        ("", "lists no tools"),
        ("{}\n", "line 1: it has no 'cassette'"),
        ('{"cassette": 2}\n', "line 1: format 2; this gymcp reads format 1"),
        ('{"cassette": 1, "serverInfo": {}}\n{"tool": {}}\nnot json\n', "line 3: Expecting value"),
        ('{"cassette": 1, "serverInfo": {}}\n{"call": "a", "arguments": {}}\n', "line 2: it has no result"),
    ],
)
def test_a_malformed_cassette_is_one_error(text: str | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "far.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        inside(ServerSpec(name="far", url=NOWHERE, cassette=path), nothing)
    assert said in str(caught.value)
