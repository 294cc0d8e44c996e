"""Requests that a host answers without an episode: who may ask, what is refused, and with which words."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from gymcp.agents.endpoint.http_server import MAX_BODY_BYTES
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import load_env
from gymcp.errors import ConfigError
from gymcp.host import wire
from gymcp.host.app import is_loopback, make_app
from gymcp.host.conversation import Conversation
from gymcp.host.host import Host, HostLimits
from gymcp.host.mcp_app import McpApp
from gymcp.host.openapi import OPENAPI_PATH
from gymcp.host.runs import Runs, RunSettings, ServedEnvironment
from gymcp.host.serve import Place, check_place
from gymcp.host.tokens import MIN_TOKEN_CHARS, read_service_token
from gymcp.host.trials import Trials
from gymcp.outcome import Outcome
from gymcp.types import Action, Observation

BANK = load_spec(str(Path(__file__).parents[2] / "examples" / "bank.py"))
SERVED = ServedEnvironment(spec=BANK, source="bank", env=load_env(BANK))
TOKEN = "t" * MIN_TOKEN_CHARS
START = {"environment": "bank", "task": "pay_back_5"}
NO_SANDBOX: Any = None


def ask(
    out: Path, method: str, path: str, *, token: str | None = None, address: str = "localhost", **request: Any
) -> httpx.Response:
    """The answer of a host that never comes to an episode."""
    runs = Runs([SERVED], RunSettings(out=out, sandbox=NO_SANDBOX))
    host = Host(runs, NO_SANDBOX, HostLimits())
    transport = httpx.ASGITransport(app=cast(Any, make_app(host, McpApp(host), token)))

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{address}:8765", timeout=60) as client:
            return await client.request(method, path, **request)

    return asyncio.run(send())


def test_environments_and_tasks_are_listed_by_page(tmp_path: Path) -> None:
    (environment,) = ask(tmp_path, "GET", "/v1/environments").json()["environments"]
    assert (environment["name"], environment["tasks"], environment["splits"]) == ("bank", 3, {"test": 3})
    page = ask(tmp_path, "GET", "/v1/environments/bank/tasks?split=test&offset=1&limit=1").json()
    assert page == {"total": 3, "tasks": [{"id": "pay_back_30", "split": "test", "tags": [], "user_turns": 1}]}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "/v1/episodes", {**START, "environment": "bnk"}, 404, "no environment 'bnk' here; have bank"),
        ("POST", "/v1/episodes", {**START, "task": "pay"}, 404, "'bank': no task 'pay'; the ids look like pay_back_5"),
        ("POST", "/v1/episodes", {"environment": "bank"}, 400, "either 'task', the id of a task of the suite, or"),
        ("POST", "/v1/episodes", {**START, "generate": {}}, 400, "either 'task', the id of a task of the suite, or"),
        ("POST", "/v1/episodes", {"environment": "bank", "generate": {}}, 404, "'bank': makes no tasks, or none with"),
        (
            "POST",
            "/v1/episodes",
            {"environment": "bank", "generate": {"level": 1}},
            400,
            "'generate.level' is no field",
        ),
        ("POST", "/v1/episodes", {**START, "seed": "x"}, 400, "'seed' must be a valid integer"),
        ("POST", "/v1/episodes", {**START, "seed": 1.5}, 400, "'seed' must be a valid integer"),
        ("POST", "/v1/episodes", {"task": "pay_back_5"}, 400, "'environment' is missing"),
        ("POST", "/v1/episodes", {**START, "sed": 1}, 400, "'sed' is no field of this request"),
        ("POST", "/v1/episodes", [1], 400, "the body: must be an object"),
        ("POST", "/v1/episodes", {**START, "agent": "a\nb"}, 400, "'agent' must be a name of 1 to 100 printable"),
        ("POST", "/v1/episodes", {**START, "wrappers": {"stress": ["x"]}}, 400, "wrappers: no stressor 'x'; have"),
        ("POST", "/v1/episodes", {**START, "wrappers": {"attack": "x"}}, 400, "wrappers: no attack 'x'; have"),
        ("POST", "/v1/episodes", {**START, "wrappers": {"tool_budget": 9}}, 400, "say how many with --retrieve"),
        (
            "POST",
            "/v1/episodes",
            {**START, "wrappers": {"privileges": {"rules": []}}},
            400,
            "wrappers: privileges 'of the request'",
        ),
        ("GET", "/v1/environments/bank/tasks?split=train", None, 404, "'bank': no split 'train'; have test"),
        ("GET", "/v1/environments/bank/tasks?limit=-1", None, 400, "'limit' must be a whole number from 0, not '-1'"),
        ("GET", "/v1/episodes/x", None, 404, "no episode 'x' here"),
        ("POST", "/v1/episodes/x/say", {"text": "a"}, 404, "no episode 'x' here"),
        ("GET", "/v1/episode", None, 404, "no GET /v1/episode here; have GET /v1/health"),
        ("PUT", "/v1/episodes", {}, 405, "no PUT /v1/episodes here"),
        ("POST", "/mcp", {}, 401, "no token"),
    ],
)
def test_a_request_that_is_wrong_is_one_error_that_leaves_nothing(
    tmp_path: Path, method: str, path: str, body: Any, status: int, words: str
) -> None:
    answer = ask(tmp_path, method, path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, words in error["message"]) == (status, True), answer.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "body",
    [b"{", b"\xff", b"[" * 100_000, b'{"environment": "\\ud800", "task": "a"}'],
    ids=["broken off", "not UTF-8", "deep", "half a character"],
)
def test_a_body_without_valid_json_is_one_error(tmp_path: Path, body: bytes) -> None:
    answer = ask(tmp_path, "POST", "/v1/episodes", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("the body: invalid JSON")


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path, announced: bool) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while read < 100_000_000:
            read += 1_000_000
            yield b" " * 1_000_000

    headers = {"content-length": "100000000"} if announced else {}
    answer = ask(tmp_path, "POST", "/v1/episodes", content=endless(), headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    assert answer.headers["connection"] == "close"
    assert read <= (0 if announced else MAX_BODY_BYTES + 1_000_000)


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ({}, 401, "no token: send the header 'Authorization: Bearer TOKEN' with the host's token (GYMCP_HOST_TOKEN)"),
        ({"authorization": "Bearer wrong"}, 401, "neither this host's nor that of one of its episodes"),
        ({"authorization": "Basic " + TOKEN}, 401, "no token"),
        ({"authorization": "Bearer " + TOKEN}, 200, ""),
        ({"x-api-key": TOKEN}, 200, ""),
    ],
)
def test_a_host_with_a_token_asks_for_it(tmp_path: Path, headers: dict[str, str], status: int, words: str) -> None:
    answer = ask(tmp_path, "GET", "/v1/environments", token=TOKEN, headers=headers, address="example.org")
    assert (answer.status_code, words in answer.text) == (status, True), answer.text
    for path in ("/v1/health", OPENAPI_PATH):
        assert ask(tmp_path, "GET", path, token=TOKEN, address="example.org").status_code == 200


def test_a_host_without_a_token_serves_no_page_of_a_browser(tmp_path: Path) -> None:
    """A page elsewhere reaches the loopback by its own name after DNS rebinding, or by sending a form."""
    for name in ("evil.example", "127.0.0.1.evil.example", "192.0.2.1"):
        assert ask(tmp_path, "GET", "/v1/environments", address=name).status_code == 403
    origin = {"origin": "http://evil.example"}
    assert ask(tmp_path, "POST", "/v1/episodes", json=START, headers=origin).status_code == 403
    assert ask(tmp_path, "GET", "/v1/environments", headers={"authorization": "Bearer forged"}).status_code == 401


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_addresses_that_others_reach_need_a_token(tmp_path: Path, address: str) -> None:
    assert is_loopback(address)
    name = f"[{address}]" if ":" in address else address
    assert ask(tmp_path, "GET", "/v1/environments", address=name).status_code == 200
    check_place(Place(address=address))
    for other in ("0.0.0.0", "::", "192.0.2.1", "box.example"):
        check_place(Place(address=other, token=TOKEN))
        with pytest.raises(ConfigError, match="others can reach it, so clients need a token"):
            check_place(Place(address=other))


def test_the_token_comes_from_the_file_before_the_variable(tmp_path: Path) -> None:
    file = tmp_path / "token.txt"
    file.write_text(f"{TOKEN}\n")
    assert read_service_token(file, "x" * MIN_TOKEN_CHARS) == TOKEN
    assert (read_service_token(None, TOKEN), read_service_token(None, None)) == (TOKEN, None)
    for text, words in (("short", "holds a token of 5 characters"), ("a b" * 9, "characters that no header can carry")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=words) as caught:
            read_service_token(file, None)
        assert text not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_service_token(tmp_path / "none", None)


def test_a_call_whose_client_has_gone_is_still_made() -> None:
    async def main() -> None:
        conversation = Conversation()
        calling = asyncio.create_task(conversation.exchange.call_tool("pay", {"amount": 5}))
        waiting = asyncio.create_task(conversation.act(Observation(messages=(), tools=())))
        assert await conversation.opened == ()
        calling.cancel()
        action = await waiting
        assert isinstance(action, Action)
        assert [(call.name, call.arguments) for call in action.tool_calls] == [("pay", {"amount": 5})]

    asyncio.run(main())


def test_names_that_are_joined_alike_have_runs_of_their_own(tmp_path: Path) -> None:
    served = [SERVED, replace(SERVED, spec=(spec := replace(BANK, name="bank-v2")), env=load_env(spec))]
    sandbox: Any = SimpleNamespace(name="bwrap", runs_images=False)
    pairs = (("bank", "v2-x"), ("bank-v2", "x"), ("bank", "x"))

    async def open_all(order: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        runs = Runs(served, RunSettings(out=tmp_path, sandbox=sandbox, resume=True))
        starts = [wire.StartEpisode(environment=name, task="pay_back_5", agent=agent) for name, agent in order]
        found = [await runs.find_run(start) for start in starts]
        assert [each is await runs.find_run(start) for each, start in zip(found, starts, strict=True)] == [True] * 3
        runs.close()
        return {pair: run.folder.name for pair, run in zip(order, found, strict=True)}

    names = asyncio.run(open_all(pairs))
    assert (names[pairs[0]], names[pairs[2]]) == ("bank-v2-x", "bank-x")
    assert re.fullmatch("bank-v2-x-[0-9a-f]{8}", names[pairs[1]])
    assert asyncio.run(open_all(pairs[::-1])) == names  # whichever comes first in the resumed host


def test_a_lost_episode_gives_its_trial_to_the_next() -> None:
    trials = Trials({("a", 0): [Outcome.SCORED], ("a", 1): [Outcome.ENV_INFRA, Outcome.CANCELLED]})
    assert [trials.take("a"), trials.take("a"), trials.take("b")] == [1, 2, 0]
    trials.put_back("a", 1)
    assert [trials.take("a"), trials.take("a")] == [1, 3]
