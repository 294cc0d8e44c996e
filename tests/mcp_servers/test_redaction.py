"""Values of environment variables are in no message of a server: no run, prompt, log or error holds them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import html
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, quote_plus

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse
from remote_servers import ByHand

from gymcp.errors import ConfigError, EnvInfraError, ServerDied
from gymcp.mcp_servers.forkserver.process import ForkedProcess
from gymcp.mcp_servers.forkserver.python_scripts import forkable_script
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.loop_share import LoopShare
from gymcp.mcp_servers.redaction import Redaction, redaction_of, secrets_in
from gymcp.mcp_servers.sandbox import Mount, Sandbox, get_sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.transports.tapped_streams import redact_transport
from gymcp.types import Json, ToolCall, ToolResult

VALUE = 'sk/Live+"x<y>&é==7Zq'
"""A value with characters that URLs, JSON, HTML and base64 encode."""
NAME = "${GYMCP_TEST_TOKEN}"


def in_base64(text: str, before: int = 0) -> str:
    return base64.b64encode(b"?" * before + text.encode() + b"??").decode()


FORMS: dict[str, Callable[[str], str]] = {
    "as it is": lambda value: value,
    "upper case": str.upper,
    "lower case": str.lower,
    "URL": lambda value: quote(value, safe=""),
    "URL, small digits": lambda value: quote(value, safe="").lower(),
    "URL, slashes kept": quote,
    "query": quote_plus,
    "URL twice": lambda value: quote(quote(value, safe=""), safe=""),
    "hex": lambda value: value.encode().hex(),
    "hex, great digits": lambda value: value.encode().hex().upper(),
    "base64": in_base64,
    "base64, one byte on": lambda value: in_base64(value, 1),
    "base64, two bytes on": lambda value: in_base64(value, 2),
    "base64 for URLs": lambda value: base64.urlsafe_b64encode(value.encode()).decode(),
    "Basic": lambda value: "Basic " + base64.b64encode(f"user:{value}".encode()).decode(),
    "JSON": lambda value: json.dumps({"token": value}),
    "JSON, not ASCII": lambda value: json.dumps({"token": value}, ensure_ascii=False),
    "JSON in JSON": lambda value: json.dumps(json.dumps({"token": value})),
    "JSON of PHP": lambda value: json.dumps(value).replace("/", "\\/"),
    "HTML": lambda value: f"<p>{html.escape(value)}</p>",
    "with colours in it": lambda value: f"{value[:5]}\x1b[31m{value[5:]}",
}


def pieces(text: str) -> Iterator[str]:
    """Pieces from which a reader could restore the value: eight characters of it, or of its encodings."""
    for known in (text, text.encode().hex(), *(in_base64(text, n)[4:-4] for n in range(3))):
        for start in range(0, len(known) - 8, 4):
            yield known[start : start + 8].lower()


def assert_without(said: str, value: str = VALUE) -> None:
    for piece in pieces(value):
        assert piece not in said.lower(), (piece, said)


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("GYMCP_TEST_TOKEN", VALUE)
    return VALUE


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_value_is_found_in_each_encoding(form: str) -> None:
    said = FORMS[form](VALUE)
    redaction = Redaction({VALUE: NAME})
    assert NAME in redaction.text(f"before {said} after {said}")
    assert_without(redaction.text(f"before {said} after {said}"))
    nested: Json = {"a": [{said: said}], "b": 1, "c": None}
    assert_without(json.dumps(redaction.json(nested), ensure_ascii=False))


def test_user_and_password_are_found_with_and_without_base64() -> None:
    redaction = Redaction({base64.b64encode(b"anna:correct horse").decode(): NAME})
    assert redaction.text("anna:correct horse, or correct%20horse") == f"{NAME}, or {NAME}"


def test_each_line_of_a_key_is_found() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nBKcwggSjAgEAAoIBAQ\n-----END KEY-----"
    redaction = Redaction({key: NAME})
    assert redaction.text(f"got {key}") == f"got {NAME}"
    assert redaction.text("bad line MIIEvQIBADANBgkqhkiG9w0BAQEFAASC") == f"bad line {NAME}"


def test_the_longer_of_two_values_is_found_first() -> None:
    redaction = Redaction({"abcdefgh": "${A}", "abcdefgh-ijklmnop": "${B}"})
    assert redaction.text("abcdefgh-ijklmnop abcdefgh") == "${B} ${A}"


def test_occurrences_that_overlap_leave_no_rest() -> None:
    redaction = Redaction({"abababab": "${A}", "babc-defgh": "${B}"})
    assert redaction.text("x abababababc-defgh x") == "x ${A} x"


def test_letters_that_become_longer_in_lower_case_move_no_value() -> None:
    assert (
        Redaction({"secret-i-value": NAME}).text("\u0130\u0130 SECRET-\u0130-VALUE \u0130")
        == f"\u0130\u0130 {NAME} \u0130"
    )


LARGE_CHARS = 4_000_000
CHARS_AT_ONCE = 200_000
"""Characters that are searched before others have a turn, at most."""


async def redact_beside_another_task(text: str) -> tuple[str, int]:
    """The text as it leaves the transport, and the number of turns that another task had meanwhile."""
    send, receive = anyio.create_memory_object_stream[Any](1)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def transport() -> AsyncIterator[Any]:
        yield receive, send

    share = LoopShare(burst_s=60.0)
    async with send, receive, redact_transport(transport(), Redaction({VALUE: NAME}), share) as (read, _):
        send.send_nowait(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=1, result={"content": [{"text": text}]})))
        other = asyncio.create_task(count())
        item: Any = await read.receive()
        other.cancel()
    return item.message.result["content"][0]["text"], turns


def test_a_large_answer_full_of_the_secret_lets_other_tasks_run() -> None:
    """It is redacted in steps, also at their borders, where values are cut."""
    count = LARGE_CHARS // (len(VALUE) + 1)
    text, turns = asyncio.run(redact_beside_another_task(f"{VALUE}\n" * count))
    assert text == f"{NAME}\n" * count
    assert turns >= LARGE_CHARS / CHARS_AT_ONCE


@pytest.mark.parametrize("said", [VALUE[:-1], "x", "1\x1b[31m"])
def test_a_large_answer_that_nearly_holds_the_secret_lets_other_tasks_run(said: str) -> None:
    text, turns = asyncio.run(redact_beside_another_task(VALUE + said * (LARGE_CHARS // len(said))))
    assert text == NAME + said * (LARGE_CHARS // len(said))
    assert turns >= LARGE_CHARS / CHARS_AT_ONCE


def test_a_text_without_a_secret_is_unchanged() -> None:
    text = "nothing\x1b[31m of ${GYMCP_TEST_TOKEN} sk/Live"
    assert Redaction({VALUE: NAME}).text(text) is text
    assert redaction_of({}) is None


def test_a_short_secret_is_refused_and_a_short_setting_is_not_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYMCP_TEST_TOKEN", "hunter2")
    monkeypatch.setenv("GYMCP_TEST_REGION", "eu")
    with pytest.raises(ConfigError, match=r"^server 's': environment variable 'GYMCP_TEST_TOKEN' holds 7 characters: "):
        secrets_in("server 's'", [("x", "Bearer ${GYMCP_TEST_TOKEN}")])
    with pytest.raises(ConfigError, match="'GYMCP_TEST_REGION' holds 2 characters"):
        secrets_in("server 's'", [("X-Api-Key", "${GYMCP_TEST_REGION}")])
    assert secrets_in("server 's'", [("region", "${GYMCP_TEST_REGION}"), ("x", "${GYMCP_NOT_SET:-y}")]) == {}


# ------------------------------------------------------------------------------------------------- servers elsewhere


@pytest.fixture
def ascii_token(monkeypatch: pytest.MonkeyPatch) -> str:
    value = VALUE.replace("é", "e")
    monkeypatch.setenv("GYMCP_TEST_TOKEN", value)
    return value


def repeating(spec: ServerSpec, say: Callable[[str], Any], token: str, work: Callable[[Any], Any]) -> None:
    async def main() -> None:
        with ByHand(lambda tool, arguments: say(token)).serving() as url:
            here = replace(spec, url=url)
            opened = open_session(here, get_sandbox("none"), initial_state=None, seed=0, task="t")
            async with asyncio.timeout(60), opened as session:
                await work(session)

    asyncio.run(main())


async def call(session: Any, **arguments: Json) -> ToolResult:
    result: ToolResult = await session.call_tool(ToolCall(id="c", name="add"), arguments, timeout_s=30)
    return result


FAR = ServerSpec(name="far", url="http://127.0.0.1:9/", state="stateless", headers={"Authorization": f"Bearer {NAME}"})


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_remote_server_cannot_repeat_its_token(form: str, ascii_token: str, tmp_path: Path) -> None:
    said: list[str] = []

    async def work(session: Any) -> None:
        said.append((await call(session)).content)

    tape = tmp_path / "tape.jsonl"
    repeating(replace(FAR, cassette=tape, recording=True), FORMS[form], ascii_token, work)
    assert NAME in said[0]
    assert_without(said[0], ascii_token)
    assert_without(tape.read_text(), ascii_token)


def test_errors_of_a_remote_server_do_not_hold_the_token(ascii_token: str) -> None:
    def fault(token: str) -> Any:
        error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": f"bad {token}", "data": token}}
        return 400, "application/json", json.dumps(error).encode()

    async def call_and_read(session: Any) -> None:
        result = await call(session)
        assert (result.is_error, result.content) == (True, f"bad {NAME}")

    repeating(FAR, fault, ascii_token, call_and_read)

    for cut in (0, 280, 295):  # an excerpt of 300 characters does not end in the middle of one

        def odd(token: str, cut: int = cut) -> Any:
            return 200, "text/plain", b"x" * cut + token.encode() + b" was refused"

        async def lost(session: Any) -> None:
            with pytest.raises(EnvInfraError) as caught:
                await call(session)
            assert_without(str(caught.value), ascii_token)

        repeating(FAR, odd, ascii_token, lost)


def test_tool_descriptions_do_not_hold_the_token(ascii_token: str) -> None:
    server = ByHand(lambda tool, arguments: "fine")
    respond = server.respond

    def describing(asked: dict[str, Any]) -> tuple[int, str, bytes]:
        status, kind, body = respond(asked)
        if asked.get("method") == "tools/list":
            answer = json.loads(body)
            schema = {"type": "object", "properties": {"x": {"type": "string", "default": ascii_token}}}
            answer["result"]["tools"] = [{"name": "add", "description": f"As {ascii_token}.", "inputSchema": schema}]
            body = json.dumps(answer).encode()
        return status, kind, body

    server.respond = describing  # type: ignore[method-assign]

    async def main() -> None:
        with server.serving() as url:
            opened = open_session(replace(FAR, url=url), get_sandbox("none"), initial_state=None, seed=0)
            async with asyncio.timeout(60), opened as session:
                (tool,) = session.tools
                assert tool.description == f"As {NAME}."
                assert_without(repr(tool), ascii_token)

    asyncio.run(main())


# -------------------------------------------------------------------------------------------------------- local ones

SERVER = r"""
import json, os, sys
TOKEN = os.environ["API_TOKEN"]
print("x" * 100 + "starting with " + TOKEN, file=sys.stderr, flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked: continue
    if asked["method"] == "initialize":
        answer = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": TOKEN, "version": "1"}}
    elif asked["method"] == "tools/list":
        answer = {"tools": [{"name": "add", "description": TOKEN, "inputSchema": {"type": "object"}}]}
    else:
        how = asked["params"]["arguments"]["how"]
        if how == "die": sys.exit("died of " + TOKEN)
        if how == "babble": print("x" * 110 + TOKEN, flush=True)
        answer = {"content": [{"type": "text", "text": "it is " + TOKEN}]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
"""


NEAR = ServerSpec(name="near", env={"API_TOKEN": VALUE}, secrets={VALUE: NAME}, wire="legacy")
IN_PLACE = ("python3", "-I", "-S", "-c", SERVER)
IN_FILE = ("python3", "-s", "-B", "/srv/near/server.py")


def in_file(folder: Path, program: str) -> ServerSpec:
    """A third-party server that can be forked."""
    (folder / "server.py").write_text(program)
    folder.chmod(0o755)  # under root, servers are another user
    mount = Mount(source=folder, target=PurePosixPath("/srv/near"))
    return replace(NEAR, argv=IN_FILE, mounts=(mount,), fork=forkable_script(IN_FILE))


async def ask_server(server: ServerSpec, sandbox: Sandbox, how: str) -> str:
    """Result of a call, or the error with which the server ends."""
    async with open_session(server, sandbox, initial_state=None, seed=0) as session:
        assert session.tools[0].description == NAME
        try:
            return (await session.call_tool(ToolCall(id="c", name="add"), {"how": how}, timeout_s=30)).content
        except EnvInfraError as error:
            return str(error)


def assert_kept(server: ServerSpec, where: str, *, warm: bool, forked: bool = False) -> None:
    async def main() -> None:
        async with asyncio.timeout(120), AsyncExitStack() as stack:
            sandbox = get_sandbox(where)
            if warm:
                sandbox = await stack.enter_async_context(open_warm_sandbox(sandbox))
            if forked:
                async with open_session(server, sandbox, initial_state=None, seed=0) as session:
                    assert isinstance(session.process, ForkedProcess)
            assert await ask_server(server, sandbox, "say") == f"it is {NAME}"
            for how in ("die", "babble"):
                said = await ask_server(server, sandbox, how)
                assert NAME in said
                assert_without(said)

    asyncio.run(main())


@pytest.mark.parametrize("warm", [False, True], ids=["started", "spare"])
@pytest.mark.parametrize("where", ["bwrap", "none"])
def test_a_started_server_cannot_repeat_its_secrets(where: str, warm: bool, caplog: pytest.LogCaptureFixture) -> None:
    server = replace(NEAR, argv=IN_PLACE, warm_pool_size=1 if warm else 0)
    with caplog.at_level(logging.DEBUG):
        assert_kept(server, where, warm=warm)
    assert_without(caplog.text)


def test_a_forked_server_cannot_repeat_its_secrets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert_kept(in_file(tmp_path, SERVER), "bwrap", warm=True, forked=True)
    assert_without(caplog.text)


def test_a_server_in_a_container_cannot_repeat_its_secrets(engine: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert_kept(replace(NEAR, argv=IN_PLACE), "docker", warm=False)
    assert_without(caplog.text)


def test_the_log_gives_the_reason_not_to_fork_without_the_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = "import os, sys, threading\nprint('as', os.environ['API_TOKEN'], file=sys.stderr, flush=True)\n"
    thread = "threading.Thread(target=threading.Event().wait, name=os.environ['API_TOKEN'], daemon=True).start()\n"
    (tmp_path / "extra.py").write_text(module + thread)
    program = "import extra\n" + SERVER
    with caplog.at_level(logging.DEBUG):
        assert_kept(in_file(tmp_path, program), "bwrap", warm=True)
    assert "every server is started anew instead" in caplog.text
    assert_without(caplog.text)


def test_the_reason_of_a_server_that_does_not_start_holds_no_secret(token: str) -> None:
    program = "import os, sys; sys.exit('no such account: ' + os.environ['API_TOKEN'])"
    server = ServerSpec(
        name="near", argv=("python3", "-I", "-S", "-c", program), env={"API_TOKEN": token}, secrets={token: NAME}
    )

    async def main() -> None:
        with pytest.raises(ServerDied) as caught:
            async with open_session(server, get_sandbox("bwrap"), initial_state=None, seed=0):
                pass
        assert NAME in str(caught.value)
        assert_without(str(caught.value))

    asyncio.run(main())


def test_the_identity_of_a_fresh_world_does_not_depend_on_the_token() -> None:
    one, other = (
        ServerSpec(name="s", argv=("a", f"--key={value}"), env={"K": value}, secrets={value: NAME})
        for value in (VALUE, VALUE[::-1])
    )
    assert one.parts() == other.parts()
    assert ServerSpec(name="s", argv=("a",), env={"K": "v"}).parts()[1:3] == [["a"], {"K": "v"}]
