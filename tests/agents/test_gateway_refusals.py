"""The gateway of programs, asked by clients that are wrong."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openai
import pytest
from free_ports import find_free_port
from gateway_serving import Scripted, Served, post, run

from gymcp.agents.endpoint import http_server
from gymcp.agents.policies.models import ChatModel
from gymcp.agents.programs.exchange import Exchange
from gymcp.agents.programs.gateway import SOCKET_NAME
from gymcp.agents.programs.settings import ProgramSettings
from gymcp.agents.strategies.budgets import Budget
from gymcp.errors import PromptTooLong
from gymcp.mcp_servers.programs import gateway_relay
from gymcp.outcome import Outcome
from gymcp.types import Action, GiveUp

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/chat/completions", b"{", 400, "the body is not JSON"),
        ("/v1/chat/completions", b"\xff", 400, "the body is"),
        ("/v1/chat/completions", b"[" * 100_000, 400, "the body is nested"),
        ("/v1/chat/completions", {}, 400, "'messages' is missing or empty"),
        ("/v1/chat/completions", {**HELLO, "n": 2}, 400, "'n' above 1 is not supported"),
        ("/v1/chat/completions", {"messages": "a"}, 400, "'messages' has the wrong type: str"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [IMAGE]}]}, 400, "'image_url' is not"),
        ("/v1/chat/completions", {"messages": [{"role": "king", "content": "a"}]}, 400, "no role 'king'"),
        ("/v1/chat/completions", {**HELLO, "tools": [{"type": "web_search"}]}, 400, "'web_search' is not supported"),
        ("/v1/chat/completions", {**HELLO, "max_tokens": "9"}, 400, "'max_tokens' has the wrong type"),
        ("/v1/responses", {"input": "a", "previous_response_id": "r"}, 400, "send the whole conversation"),
        ("/v1/responses", {"input": [{"type": "computer_call"}]}, 400, "'computer_call' is not supported"),
        ("/v1/responses", {"input": "a", "tools": [{"type": "web_search"}]}, 400, "'web_search' is not supported"),
        ("/v1/messages", {"messages": []}, 400, "'messages' is missing or empty"),
        ("/v1/messages", {"messages": [{"role": "user", "content": []}]}, 400, "'messages' is missing or empty"),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "'image' is not"),
        ("/v1/messages", {**HELLO, "thread": {"type": "create"}}, 400, '"error_code":"thread_unsupported_request"'),
        ("/v1/embeddings", {}, 404, ""),
    ],
)
def test_a_request_that_is_not_supported_is_one_error(
    tmp_path: Path, path: str, body: Any, status: int, words: str
) -> None:
    async def work(served: Served) -> None:
        answer = await post(served, path, body)
        assert (answer.status_code, words in answer.text) == (status, True), answer.text
        fine = await post(served, "/v1/chat/completions", HELLO)
        assert fine.status_code == 200

    run(tmp_path, Scripted(Action(text="b")), work)


@pytest.mark.parametrize("key", ["-", "x" * 32])
def test_a_key_of_no_live_episode_opens_nothing(tmp_path: Path, key: str) -> None:
    policy = Scripted(Action(text="b"))
    paths = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/models", "/mcp", "/")

    async def work(served: Served) -> None:
        answers = {path: await post(served, path, HELLO, key=key) for path in paths}
        found = {path: (each.status_code, "not that of a live episode" in each.text) for path, each in answers.items()}
        assert found == dict.fromkeys(paths, (401, True))

    run(tmp_path, policy, work)
    assert policy.messages == []


def test_the_key_of_an_ended_episode_opens_nothing(tmp_path: Path) -> None:
    async def work(served: Served) -> None:
        ended = Exchange(ChatModel(name="stub", policy=Scripted()), ProgramSettings(argv=("true",)), seed=2)
        with served.gateway.admit(ended):
            calling = asyncio.create_task(ended.tool_exchange.call_tool("pay", {}))
            await asyncio.sleep(0)
        assert (await post(served, "/v1/chat/completions", HELLO, key=ended.token)).status_code == 401
        message = await calling
        assert (message.is_error, message.content) == (True, "the episode has ended")

    run(tmp_path, Scripted(Action(text="b")), work)


def upload(port: int, head: str, pieces: int, pause: threading.Event) -> tuple[int, str]:
    """(chunks sent, the answer) of a request with chunks of 1 MB, after half a body of which it waits for the event."""
    sent = 0
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(head.encode())
        with contextlib.suppress(ConnectionError):
            for sent in range(1, pieces + 1):
                connection.sendall(b"f4240\r\n" + b" " * 1_000_000 + b"\r\n")
                if sent == 8:
                    assert pause.wait(60)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(65_536):
                answer += piece
    return sent, answer.decode()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/mcp"])
@pytest.mark.parametrize("announced", [True, False])
def test_a_body_of_a_hundred_megabytes_is_refused_before_it_is_read(
    tmp_path: Path, path: str, announced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MAX_DISCARDED_BYTES", 10_000_000)
    length = "Content-Length: 100000000" if announced else "Transfer-Encoding: chunked"
    pause = threading.Event()

    async def work(served: Served) -> None:
        key = f"Authorization: Bearer {served.exchange.token}"
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{key}\r\n{length}\r\n\r\n"
        pieces = 0 if announced else 100
        sending = asyncio.create_task(asyncio.to_thread(upload, served.gateway.port, head, pieces, pause))
        model = ChatModel(name="stub", policy=Scripted(Action(text="b")))
        other = Exchange(model, ProgramSettings(argv=("true",)), seed=2)
        with served.gateway.admit(other):
            assert (await post(served, "/v1/chat/completions", HELLO, key=other.token)).status_code == 200
        pause.set()
        sent, answer = await sending
        assert answer.startswith("HTTP/1.1 413 "), answer
        assert "the request has more than 16000000 bytes" in answer
        assert sent < 50, "no more than the limit is discarded; the sockets hold some of it"

    run(tmp_path, Scripted(), work)


SEND_ALL = """
import os, sys, urllib.error, urllib.request
for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/mcp"):
    headers = {"Authorization": f"Bearer {os.environ['KEY']}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{sys.argv[1]}{path}", b" " * 100_000_000, headers)
    try:
        urllib.request.urlopen(request, timeout=20)
    except urllib.error.HTTPError as error:
        print(error.code, b"more than 16000000 bytes" in error.read())
