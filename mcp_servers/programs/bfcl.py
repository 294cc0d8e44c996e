"""BFCL multi-turn's environments as one MCP server over upstream's own classes, which are mounted beside this file.

With ``--replay`` it replays calls instead of serving: standard input has one task per line, standard output one record
per line, and each task runs in a process of its own (upstream keeps state in modules and in default arguments).
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import math
import os
import random
import sys
import time
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gymcp.mcp_servers.native.runtime import Server, ToolError

Json = Any
World = dict[str, Any]
"""Class name -> instance of upstream's class: the environment of one task."""

VERSION = "1"
BACKEND = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
MODULES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
"""Class -> its module, which is also the name of its file of function documents."""
STATELESS = frozenset({"MathAPI"})
TYPES = {"dict": "object", "float": "number", "tuple": "array"}
RELAXED = {("close_ticket", "ticket_id"): ["integer", "string"]}
"""(tool, parameter) -> types, for parameters whose document refuses the arguments of upstream's own gold calls."""
UNDECLARED = frozenset({"_api_description", "_current_dir", "_random"})
"""Private attributes that are constant, or declared in another form."""
MAX_VALUES = 50_000
MAX_CHARS = 8_000_000
"""Most values and characters of a declared state. A larger state (copies of copies of folders) is not declared, and
equals no other."""


def main() -> None:
    """Serve over standard input and output, or replay."""
    _prepare()
    if sys.argv[1:] == ["--replay"]:
        replay()
    else:
        serve()


def preload() -> None:
    """Import what every episode needs, for a fork server."""
    _prepare()
    for module in MODULES.values():
        _backend(module)
        _documents(module)


def _prepare() -> None:
    os.environ["TZ"] = "UTC"  # upstream makes timestamps in local time
    time.tzset()
    if "mpmath" not in sys.modules:
        _import_late("mpmath")


def serve() -> None:
    server = Server("bfcl", version=VERSION)
    world: World = {}

    @server.setup
    def setup(initial_state: Json, seed: int) -> None:
        world.update(make_world(initial_state))
        for name, tool in tools_of(world).items():
            server.add_tool(tool.call, name=name, description=tool.description, input_schema=tool.input_schema)

    @server.state
    def state() -> Json:
        return declare(world)

    server.run()


def replay() -> None:
    for module in MODULES.values():
        _backend(module)
    for line in sys.stdin:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                sys.stdout.write(json.dumps(_replay_task(json.loads(line))) + "\n")
                sys.stdout.flush()
                status = 0
            except BaseException as error:
                sys.excepthook(type(error), error, error.__traceback__)
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        if status != 0:
            sys.exit(f"bfcl replay: a task ended with status {status}: {line[:80]}")


def _replay_task(task: Json) -> Json:
    """{"id", "setup", "turns": [[{"name", "arguments"}]]} -> {"id", "responses" per turn, "states", "distinct"}.

    ``states`` has for each turn the index in ``distinct`` of the state that the server would declare after it.
    """
    world = make_world(task["setup"])
    tools = tools_of(world)
    responses: list[list[str]] = []
    states: list[int] = []
    distinct: dict[str, Json] = {}
    for turn in task["turns"]:
        responses.append([tools[call["name"]].run(call["arguments"])[0] for call in turn])
        state = declare(world)
        text = json.dumps(state)
        distinct.setdefault(text, state)
        states.append(list(distinct).index(text))
    return {"id": task["id"], "responses": responses, "states": states, "distinct": list(distinct.values())}


# Environments and tools


def make_world(initial_state: Json) -> World:
    """{"classes": [...], "config": {...}, "long_context": bool} -> {class name: new instance}."""
    world: World = {}
    for name in initial_state["classes"]:
        instance = getattr(_backend(MODULES[name]), name)()
        if name not in STATELESS:
            config = json.loads(json.dumps(initial_state["config"].get(name, {})))
            instance._load_scenario(config, long_context=bool(initial_state.get("long_context", False)))
        world[name] = instance
    return world


