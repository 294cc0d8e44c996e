"""Calls that fail because the sandbox has no network: counted apart, and said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import gymcp

from gymcp.cli.output import MAX_LINE_CHARS, in_one_line
from gymcp.envs.episodes.network_failures import lacks_network
from gymcp.types import ToolResult

PAGE_READER = '''
from gymcp.envs import EnvSpec
from gymcp.evaluators.graders import final_state_equals
from gymcp.mcp_servers.native.server import native_server
from gymcp.types import GoldTurn, Suite, Task, ToolCall


class Reader:
    def __init__(self, pages: int) -> None:
        self.pages = pages

    def read(self, host: str) -> str:
        """The page of a host."""
        import socket

        socket.getaddrinfo(host, 80)
        return "a page"

    def refuse(self) -> str:
        """Nothing."""
        raise ValueError("no such page")


CALLS = tuple(
    ToolCall(id=f"call_{n}", name=name, arguments=arguments)
    for n, (name, arguments) in enumerate([("read", {"host": "pages.invalid"})] * 2 + [("refuse", {})])
)
STATE = {"pages": 0}
TASK = Task(id="t", prompts=("Read.",), initial_state=STATE, target=STATE, gold=(GoldTurn(calls=CALLS),))
ENV = EnvSpec(
    name="pages",
    servers=(native_server("pages", Reader),),
    suite=Suite(name="pages", version="1", tasks=(TASK,)),
    grade=final_state_equals(),
)
'''


def test_calls_without_network_are_counted_and_said(tmp_path: Path) -> None:
    (tmp_path / "pages.py").write_text(PAGE_READER)
    done = gymcp("eval", "pages.py", "--out", "run", cwd=tmp_path)
    assert "2 calls failed for want of network" in done.stdout, done.stderr
    assert "network=True in its ServerSpec: read 2" in " ".join(done.stdout.split())
    tools = json.loads((tmp_path / "run" / "summary.json").read_text())["tools"]
    assert (tools["read"]["without_network"], tools["read"]["errors"]) == (2, 2)
    assert "without_network" not in tools["refuse"]
    report = (tmp_path / "run" / "report.html").read_text()
    assert "calls that failed for want of network" in report
    assert "2 (read 2)" in report


@pytest.mark.parametrize(
    "text",
    [
        "gaierror: [Errno -3] Temporary failure in name resolution",
        "Failed to fetch: [Errno -2] Name or service not known",
        "Error: getaddrinfo EAI_AGAIN api.example.com",
        "request to https://x failed, reason: connect ENETUNREACH 1.1.1.1:443",
        "curl: (6) Could not resolve host: example.com",
        "page.goto: net::ERR_INTERNET_DISCONNECTED at https://example.com/",
        "x" * 100_000 + "OSError: [Errno 101] Network is unreachable",
    ],
)
def test_a_missing_network_is_recognised(text: str) -> None:
    assert lacks_network(ToolResult(call_id="c", content=text, is_error=True))
    assert not lacks_network(ToolResult(call_id="c", content=text))


@pytest.mark.parametrize("text", ["", "no such page", "404 Not Found", "the network of roads is dense"])
def test_other_errors_are_not(text: str) -> None:
    assert not lacks_network(ToolResult(call_id="c", content=text, is_error=True))


def test_a_long_line_keeps_its_beginning_and_its_last_words() -> None:
    noise = "loading " * 200
    line = in_one_line(f"server 'x': start: the server ended; its last words: {noise}\nno API key was given")
    assert line.startswith("server 'x': start: the server ended; its last words: loading")
    assert line.endswith("loading no API key was given")
    assert len(line) == MAX_LINE_CHARS + len(" [...] ")
    assert in_one_line("a" * MAX_LINE_CHARS) == "a" * MAX_LINE_CHARS