"""
"""A program that reads no answer before it has sent everything, as most HTTP clients."""


async def relay(folder: Path, program: str, key: str = "") -> tuple[str, str]:
    """(standard output, standard error) of a Python program that reaches the gateway as sandboxed ones do."""
    port = str(find_free_port())
    socket = str(folder / SOCKET_NAME)
    begin = f"from {gateway_relay.__name__} import main; main()"
    argv = [sys.executable, "-c", begin, port, socket, sys.executable, "-c", program, port]
    return await start(argv, key)


async def start(argv: Sequence[str], key: str) -> tuple[str, str]:
    environment = {**os.environ, "KEY": key}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=pipe, env=environment)
    output, errors = await process.communicate()
    return output.decode(), errors.decode()


@pytest.mark.parametrize("relayed", [True, False])
def test_a_program_that_sends_a_hundred_megabytes_reads_the_refusal(tmp_path: Path, relayed: bool) -> None:
    async def work(served: Served) -> None:
        key = served.exchange.token
        direct = [sys.executable, "-c", SEND_ALL, str(served.gateway.port)]
        output, errors = await (relay(tmp_path, SEND_ALL, key) if relayed else start(direct, key))
        assert output == "413 True\n" * 4, errors

    run(tmp_path, Scripted(), work)


SEND_ENDLESSLY = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=20) as connection:
    sent = 0
    try:
        while sent < 1_000_000_000:
            sent += connection.send(b" " * 1_000_000)
    except ConnectionError:
        print("closed", sent < 300_000_000)
"""


def test_the_relay_closes_a_connection_whose_gateway_has_gone(tmp_path: Path) -> None:
    async def main() -> None:
        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async with await asyncio.start_unix_server(hang_up, tmp_path / SOCKET_NAME):
            output, errors = await asyncio.wait_for(relay(tmp_path, SEND_ENDLESSLY), 60)
            assert output == "closed True\n", errors

    asyncio.run(main())


def test_a_prompt_that_is_too_long_is_an_error_that_programs_know(tmp_path: Path) -> None:
    async def work(served: Served) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            await served.openai.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
        assert caught.value.code == "context_length_exceeded"
        assert served.exchange.events.empty()

    run(tmp_path, Scripted(PromptTooLong("9 tokens")), work)


def test_a_spent_budget_ends_the_episode(tmp_path: Path) -> None:
    async def work(served: Served) -> None:
        assert (await post(served, "/v1/chat/completions", HELLO)).status_code == 200
        refused = await post(served, "/v1/messages", {**HELLO, "max_tokens": 5})
        assert (refused.status_code, "the budget of the episode is exhausted" in refused.text) == (429, True)
        event = await served.exchange.events.get()
        assert isinstance(event, GiveUp)
        assert event.outcome is Outcome.BUDGET_EXHAUSTED

    run(tmp_path, Scripted(Action(text="b")), work, budget=Budget(turns=1))