def tools_of(world: World) -> dict[str, Tool]:
    """{tool name: Tool} in the order of the documents; of two tools with one name the later wins, as upstream."""
    tools: dict[str, Tool] = {}
    for class_name, instance in world.items():
        for document in _documents(MODULES[class_name]):
            tools[document["name"]] = Tool(document, getattr(instance, document["name"]))
    return tools


@functools.cache
def _documents(module: str) -> list[Json]:
    path = Path(importlib.import_module("bfcl_eval").__path__[0], "data", "multi_turn_func_doc", module + ".json")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class Tool:
    def __init__(self, document: Json, method: Callable[..., Any]) -> None:
        self.description = document["description"]
        self.input_schema = json_schema(document["parameters"])
        self._method = method
        for (tool, parameter), allowed in RELAXED.items():
            if tool == document["name"]:
                self.input_schema["properties"][parameter]["type"] = allowed

    def run(self, arguments: Mapping[str, Json]) -> tuple[str, bool]:
        """(text, is_error). The text is exactly upstream's, because graders compare it."""
        try:
            result = self._method(**arguments)
        except Exception as error:  # the boundary: every error of upstream's code is an answer
            return f"Error during execution: {error}", True
        if type(result) is str:
            return result, False
        if type(result) is not dict:
            return str(result), False
        try:
            return json.dumps(result), "error" in result
        except Exception:  # some results of upstream contain objects
            return str(result), "error" in result

    def call(self, /, **arguments: Json) -> str:
        text, is_error = self.run(arguments)
        if is_error:
            raise ToolError(text)
        return text


def json_schema(document: Json) -> dict[str, Json]:
    """Upstream's parameter document -> JSON Schema."""
    schema: dict[str, Json] = {}
    for key, value in document.items():
        if key == "type":
            if value != "any":
                schema["type"] = TYPES.get(value, value)
        elif key == "properties":
            schema["properties"] = {name: json_schema(inner) for name, inner in value.items()}
        elif key == "items":
            schema["items"] = json_schema(value)
        else:
            schema[key] = value
    if schema.get("default") == "None":  # upstream prints Python's None
        schema.update(default=None, type=[schema["type"], "null"])
    return schema


def _backend(module: str) -> Any:
    return importlib.import_module(f"{BACKEND}.{module}")


def _import_late(name: str) -> None:
    """Import a package at the first use of an attribute: one of 128 tools uses it, and it doubles the start time."""
    stub = types.ModuleType(name)

    def load(attribute: str) -> Any:
        if sys.modules.get(name) is stub:
            del sys.modules[name]
        return getattr(importlib.import_module(name), attribute)

    setattr(stub, "__getattr__", load)  # noqa: B010 - mypy knows no such attribute of a module
    sys.modules[name] = stub


# State, as JSON


def declare(world: World) -> dict[str, World]:
    """{"public": state that graders compare, "private": further state that later calls depend on}.

    Two public parts are equal as Python values exactly if upstream finds their instances equal: the order of a mapping
    does not count, and 1 == 1.0 == True. The private part has the random generator, the current folder, and a digest of
    the differences that equality ignores (the order of mappings, 1 against 1.0).
    """
    public: World = {}
    private: World = {}
    for name, instance in world.items():
        try:
            public[name], private[name] = _declare(instance)
        except (_TooLarge, RecursionError) as error:
            public[name], private[name] = {"$unreadable": type(error).__name__}, {}
    return {"public": public, "private": private}


def _declare(instance: Any) -> tuple[World, World]:
    encoder = _Encoder()
    attributes = vars(instance)
    public = {key: encoder.value(value) for key, value in attributes.items() if not key.startswith("_")}
    private = {
        key: encoder.value(value) for key, value in attributes.items() if key.startswith("_") and key not in UNDECLARED
    }
    if not public and not private:
        return public, private
    private["order"] = _digest(json.dumps(public))
    if isinstance(attributes.get("_random"), random.Random):
        private["_random"] = _digest(repr(attributes["_random"].getstate()))
    if "_current_dir" in attributes:
        places = _Places(instance.root, encoder)
        private["_current_dir"] = places.tell(instance._current_dir)
        if places.links:
            private["links"] = places.links
    return public, private


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class _TooLarge(Exception):
    pass


