"""tau2's telecom world as one MCP server, over upstream's own tools, which are mounted beside this file.

Of upstream only the tools and the models of the worlds are there: no task, no gold, no grader. The actions that break
a task's world come with the setup. What they import of a framework that nobody needs here is stood in for.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import json
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gymcp.mcp_servers.native.runtime import Server, ToolError

Json = Any
VERSION = "1"
TELECOM = "inspect_evals.tau2.telecom"
WORLD = "telecom.json"
"""On the path of imports: both databases before anything happens."""


def main() -> None:
    """Serves over standard input and output."""
    preload()
    server = Server("tau2", version=VERSION)
    world: dict[str, Any] = {}

    @server.setup
    def setup(initial_state: Json, seed: int) -> None:
        world["environment"] = make_environment(initial_state["actions"])

    @server.state
    def state() -> Json:
        return declare(world["environment"]) if world else None

    for name, execute in tools().items():
        server.add_tool(
            _tool(execute, world), name=name, description=_description(execute), input_schema=_schema(execute)
        )
    server.run()


def preload() -> None:
    """What every episode needs, for a template that is forked."""
    if "inspect_ai" not in sys.modules:
        stand_in()
        upstream("user_tools")
        upstream("tools")
        _databases()
        for execute in tools().values():
            _model(execute)


# Upstream


def upstream(name: str) -> Any:
    """A module of its telecom domain."""
    return importlib.import_module(f"{TELECOM}.{name}")


def stand_in() -> None:
    """Modules in place of those that upstream imports and that are not there."""
    pydantic = importlib.import_module("pydantic")
    kept: dict[str, Any] = {}

    class StoreModel(pydantic.BaseModel, arbitrary_types_allowed=True):  # type: ignore[call-arg, misc, name-defined]
        """Kept in a store by name; upstream's tools look themselves up there at each call."""

    def store_as(model: Any, name: str | None = None) -> Any:
        return kept[name or model.__name__]

    _module("inspect_ai", __path__=[])
    for name in ("agent", "dataset", "model", "scorer", "solver"):
        _module(f"inspect_ai.{name}")
    _module("inspect_ai.tool", ToolError=ToolError)
    _module("inspect_ai.util", StoreModel=StoreModel, store_as=store_as, kept=kept)
    if importlib.util.find_spec("inspect_evals.tau2.utils") is None:
        _module("inspect_evals.tau2.utils")


class _StandIn(types.ModuleType):
    """Has whatever is imported of it: any type, decorators that leave a function as it is, constants by their name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.isupper():
            return name
        return Any if name[0].isupper() else _leave


def _leave(*found: Any, **named: Any) -> Any:
    return found[0] if found and callable(found[0]) else _leave


def _module(name: str, **attributes: Any) -> None:
    module = _StandIn(name)
    vars(module).update(attributes)
    sys.modules[name] = module


# Worlds


def make_environment(actions: Iterable[Mapping[str, Json]]) -> Any:
    """Upstream's environment after these ``{"env_type", "func_name", "arguments"}``, from the databases as they lie."""
    return play(_environment(*_databases()), actions)


def play(environment: Any, actions: Iterable[Mapping[str, Json]]) -> Any:
    """The same environment, after actions that are no tool calls."""
    for action in actions:
        side = environment.user_tools if action["env_type"] == "user" else environment.tools
        getattr(side, action["func_name"])(**action["arguments"])
        environment.sync_tools()
    return environment


def declare(environment: Any) -> Json:
    """The world as JSON; `rebuild` gives one with the same databases again."""
    user = environment.user_tools.model_dump(mode="json", exclude={"initialized"})
    return {"agent": environment.tools.db.model_dump(mode="json"), "user": user}


def rebuild(state: Mapping[str, Json]) -> Any:
    """Upstream's environment with the databases of a declared state."""
    return _environment(state["agent"], state["user"]["db"])


