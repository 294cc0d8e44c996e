"""The fixture of the conformance suite's server scenarios: an MCP server over pipes, standard library only."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
SILENCE = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA="
IMAGE = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
Object = dict[str, Any]
_asked = 0


class Refused(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def send(message: Object) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def notify(method: str, params: Object) -> None:
    send({"method": method, "params": params})


def ask(method: str, params: Object) -> Object:
    """The client's answer. Its other messages are served meanwhile."""
    global _asked  # noqa: PLW0603 (request ids count up for the life of the process)
    _asked += 1
    number = f"server-{_asked}"
    send({"id": number, "method": method, "params": params})
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("id") == number and "method" not in message:
            if "error" in message:
                raise Refused(message["error"]["code"], message["error"]["message"])
            return dict(message["result"])
        serve(message)
    raise EOFError


def text(words: str) -> Object:
    return {"type": "text", "text": words}


def resource(uri: str, kind: str, words: str) -> Object:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": kind, "text": words}}


def with_logging(arguments: Object, meta: Object) -> list[Object]:
    for words in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        notify("notifications/message", {"level": "info", "data": words})
        time.sleep(0.05)
    return [text("logged")]


def with_progress(arguments: Object, meta: Object) -> list[Object]:
    for progress in (0, 50, 100):
        if "progressToken" in meta:
            notify(
                "notifications/progress", {"progressToken": meta["progressToken"], "progress": progress, "total": 100}
            )
        time.sleep(0.05)
    return [text("done")]


def sampled(arguments: Object, meta: Object) -> list[Object]:
    messages = [{"role": "user", "content": text(arguments["prompt"])}]
    answer = ask("sampling/createMessage", {"messages": messages, "maxTokens": 100})
    return [text(f"LLM response: {answer['content']['text']}")]


def elicited(message: str, properties: Object, required: list[str]) -> list[Object]:
    schema = {"type": "object", "properties": properties, "required": required}
    answer = ask("elicitation/create", {"message": message, "requestedSchema": schema})
    return [text(f"User response: action={answer['action']}, content={json.dumps(answer.get('content'))}")]


def failing(arguments: Object, meta: Object) -> list[Object]:
    raise RuntimeError("This tool intentionally returns an error for testing")


