"""The OpenAPI document of the host, made from the table of operations."""

from __future__ import annotations

import re
from typing import Any

from pydantic import TypeAdapter

from gymcp import __version__
from gymcp.host import wire
from gymcp.host.operations import OPERATIONS, Access, Operation
from gymcp.types import Json

OPENAPI_PATH = "/v1/openapi.json"
_REFERENCES = "#/components/schemas/{model}"
_EVERYWHERE = (400, 401, 403, 413, 500)
_STATUSES = {
    400: "The request is malformed: the message names the field.",
    401: "No token, or one that is forged or has expired.",
    403: "The token is not for this.",
    404: "No such environment, task, split or episode.",
    409: "Not now: the episode is over, has been finished, or answers another message.",
    413: "The body is too large; it was discarded.",
    429: "The limit of live episodes, or of the bytes of one episode's requests, is reached: wait and try again.",
    500: "The host failed.",
    502: "The world of the episode could not be opened; the attempt is recorded.",
    503: "The host is ending, or has no memory for another episode.",
}
_ACCESS: dict[Access, list[dict[str, list[str]]]] = {
    Access.ALL: [],
    Access.HOST: [{"host": []}],
    Access.EPISODE: [{"host": []}, {"episode": []}],
}


def describe_api() -> dict[str, Json]:
    """OpenAPI 3.1: every operation with its records, and a word on the MCP endpoint, which MCP itself describes."""
    kinds = {each for operation in OPERATIONS for each in (operation.body, operation.gives) if each is not None}
    named = sorted((*kinds, wire.Error), key=lambda kind: kind.__name__)
    _, schemas = TypeAdapter.json_schemas(
        [(kind, "validation", TypeAdapter[Any](kind)) for kind in named], ref_template=_REFERENCES
    )
    paths: dict[str, dict[str, Json]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gymcp host",
            "version": __version__,
            "description": "Episodes as a service. The tools of an episode are an MCP server (streamable HTTP) at /mcp,"
            " whose headers the answer to its start has. `gymcp --help` says where its page docs/host.md is.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {
                "host": {"type": "http", "scheme": "bearer", "description": "The host's token, which clients have."},
                "episode": {"type": "http", "scheme": "bearer", "description": "The token of one live episode."},
            },
        },
    }


def _describe(operation: Operation) -> dict[str, Json]:
    statuses = sorted({*_EVERYWHERE, *operation.refusals}) if operation.access is not Access.ALL else []
    answers: dict[str, Json] = {str(operation.status): {"description": "Done.", **_content(operation.gives)}}
    answers |= {str(code): {"description": _STATUSES[code], **_content(wire.Error)} for code in statuses}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", operation.path)
    ]
    parameters += [
        {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
        for name, text in (operation.query or {}).items()
    ]
    return {
        "operationId": operation.name,
        "summary": operation.summary,
        "security": _ACCESS[operation.access],
        **({"parameters": parameters} if parameters else {}),
        **({"requestBody": {"required": True, **_content(operation.body)}} if operation.body is not None else {}),
        "responses": answers,
    }


def _content(kind: type) -> dict[str, Json]:
    return {"content": {"application/json": {"schema": {"$ref": _REFERENCES.format(model=kind.__name__)}}}}
