"""tau2's telecom environment as one MCP server over upstream's own tools, which are mounted beside this file.

Only upstream's tools and data models are mounted: no task, no gold call, no grader. The actions that prepare a task's
environment come with the setup. Modules of upstream's framework that are not needed here are replaced by stand-ins.
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
"""File on the import path with both databases in their initial state."""


def main() -> None:
    """Serve over standard input and output."""
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
    """Import and compute what every episode needs, for a fork server."""
    if "inspect_ai" not in sys.modules:
        stand_in()
        upstream("user_tools")
        upstream("tools")
        _databases()
        for execute in tools().values():
            _arguments_model(execute)


# Upstream


def upstream(name: str) -> Any:
    """A module of upstream's telecom domain."""
    return importlib.import_module(f"{TELECOM}.{name}")


def stand_in() -> None:
    """Install stand-ins for modules that upstream imports but that are not mounted."""
    pydantic = importlib.import_module("pydantic")
    stored: dict[str, Any] = {}

    class StoreModel(pydantic.BaseModel, arbitrary_types_allowed=True):  # type: ignore[call-arg, misc, name-defined]
        """Base of models in the store; upstream's tools look their models up there at each call."""

    def store_as(model: Any, name: str | None = None) -> Any:
        return stored[name or model.__name__]

    _module("inspect_ai", __path__=[])
    for name in ("agent", "dataset", "model", "scorer", "solver"):
        _module(f"inspect_ai.{name}")
    _module("inspect_ai.tool", ToolError=ToolError)
    _module("inspect_ai.util", StoreModel=StoreModel, store_as=store_as, stored=stored)
    if importlib.util.find_spec("inspect_evals.tau2.utils") is None:
        _module("inspect_evals.tau2.utils")


class _StandIn(types.ModuleType):
    """A module that has every attribute: types, decorators that change nothing, constants that equal their names."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.isupper():
            return name
        return Any if name[0].isupper() else _passthrough


def _passthrough(*arguments: Any, **options: Any) -> Any:
    return arguments[0] if arguments and callable(arguments[0]) else _passthrough


def _module(name: str, **attributes: Any) -> None:
    module = _StandIn(name)
    vars(module).update(attributes)
    sys.modules[name] = module


# Environments


def make_environment(actions: Iterable[Mapping[str, Json]]) -> Any:
    """Upstream's environment, from the initial databases, after these ``{"env_type", "func_name", "arguments"}``."""
    return apply_actions(_environment(*_databases()), actions)


def apply_actions(environment: Any, actions: Iterable[Mapping[str, Json]]) -> Any:
    """Run actions that are no tool calls, and return the same environment."""
    for action in actions:
        side = environment.user_tools if action["env_type"] == "user" else environment.tools
        getattr(side, action["func_name"])(**action["arguments"])
        environment.sync_tools()
    return environment


def declare(environment: Any) -> Json:
    """The environment as JSON; `rebuild` returns an environment with the same databases."""
    user = environment.user_tools.model_dump(mode="json", exclude={"initialized"})
    return {"agent": environment.tools.db.model_dump(mode="json"), "user": user}


def rebuild(state: Mapping[str, Json]) -> Any:
    """Upstream's environment with the databases of a declared state."""
    return _environment(state["agent"], state["user"]["db"])


def _environment(agent: Json, user: Json) -> Any:
    models = {
        "TelecomAgentTools": upstream("TelecomAgentTools").TelecomAgentTools(
            db=upstream("data_model").TelecomDB.model_validate(agent), initialized=True
        ),
        "TelecomUserTools": upstream("TelecomUserTools").TelecomUserTools(
            db=upstream("user_data_model").TelecomUserDB.model_validate(user), initialized=True
        ),
    }
    sys.modules["inspect_ai.util"].stored.update(models)
    # upstream gives a new bill a random id: with these ids the same calls lead to the same state
    bills = models["TelecomAgentTools"].db.bills
    vars(upstream("TelecomAgentTools"))["uuid"] = types.SimpleNamespace(
        uuid4=lambda: types.SimpleNamespace(hex=hashlib.sha256(f"bill {len(bills)}".encode()).hexdigest())
    )
    return upstream("environment").Environment(user_tools=models["TelecomUserTools"], tools=models["TelecomAgentTools"])


@functools.cache
def _databases() -> tuple[Json, Json]:
    path = next(path for folder in sys.path if (path := Path(folder) / WORLD).is_file())
    databases = json.loads(path.read_text(encoding="utf-8"))
    return databases["agent"], databases["user"]


# Tools


@functools.cache
def tools() -> dict[str, Callable[..., Any]]:
    """Tools by name, the agent's first, as upstream offers them: functions that look their models up in the store."""
    listed = [*upstream("tools").all_telecom_agent_tools, *upstream("user_tools").all_telecom_user_tools]
    return {make.__name__: make() for make in listed}


def call(execute: Callable[..., Any], arguments: Mapping[str, Json]) -> str:
    """The tool's answer. Raises ToolError."""
    pydantic = importlib.import_module("pydantic")
    try:
        values = _arguments_model(execute).model_validate(arguments)
    except pydantic.ValidationError as error:
        raise ToolError(str(error)) from error
    try:
        execute(**{name: getattr(values, name) for name in type(values).model_fields}).send(None)
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
def _arguments_model(execute: Callable[..., Any]) -> Any:
    """Pydantic model of a tool's arguments."""
    pydantic = importlib.import_module("pydantic")
    signature = importlib.import_module("inspect").signature(execute)
    fields = {
        name: (each.annotation, ... if each.default is each.empty else each.default)
        for name, each in signature.parameters.items()
    }
    return pydantic.create_model(execute.__qualname__.partition(".")[0], **fields)


def _schema(execute: Callable[..., Any]) -> Json:
    schema = _flatten(whole := _arguments_model(execute).model_json_schema(), whole.get("$defs", {}))
    section = (execute.__doc__ or "").partition("Args:")[2]
    for name, description in re.findall(r"^\s*(\w+)(?: \([^)]*\))?: (.*)$", section, re.MULTILINE):
        if name in schema.get("properties", {}):
            schema["properties"][name]["description"] = description
    return schema


def _flatten(schema: Json, definitions: Mapping[str, Json]) -> Json:
    """The schema without references, and without titles, which only repeat the names."""
    flat = {key: value for key, value in schema.items() if key not in ("$defs", "$ref", "title")}
    if "$ref" in schema:
        flat = {**_flatten(definitions[schema["$ref"].rpartition("/")[2]], definitions), **flat}
    if "properties" in schema:
        flat["properties"] = {name: _flatten(part, definitions) for name, part in schema["properties"].items()}
    if "anyOf" in schema:
        flat["anyOf"] = [_flatten(part, definitions) for part in schema["anyOf"]]
    return flat


def _description(execute: Callable[..., Any]) -> str:
    """The docstring up to its sections on arguments, results and errors."""
    text = re.split(r"^\s*(?:Args|Returns|Raises):", execute.__doc__ or "", maxsplit=1, flags=re.MULTILINE)[0]
    return str(importlib.import_module("inspect").cleandoc(text))
