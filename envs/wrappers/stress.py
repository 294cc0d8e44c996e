"""What makes tools worse than they are, one stressor at a time or several at once; what each does is drawn with a seed.

Source of the idea: C3-Bench, arXiv:2505.18746, which perturbs one factor at a time and reports the drop.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from gymcp.envs.layers import GoOn, Layer, Scene, refusal
from gymcp.envs.spec import EnvSpec
from gymcp.errors import ConfigError
from gymcp.types import Json, Tool, ToolCall, ToolResult

TRANSIENT = "temporarily unavailable"
"""In the answer of a call that fails once; the same call may succeed when it is made again."""
_NOISE = (
    "DEBUG cache miss, refreshed",
    "WARN retrying connection 2/3",
    "INFO served by node 7",
    "-- ad: try our app --",
)


class _Plain:
    """The layer that changes nothing, for stressors to build on."""

    __slots__ = ()

    def offer(self, scene: Scene, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        return tools

    async def call(
        self, scene: Scene, call: ToolCall, arguments: Mapping[str, Json], tools: tuple[Tool, ...], go_on: GoOn
    ) -> ToolResult:
        return await go_on(call, arguments)

    def settings(self) -> Json:
        fields: Any = self  # every stressor is a dataclass
        return {type(self).__name__: asdict(fields)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency(_Plain):
    """Calls take longer. The time is charged to the tools' budget and recorded, but nobody waits for it."""

    mean_s: float = 20.0

    async def call(
        self, scene: Scene, call: ToolCall, arguments: Mapping[str, Json], tools: tuple[Tool, ...], go_on: GoOn
    ) -> ToolResult:
        result = await go_on(call, arguments)
        return replace(result, seconds=result.seconds + scene.draw("latency").expovariate(1 / self.mean_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults(_Plain):
    """A call fails before any server hears of it, and may succeed when it is made again."""

    rate: float = 0.3

    async def call(
        self, scene: Scene, call: ToolCall, arguments: Mapping[str, Json], tools: tuple[Tool, ...], go_on: GoOn
    ) -> ToolResult:
        if scene.draw("faults").random() < self.rate:
            return refusal(call, f"{call.name}: {TRANSIENT}; try again")
        return await go_on(call, arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncated(_Plain):
    """Of a result only the beginning arrives."""

    chars: int = 40

    async def call(
        self, scene: Scene, call: ToolCall, arguments: Mapping[str, Json], tools: tuple[Tool, ...], go_on: GoOn
    ) -> ToolResult:
        result = await go_on(call, arguments)
        return replace(result, content=result.content[: self.chars])


@dataclass(frozen=True, slots=True, kw_only=True)
class Noisy(_Plain):
    """Lines that say nothing stand before and after a result."""

    async def call(
        self, scene: Scene, call: ToolCall, arguments: Mapping[str, Json], tools: tuple[Tool, ...], go_on: GoOn
    ) -> ToolResult:
        result = await go_on(call, arguments)
        before, after = scene.draw("noise").sample(_NOISE, 2)
        return replace(result, content=f"[{before}]\n{result.content}\n[{after}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed(_Plain):
    """Tools and their parameters have other names made of the same words, from a step of the episode on."""

    from_step: int = 0

    def offer(self, scene: Scene, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        if len(scene.steps) < self.from_step:
            return tools
        return tuple(_renamed(tool) for tool in tools)

    async def call(
        self, scene: Scene, call: ToolCall, arguments: Mapping[str, Json], tools: tuple[Tool, ...], go_on: GoOn
    ) -> ToolResult:
        if len(scene.steps) < self.from_step:
            return await go_on(call, arguments)
        own = next(tool for tool in tools if _other_name(tool.name) == call.name)
        back = {_other_name(name): name for name in own.input_schema.get("properties", {})}
        if old := sorted(name for name in arguments if name not in back):
            return refusal(call, f"{call.name}: unknown argument '{old[0]}'; have {', '.join(back) or 'none'}")
        named = {back[name]: value for name, value in arguments.items()}
        known = replace(call, name=own.name)
        result = await go_on(known, named)
        return replace(result, executed_call=result.executed_call or replace(known, arguments=named))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reordered(_Plain):
    """The tools come in another order in every episode."""

    def offer(self, scene: Scene, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        return tuple(scene.draw_once("order").sample(tools, len(tools)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Distractors(_Plain):
    """Tools that do nothing stand among the others; one that is called has found nothing."""

    count: int = 10

    def offer(self, scene: Scene, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        taken = {tool.name for tool in tools}
        more = [tool for tool in _distractors() if tool.name not in taken]
        random = scene.draw_once("distractors")
        return tuple(random.sample([*tools, *more[: self.count]], len(tools) + len(more[: self.count])))

    async def call(
        self, scene: Scene, call: ToolCall, arguments: Mapping[str, Json], tools: tuple[Tool, ...], go_on: GoOn
    ) -> ToolResult:
        if call.name in {tool.name for tool in tools}:
            return await go_on(call, arguments)
        return ToolResult(call_id=call.id, content="nothing found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stale(_Plain):
    """A tool that is called again as before answers what it had answered then; the call is made all the same."""

    async def call(
        self, scene: Scene, call: ToolCall, arguments: Mapping[str, Json], tools: tuple[Tool, ...], go_on: GoOn
    ) -> ToolResult:
        result = await go_on(call, arguments)
        for step in scene.steps:
            for made, answer in zip(step.action.tool_calls, step.results, strict=False):
                names = [(each.name, each.arguments) for each in (made, answer.executed_call) if each is not None]
                if (call.name, arguments) in names and not answer.is_error:
                    return replace(result, content=answer.content, is_error=False)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing(_Plain):
    """Some of the tools are not there in an episode."""

    share: float = 0.1

    def offer(self, scene: Scene, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        names = [tool.name for tool in tools]
        gone = set(scene.draw_once("missing").sample(names, max(1, round(self.share * len(names))) if names else 0))
        return tuple(tool for tool in tools if tool.name not in gone)


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
"""By name; ``changed`` is ``renamed`` in mid-episode."""


def stressed(spec: EnvSpec, names: Iterable[str]) -> EnvSpec:
    """The environment under these stressors, the first innermost. Raises ConfigError for one that there is not."""
    chosen = tuple(names)
    if unknown := [name for name in chosen if name not in STRESSORS]:
        raise ConfigError(f"no stressor '{unknown[0]}'; have {', '.join(STRESSORS)}")
    return replace(spec, layers=(*spec.layers, *(STRESSORS[name] for name in chosen)))


def words_in(name: str) -> list[str]:
    """``getUserInfo`` and ``get_user_info`` are both get, user, info."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", name)]


def _other_name(name: str) -> str:
    """The words in camel case; a name of one word that would stay the same gets one more."""
    first, *rest = words_in(name) or [name]
    other = first + "".join(word.capitalize() for word in rest)
    return other if other != name else f"{name}Value"


def _renamed(tool: Tool) -> Tool:
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