class _Encoder:
    """Encodes Python values as JSON; a value without a JSON type becomes an object whose one key starts with ``$``."""

    def __init__(self) -> None:
        self._values = MAX_VALUES
        self._chars = MAX_CHARS
        self._open: list[int] = []

    def value(self, value: Any) -> Json:
        self._values -= 1
        if self._values < 0:
            raise _TooLarge
        kind = type(value)
        if kind is str:
            self._chars -= len(value)
            if self._chars < 0:
                raise _TooLarge
            return value
        if kind is int or kind is bool or value is None:
            return value
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if kind is dict:
            return {_key(key): self.value(inner) for key, inner in value.items()}
        if kind is list:
            return [self.value(inner) for inner in value]
        return self._tag(value)

    def _tag(self, value: Any) -> Json:
        kind = type(value).__name__
        if isinstance(value, tuple):
            return {"$tuple": [self.value(inner) for inner in value]}
        if isinstance(value, (set, frozenset)):
            return {"$set": sorted((self.value(inner) for inner in value), key=_sort_key)}
        if kind == "File":
            return {"$file": [value.name, self.value(value.content)]}
        if kind == "Directory":
            return self._directory(value)
        if hasattr(value, "isoformat"):
            return {"$" + kind: value.isoformat()}
        return {"$" + kind: repr(value)}

    def _directory(self, directory: Any) -> Json:
        if id(directory) in self._open:  # cp of a folder into itself
            return {"$above": len(self._open) - self._open.index(id(directory))}
        self._open.append(id(directory))
        contents = {_key(name): self.value(inner) for name, inner in directory.contents.items()}
        self._open.pop()
        return {"$directory": [directory.name, contents]}


def _key(key: Any) -> str:
    """A mapping's key as text; equal keys give equal texts, and a key that is no plain string starts with ``$``."""
    if type(key) is str:
        return "$str:" + key if key.startswith("$") else key
    if isinstance(key, (bool, int, float)):
        return f"$number:{int(key) if math.isfinite(key) and key == int(key) else key!r}"
    return f"${type(key).__name__}:{key!r}"


def _sort_key(encoded: Json) -> tuple[int, float, str]:
    if isinstance(encoded, (bool, int, float)):
        return (0, encoded, "")
    return (1, 0, json.dumps(encoded, sort_keys=True))


class _Places:
    """Paths of objects in the tree of files.

    Upstream's mv and cp leave folders whose ``parent`` is not the folder above them, and files that are in two folders
    at once: ``links`` has these, because later calls depend on them.
    """

    def __init__(self, root: Any, encoder: _Encoder) -> None:
        self.links: list[list[Json]] = []
        self._encoder = encoder
        self._paths = {id(root): "/"}
        self._contents = {id(root.contents): "/"}
        odd: list[tuple[str, Any]] = []
        self._walk(root, "", odd)
        for path, parent in odd:
            self.links.append([path, "parent", self.tell(parent)])

    def _walk(self, directory: Any, above: str, odd: list[tuple[str, Any]]) -> None:
        for name, item in directory.contents.items():
            path = f"{above}/{name}"
            known = self._paths.setdefault(id(item), path)
            if known is not path:
                self.links.append([path, "same", known])
            elif hasattr(item, "contents"):
                self._contents.setdefault(id(item.contents), path)
                if item.parent is not directory:
                    odd.append((path, item.parent))
                self._walk(item, path, odd)

    def tell(self, directory: Any) -> Json:
        """The path of a folder; for a folder outside the tree, its name, its contents, and the folder above it."""
        if directory is None:
            return None
        if id(directory) in self._paths:
            return self._paths[id(directory)]
        self._paths[id(directory)] = f"#{len(self._paths)}"
        contents = self._contents.get(id(directory.contents)) or self._encoder.value(directory)
        return [directory.name, contents, self.tell(directory.parent)]
