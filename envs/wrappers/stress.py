"""Stressors: layers that make tools worse, one at a time or several at once. Their random choices follow from the seed.

Source of the idea: C3-Bench, arXiv:2505.18746, which perturbs one factor at a time and reports the drop.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from gymcp.envs.layers import CallContext, CallNext, Layer, refusal
from gymcp.envs.spec import EnvSpec
from gymcp.errors import ConfigError
from gymcp.types import Json, Tool, ToolCall, ToolResult

TRANSIENT = "temporarily unavailable"
"""Text in the result of a call that fails for now; the same call may succeed when it is repeated."""
_NOISE = (
    "DEBUG cache miss, refreshed",
    "WARN retrying connection 2/3",
    "INFO served by node 7",
    "-- ad: try our app --",
)


class _Transparent:
    """A layer that changes nothing; stressors override one of its methods."""

    __slots__ = ()

    def filter_tools(self, context: CallContext, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        return tools

    async def handle_call(
        self,
        context: CallContext,
        call: ToolCall,
        arguments: Mapping[str, Json],
        tools: tuple[Tool, ...],
        call_next: CallNext,
    ) -> ToolResult:
        return await call_next(call, arguments)

    def settings(self) -> Json:
        fields: Any = self  # every stressor is a dataclass
        return {type(self).__name__: asdict(fields)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency(_Transparent):
    """Calls take longer. The time is recorded and counts towards the tools' budget, but nothing waits for it."""

    mean_s: float = 20.0
    """Mean of the additional seconds, which are exponentially distributed."""

    async def handle_call(
        self,
        context: CallContext,
        call: ToolCall,
        arguments: Mapping[str, Json],
        tools: tuple[Tool, ...],
        call_next: CallNext,
    ) -> ToolResult:
        result = await call_next(call, arguments)
        return replace(result, seconds=result.seconds + context.make_call_rng("latency").expovariate(1 / self.mean_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults(_Transparent):
    """A call fails before a server receives it, and may succeed when it is repeated."""

    rate: float = 0.3
    """Probability that a call fails."""

    async def handle_call(
        self,
        context: CallContext,
        call: ToolCall,
        arguments: Mapping[str, Json],
        tools: tuple[Tool, ...],
        call_next: CallNext,
    ) -> ToolResult:
        if context.make_call_rng("faults").random() < self.rate:
            return refusal(call, f"{call.name}: {TRANSIENT}; try again")
        return await call_next(call, arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated(_Transparent):
    """Only the beginning of a result arrives."""

    chars: int = 40
    """Characters that arrive."""

    async def handle_call(
        self,
        context: CallContext,
        call: ToolCall,
        arguments: Mapping[str, Json],
        tools: tuple[Tool, ...],
        call_next: CallNext,
    ) -> ToolResult:
        result = await call_next(call, arguments)
        return replace(result, content=result.content[: self.chars])


@dataclass(frozen=True, slots=True, kw_only=True)
class Noisy(_Transparent):
    """Meaningless lines stand before and after a result."""

    async def handle_call(
        self,
        context: CallContext,
        call: ToolCall,
        arguments: Mapping[str, Json],
        tools: tuple[Tool, ...],
        call_next: CallNext,
    ) -> ToolResult:
        result = await call_next(call, arguments)
        before, after = context.make_call_rng("noise").sample(_NOISE, 2)
        return replace(result, content=f"[{before}]\n{result.content}\n[{after}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed(_Transparent):
    """Tools and their parameters have other names, made of the same words."""

    from_step: int = 0
    """First step of the episode with the other names."""

    def filter_tools(self, context: CallContext, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        if len(context.steps) < self.from_step:
            return tools
        return tuple(_rename(tool) for tool in tools)

    async def handle_call(
        self,
        context: CallContext,
        call: ToolCall,
        arguments: Mapping[str, Json],
        tools: tuple[Tool, ...],
        call_next: CallNext,
    ) -> ToolResult:
        if len(context.steps) < self.from_step:
            return await call_next(call, arguments)
        own = next(tool for tool in tools if _other_name(tool.name) == call.name)
        own_names = {_other_name(name): name for name in own.input_schema.get("properties", {})}
        if old := sorted(name for name in arguments if name not in own_names):
            return refusal(call, f"{call.name}: unknown argument '{old[0]}'; have {', '.join(own_names) or 'none'}")
        own_arguments = {own_names[name]: value for name, value in arguments.items()}
        own_call = replace(call, name=own.name)
        result = await call_next(own_call, own_arguments)
        return replace(result, executed_call=result.executed_call or replace(own_call, arguments=own_arguments))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reordered(_Transparent):
    """The tools have another order in every episode."""

    def filter_tools(self, context: CallContext, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        return tuple(context.make_episode_rng("order").sample(tools, len(tools)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Distractors(_Transparent):
    """Tools that do nothing stand among the others; each answers that nothing was found."""

    count: int = 10
    """Number of such tools."""

    def filter_tools(self, context: CallContext, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        names = {tool.name for tool in tools}
        more = [tool for tool in _distractors() if tool.name not in names]
        random = context.make_episode_rng("distractors")
        return tuple(random.sample([*tools, *more[: self.count]], len(tools) + len(more[: self.count])))

    async def handle_call(
        self,
        context: CallContext,
        call: ToolCall,
        arguments: Mapping[str, Json],
        tools: tuple[Tool, ...],
        call_next: CallNext,
    ) -> ToolResult:
        if call.name in {tool.name for tool in tools}:
            return await call_next(call, arguments)
        return ToolResult(call_id=call.id, content="nothing found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale(_Transparent):
    """A repeated call gets the result of the first one, although the call is made and has its effects."""

    async def handle_call(
        self,
        context: CallContext,
        call: ToolCall,
        arguments: Mapping[str, Json],
        tools: tuple[Tool, ...],
        call_next: CallNext,
    ) -> ToolResult:
        result = await call_next(call, arguments)
        for step in context.steps:
            for earlier, answer in zip(step.action.tool_calls, step.results, strict=False):
                forms = [(form.name, form.arguments) for form in (earlier, answer.executed_call) if form is not None]
                if (call.name, arguments) in forms and not answer.is_error:
                    return replace(result, content=answer.content, is_error=False)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing(_Transparent):
    """Some of the tools are missing for a whole episode."""

    share: float = 0.1
    """Share of the tools that are missing; at least one is."""

    def filter_tools(self, context: CallContext, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        names = [tool.name for tool in tools]
        count = max(1, round(self.share * len(names))) if names else 0
        missing = set(context.make_episode_rng("missing").sample(names, count))
        return tuple(tool for tool in tools if tool.name not in missing)


STRESSORS: dict[str, Layer] = {
    "latency": Latency(),
    "faults": Faults(),
    "truncated": Truncated(),
    "noisy": Noisy(),
    "renamed": Renamed(),
    "reordered": Reordered(),
    "distractors": Distractors(),
    "changed": Renamed(from_step=1),
    "stale": Stale(),
    "missing": Missing(),
}
"""Stressors by name; ``changed`` is ``renamed`` from the second step on."""


def add_stressors(spec: EnvSpec, names: Iterable[str]) -> EnvSpec:
    """The environment under these stressors, the first innermost. Raises ConfigError for an unknown name."""
    names = tuple(names)
    if unknown := [name for name in names if name not in STRESSORS]:
        raise ConfigError(f"no stressor '{unknown[0]}'; have {', '.join(STRESSORS)}")
    return replace(spec, layers=(*spec.layers, *(STRESSORS[name] for name in names)))


def split_name(name: str) -> list[str]:
    """The words of a name: get, user, info for both ``getUserInfo`` and ``get_user_info``."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", name)]


def _other_name(name: str) -> str:
    """The name's words in camel case; a name that would remain the same gets one word more."""
    first, *rest = split_name(name) or [name]
    other = first + "".join(word.capitalize() for word in rest)
    return other if other != name else f"{name}Value"


def _rename(tool: Tool) -> Tool:
    schema = dict(tool.input_schema)
    schema["properties"] = {_other_name(name): value for name, value in schema.get("properties", {}).items()}
    if "required" in schema:
        schema["required"] = [_other_name(name) for name in schema["required"]]
    return replace(tool, name=_other_name(tool.name), input_schema=schema)


def _distractors() -> Iterator[Tool]:
    for verb in ("search", "list", "describe", "export"):
        for noun in ("archives", "invoices", "tickets", "sensors", "vehicles", "recipes", "contracts", "forecasts"):
            properties = {"query": {"type": "string", "description": f"Which {noun}."}}
            schema = {"type": "object", "properties": properties, "required": ["query"]}
            yield Tool(name=f"{verb}_{noun}", description=f"{verb.capitalize()} {noun}.", input_schema=schema)
