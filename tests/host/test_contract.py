"""docs/host.md is the contract: every request and status that the code has stands there, and no other."""

from __future__ import annotations

import json
import re
from pathlib import Path

from gymcp.host import wire
from gymcp.host.openapi import describe_api
from gymcp.host.operations import OPERATIONS, Access
from gymcp.outcome import Outcome

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "host.md").read_text(encoding="utf-8")
API = describe_api()
MCP = {("POST", "/mcp"), ("DELETE", "/mcp")}


def test_the_page_lists_every_request_with_its_token() -> None:
    rows = re.findall(r"^\| (`.*`) \| (none|host|episode|host or episode) \|", PAGE, flags=re.MULTILINE)
    pairs = ((request, token) for requests, token in rows for request in re.findall(r"`([^`]+)`", requests))
    listed = {tuple(request.split()): token for request, token in pairs}
    named = {Access.ALL: "none", Access.HOST: "host", Access.EPISODE: "host or episode"}
    wanted = {(each.method, each.path): named[each.access] for each in OPERATIONS}
    assert listed == {**wanted, **dict.fromkeys(MCP, "episode")}


def test_the_page_lists_every_status_of_a_refusal() -> None:
    listed = {int(status) for status in re.findall(r"^\| (\d{3}) \|", PAGE, flags=re.MULTILINE)}
    answers = [operation["responses"] for path in API["paths"].values() for operation in path.values()]
    assert listed == {int(status) for each in answers for status in each if int(status) >= 400} - {500}


def test_the_document_has_every_field_with_its_words() -> None:
    start = API["components"]["schemas"]["StartEpisode"]
    assert start["required"] == ["environment"]
    assert start["properties"]["seed"]["description"].startswith("Seed of all random choices")
    assert set(API["components"]["schemas"]["Verdict"]["properties"]) == set(wire.Verdict.__dataclass_fields__)
    references = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(API)))
    assert references <= set(API["components"]["schemas"])
    assert all(operation["summary"] for path in API["paths"].values() for operation in path.values())


def test_a_verdict_names_every_outcome() -> None:
    words = API["components"]["schemas"]["Verdict"]["properties"]["outcome"]["description"]
    assert set(re.findall(r"``(\w+)``", words)) == {str(outcome) for outcome in Outcome}


def test_the_client_of_the_examples_is_short() -> None:
    assert len((ROOT / "examples" / "host_client.py").read_text(encoding="utf-8").splitlines()) <= 60