ASKED = {"username": {"type": "string", "description": "Name"}, "email": {"type": "string", "description": "Mail"}}
DEFAULTS: Object = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}
TITLED = [{"const": f"value{n}", "title": f"Choice {n}"} for n in (1, 2, 3)]
PLAIN = ["option1", "option2", "option3"]
ENUMS: Object = {
    "untitledSingle": {"type": "string", "enum": PLAIN},
    "titledSingle": {"type": "string", "oneOf": TITLED},
    "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]},
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": PLAIN}},
    "titledMulti": {"type": "array", "items": {"anyOf": TITLED}},
}
NOTHING: Object = {"type": "object", "properties": {}}
DIALECT: Object = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}
Tool = Callable[[Object, Object], list[Object]]
TOOLS: dict[str, tuple[Object, Tool]] = {
    "test_simple_text": (NOTHING, lambda a, m: [text("This is a simple text response for testing.")]),
    "test_image_content": (NOTHING, lambda a, m: [IMAGE]),
    "test_audio_content": (NOTHING, lambda a, m: [{"type": "audio", "data": SILENCE, "mimeType": "audio/wav"}]),
    "test_embedded_resource": (
        NOTHING,
        lambda a, m: [resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")],
    ),
    "test_multiple_content_types": (
        NOTHING,
        lambda a, m: [
            text("Multiple content types test:"),
            IMAGE,
            resource("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
        ],
    ),
    "test_tool_with_logging": (NOTHING, with_logging),
    "test_error_handling": (NOTHING, failing),
    "test_tool_with_progress": (NOTHING, with_progress),
    "test_sampling": (
        {"type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]},
        sampled,
    ),
    "test_elicitation": (
        {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
        lambda a, m: elicited(a["message"], ASKED, ["username", "email"]),
    ),
    "test_elicitation_sep1034_defaults": (NOTHING, lambda a, m: elicited("Accept the defaults", DEFAULTS, [])),
    "test_elicitation_sep1330_enums": (NOTHING, lambda a, m: elicited("Choose", ENUMS, [])),
    "json_schema_2020_12_tool": (DIALECT, lambda a, m: [text("ok")]),
}
RESOURCES = [
    {"uri": "test://static-text", "name": "Text", "description": "A text.", "mimeType": "text/plain"},
    {"uri": "test://static-binary", "name": "Image", "description": "A pixel.", "mimeType": "image/png"},
    {"uri": "test://watched-resource", "name": "Watched", "description": "A text.", "mimeType": "text/plain"},
]
TEMPLATE = {
    "uriTemplate": "test://template/{id}/data",
    "name": "Data",
    "description": "Data of an id.",
    "mimeType": "application/json",
}
PROMPTS: list[Object] = [
    {"name": "test_simple_prompt", "description": "One message."},
    {
        "name": "test_prompt_with_arguments",
        "description": "Says its arguments.",
        "arguments": [{"name": name, "description": "A word.", "required": True} for name in ("arg1", "arg2")],
    },
    {
        "name": "test_prompt_with_embedded_resource",
        "description": "Holds a resource.",
        "arguments": [{"name": "resourceUri", "description": "Which.", "required": True}],
    },
    {"name": "test_prompt_with_image", "description": "Holds an image."},
]


def read(uri: str) -> Object:
    if uri == "test://static-binary":
        return {"uri": uri, "mimeType": "image/png", "blob": PIXEL}
    if uri in ("test://static-text", "test://watched-resource"):
        return {"uri": uri, "mimeType": "text/plain", "text": "This is the content of the static text resource."}
    if uri.startswith("test://template/"):
        number = uri.split("/")[3]
        found = {"id": number, "templateTest": True, "data": f"Data for ID: {number}"}
        return {"uri": uri, "mimeType": "application/json", "text": json.dumps(found)}
    raise Refused(-32002, f"no resource {uri}")


def prompt(name: str, arguments: Object) -> list[Object]:
    if name == "test_simple_prompt":
        return [text("This is a simple prompt for testing.")]
    if name == "test_prompt_with_arguments":
        return [text(f"Prompt with arguments: arg1='{arguments['arg1']}', arg2='{arguments['arg2']}'")]
    if name == "test_prompt_with_image":
        return [IMAGE, text("Please analyze the image above.")]
    held = resource(arguments["resourceUri"], "text/plain", "Embedded resource content for testing.")
    return [held, text("Please process the embedded resource above.")]


def call(params: Object) -> Object:
    _, tool = TOOLS[params["name"]]
    try:
        return {"content": tool(params.get("arguments") or {}, params.get("_meta") or {})}
    except (RuntimeError, Refused) as error:
        return {"content": [text(str(error))], "isError": True}


def list_tools() -> list[Object]:
    return [{"name": name, "description": f"{name}.", "inputSchema": schema} for name, (schema, _) in TOOLS.items()]


def messages(params: Object) -> list[Object]:
    return [{"role": "user", "content": part} for part in prompt(params["name"], params.get("arguments") or {})]


CAPABILITIES: Object = {
    "tools": {},
    "resources": {"subscribe": True},
    "prompts": {},
    "logging": {},
    "completions": {},
}
METHODS: dict[str, Callable[[Object], Object]] = {
    "initialize": lambda params: {
        "protocolVersion": params["protocolVersion"],
        "capabilities": CAPABILITIES,
        "serverInfo": {"name": "everything", "version": "1.0.0"},
    },
    "ping": lambda params: {},
    "logging/setLevel": lambda params: {},
    "completion/complete": lambda params: {"completion": {"values": ["paris", "park"], "total": 2, "hasMore": False}},
    "tools/list": lambda params: {"tools": list_tools()},
    "tools/call": call,
    "resources/list": lambda params: {"resources": RESOURCES},
    "resources/templates/list": lambda params: {"resourceTemplates": [TEMPLATE]},
    "resources/read": lambda params: {"contents": [read(params["uri"])]},
    "resources/subscribe": lambda params: {},
    "resources/unsubscribe": lambda params: {},
    "prompts/list": lambda params: {"prompts": PROMPTS},
    "prompts/get": lambda params: {"messages": messages(params)},
}


def serve(message: Object) -> None:
    if "id" not in message or "method" not in message:
        return
    method = METHODS.get(message["method"])
    if method is None:
        send({"id": message["id"], "error": {"code": -32601, "message": f"no method {message['method']}"}})
        return
    try:
        send({"id": message["id"], "result": method(message.get("params") or {})})
    except Refused as error:
        send({"id": message["id"], "error": {"code": error.code, "message": str(error)}})


if __name__ == "__main__":
    for line in sys.stdin:
        serve(json.loads(line))
