"""The environments of AgentDojo as one MCP server over upstream's own tools, which are mounted beside this file.

Only upstream's tools and data models are mounted: no task, no gold call, no grader, no data. The environment's data
come with the setup. The clock stands still at the evening of the environment's own day, so that the same calls lead to
the same state.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import sys
import types
from collections.abc import Mapping
from typing import Any

from gymcp.mcp_servers.native.runtime import Server, ToolError

Json = Any
VERSION = "1"
SUITES = ("workspace", "travel", "banking", "slack")
EVENING = datetime.time(20, 0)
DAY = datetime.date(2024, 5, 15)
"""Day of an environment that has no day of its own; such an environment makes no timestamps either."""
_MODULES_WITH_CLOCK = ("calendar_client", "cloud_drive_client", "email_client")


def main() -> None:
    """Serve over standard input and output."""
    preload()
    server = Server("agentdojo", version=VERSION)
    world: dict[str, Any] = {}

    @server.setup
    def setup(initial_state: Json, seed: int) -> None:
        suite = suites()[initial_state["suite"]]
        world["suite"] = initial_state["suite"]
        world["environment"] = make_environment(initial_state)
        runtime = importlib.import_module("agentdojo.functions_runtime").FunctionsRuntime(suite.tools)
        for function in suite.tools:
            server.add_tool(
                functools.partial(call, runtime, world["environment"], function.name),
                name=function.name,
                description=function.description,
                input_schema=function.parameters.model_json_schema(),
            )

    @server.state
    def state() -> Json:
        return {"suite": world["suite"], "environment": declare(world["environment"])} if world else None

    server.run()


def preload() -> None:
    """Import what every episode needs, for a fork server."""
    if "agentdojo.task_suite.task_suite" not in sys.modules:
        stub("agentdojo.task_suite", __path__=[])
        stub("agentdojo.task_suite.task_suite", TaskSuite=Suite)
        suites()


class Suite:
    """Replaces upstream's class of this name, which also has tasks: name, environment type and tools only."""

    def __class_getitem__(cls, environment: Any) -> Any:
        return cls

    def __init__(self, name: str, environment_type: Any, tools: list[Any]) -> None:
        self.name, self.environment_type, self.tools = name, environment_type, tools


def stub(name: str, **attributes: Any) -> None:
    """Install a stand-in for an upstream module that is not needed and imports half a gigabyte."""
    module = types.ModuleType(name)
    vars(module).update(attributes)
    sys.modules[name] = module


@functools.cache
def suites() -> dict[str, Any]:
    """Upstream's suites by name, or their stand-ins here."""
    return {
        name: importlib.import_module(f"agentdojo.default_suites.v1.{name}.task_suite").task_suite for name in SUITES
    }


def make_environment(initial_state: Json) -> Any:
    """{"suite": name, "environment": data} -> upstream's model of the environment; sets the clock to its evening."""
    environment = suites()[initial_state["suite"]].environment_type.model_validate(initial_state["environment"])
    calendar = getattr(environment, "calendar", None)
    set_clock(datetime.datetime.combine(calendar.current_day if calendar else DAY, EVENING))
    return environment


def set_clock(now: datetime.datetime) -> None:
    """Make `now` the time of all timestamps of upstream's tools, which would otherwise use the real time."""

    class FixedDatetime(datetime.datetime):
        def __new__(cls, *parts: Any, **named: Any) -> Any:  # creates plain datetimes: YAML cannot write a subclass
            return datetime.datetime(*parts, **named)

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return now

    clock = types.SimpleNamespace(**{**vars(datetime), "datetime": FixedDatetime})
    for name in _MODULES_WITH_CLOCK:
        vars(importlib.import_module(f"agentdojo.default_suites.v1.tools.{name}"))["datetime"] = clock


def call(runtime: Any, environment: Any, tool: str, /, **arguments: Json) -> str:
    """The text that upstream's agents see. Raises ToolError with upstream's message."""
    result, error = runtime.run_function(environment, tool, arguments)
    if error:
        raise ToolError(error)
    return format_result(result)


def format_result(result: Any) -> str:
    """A tool's result as upstream formats it: YAML for models and lists."""
    dump = importlib.import_module("yaml").safe_dump
    if hasattr(result, "model_dump"):
        return str(dump(result.model_dump())).strip()
    if isinstance(result, list):
        items = [item.model_dump() if hasattr(item, "model_dump") else item for item in result]
        return str(dump([str(item) if type(item) is int else item for item in items])).strip()
    return str(result)


def declare(environment: Any) -> Json:
    """The environment as JSON without derived fields; `rebuild` returns an equal environment."""
    return environment.model_dump(mode="json", exclude=_find_derived_fields(type(environment)))


def rebuild(model: Any, state: Mapping[str, Json]) -> Any:
    """The environment of a declared state, built without validators, which would reset it to a fresh one."""
    pydantic = importlib.import_module("pydantic")
    return model.model_construct(
        **{
            name: _convert(pydantic, field.annotation, state[name])
            for name, field in model.model_fields.items()
            if name in state
        }
    )


def _convert(pydantic: Any, kind: Any, value: Json) -> Any:
    inside: list[Any] = list(getattr(kind, "__args__", ()))
    if isinstance(value, dict):
        model = next((k for k in (kind, *inside) if _is_model(pydantic, k)), None)
        if model is not None and getattr(kind, "__origin__", None) is not dict:
            return rebuild(model, value)
        if len(inside) == 2:
            return {_convert(pydantic, inside[0], k): _convert(pydantic, inside[1], v) for k, v in value.items()}
    if isinstance(value, list) and len(inside) == 1:
        return [_convert(pydantic, inside[0], item) for item in value]
    return pydantic.TypeAdapter(kind).validate_python(value)


def _is_model(pydantic: Any, kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def _find_derived_fields(model: Any) -> dict[str, Any]:
    """Fields that pydantic leaves out: computed fields, and the lists from which validators make the rest."""
    derived: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        fields = getattr(field.annotation, "model_fields", {})
        names = {part for part in fields if part.startswith("initial_")}
        if names := names | set(getattr(field.annotation, "model_computed_fields", ())):
            derived[name] = names
    return derived