def _environment(agent: Json, user: Json) -> Any:
    made = {
        "TelecomAgentTools": upstream("TelecomAgentTools").TelecomAgentTools(
            db=upstream("data_model").TelecomDB.model_validate(agent), initialized=True
        ),
        "TelecomUserTools": upstream("TelecomUserTools").TelecomUserTools(
            db=upstream("user_data_model").TelecomUserDB.model_validate(user), initialized=True
        ),
    }
    sys.modules["inspect_ai.util"].kept.update(made)
    # upstream names a new bill by chance: here the same calls lead to the same state
    bills = made["TelecomAgentTools"].db.bills
    vars(upstream("TelecomAgentTools"))["uuid"] = types.SimpleNamespace(
        uuid4=lambda: types.SimpleNamespace(hex=hashlib.sha256(f"bill {len(bills)}".encode()).hexdigest())
    )
    return upstream("environment").Environment(user_tools=made["TelecomUserTools"], tools=made["TelecomAgentTools"])


@functools.cache
def _databases() -> tuple[Json, Json]:
    path = next(found for folder in sys.path if (found := Path(folder) / WORLD).is_file())
    found = json.loads(path.read_text(encoding="utf-8"))
    return found["agent"], found["user"]


# Tools


@functools.cache
def tools() -> dict[str, Callable[..., Any]]:
    """By name, the agent's first, as upstream offers them: functions that look the world up in the store."""
    listed = [*upstream("tools").all_telecom_agent_tools, *upstream("user_tools").all_telecom_user_tools]
    return {make.__name__: make() for make in listed}


def call(execute: Callable[..., Any], arguments: Mapping[str, Json]) -> str:
    """What the tool answers. Raises ToolError."""
    pydantic = importlib.import_module("pydantic")
    try:
        given = _model(execute).model_validate(arguments)
    except pydantic.ValidationError as error:
        raise ToolError(str(error)) from error
    try:
        execute(**{name: getattr(given, name) for name in type(given).model_fields}).send(None)
    except StopIteration as done:
        return str(done.value)
    raise RuntimeError("a tool of upstream's waits for something")


def _tool(execute: Callable[..., Any], world: Mapping[str, Any]) -> Callable[..., str]:
    def tool(**arguments: Json) -> str:
        try:
            return call(execute, arguments)
        finally:
            world["environment"].sync_tools()

    return tool


@functools.cache
def _model(execute: Callable[..., Any]) -> Any:
    """Of the arguments."""
    pydantic = importlib.import_module("pydantic")
    signature = importlib.import_module("inspect").signature(execute)
    fields = {
        name: (each.annotation, ... if each.default is each.empty else each.default)
        for name, each in signature.parameters.items()
    }
    return pydantic.create_model(execute.__qualname__.partition(".")[0], **fields)


def _schema(execute: Callable[..., Any]) -> Json:
    schema = _flat(whole := _model(execute).model_json_schema(), whole.get("$defs", {}))
    told = re.findall(r"^\s*(\w+)(?: \([^)]*\))?: (.*)$", (execute.__doc__ or "").partition("Args:")[2], re.MULTILINE)
    for name, words in told:
        if name in schema.get("properties", {}):
            schema["properties"][name]["description"] = words
    return schema


def _flat(schema: Json, definitions: Mapping[str, Json]) -> Json:
    """Without references and without titles, which say the names again."""
    found = {key: value for key, value in schema.items() if key not in ("$defs", "$ref", "title")}
    if "$ref" in schema:
        found = {**_flat(definitions[schema["$ref"].rpartition("/")[2]], definitions), **found}
    if "properties" in schema:
        found["properties"] = {name: _flat(each, definitions) for name, each in schema["properties"].items()}
    if "anyOf" in schema:
        found["anyOf"] = [_flat(each, definitions) for each in schema["anyOf"]]
    return found


def _description(execute: Callable[..., Any]) -> str:
    """The docstring, up to what it says of arguments and results."""
    text = re.split(r"^\s*(?:Args|Returns|Raises):", execute.__doc__ or "", maxsplit=1, flags=re.MULTILINE)[0]
    return str(importlib.import_module("inspect").cleandoc(text))
