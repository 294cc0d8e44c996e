"""Privileges between an agent and its servers: rules over tool calls, from a TOML file.

::

    default = "allow"                              # for calls that no rule applies to; or "forbid"

    [[rule]]
    effect = "forbid"                              # or "allow"
    tools = ["send_*"]                             # globs over the names that the servers give

    [[rule]]
    effect = "allow"
    priority = 1                                   # the highest that applies decides; among equals, forbid
    tools = ["send_money"]
    tasks = "banking_*"                            # glob over task ids
    arguments.amount = { maximum = 100 }           # JSON Schema, 2020-12, with known keywords and without $ref
    said = "(?i)pay"                               # regular expression that the user's words match
    known.recipient = ["prompt", "/contacts/*/iban"]
    fallback = "message"                           # after a forbid: message, terminate, or ask (the user)
    message = "Only known recipients, please."

A rule applies if tool and task match, a message of the user matches `said`, and every named argument of the call meets
its schema and, under `known`, comes from the user or the world. Each text in such an argument must be

* ``prompt``: whole words of a message of the user, or
* ``/pointer``: a value, or a key, at or below that place in the task's initial state (``*`` is every item there), or
* ``in /pointer``: whole words of a text at that place.

Text in a tool's result never counts by itself: strangers may have written it.

Source: Progent, arXiv:2504.11703, whose rules have priorities, effects, JSON Schema and fallbacks; `known` is our own.
"""

from __future__ import annotations

import fnmatch
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from gymcp.envs.layers import CallContext, CallNext, StopEpisode, refusal
from gymcp.envs.spec import EnvSpec
from gymcp.envs.wrappers.rule_schemas import find_schema_fault, matches_schema
from gymcp.errors import ConfigError
from gymcp.types import Json, Task, Tool, ToolCall, ToolResult

Effect = Literal["allow", "forbid"]
Fallback = Literal["message", "terminate", "ask"]
PROMPT, INSIDE = "prompt", "in "
_EFFECTS, _FALLBACKS = ("allow", "forbid"), ("message", "terminate", "ask")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivilegeRule:
    effect: Effect
    tools: tuple[str, ...]
    tasks: str = "*"
    priority: int = 0
    said: str = ""
    """Regular expression, searched in the user's messages; empty: any messages."""
    arguments: Mapping[str, Json] = field(default_factory=dict)
    """Argument -> JSON Schema."""
    known: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Argument -> places it may come from: ``prompt``, ``/pointer`` or ``in /pointer`` into the initial state."""
    fallback: Fallback = "message"
    message: str = ""

    def applies(self, task: Task, said: Sequence[str], call: ToolCall, arguments: Mapping[str, Json]) -> bool:
        """True if the rule is about this call. `said`: texts of the user's messages so far."""
        if not fnmatch.fnmatchcase(task.id, self.tasks):
            return False
        if not any(fnmatch.fnmatchcase(call.name, pattern) for pattern in self.tools):
            return False
        if self.said and not any(re.search(self.said, text) for text in said):
            return False
        schemas = ((arguments[name], schema) for name, schema in self.arguments.items() if name in arguments)
        if not all(matches_schema(value, schema) for value, schema in schemas):
            return False
        named = ((arguments[name], places) for name, places in self.known.items() if name in arguments)
        return all(_is_known(value, places, task, said) for value, places in named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Privileges:
    """The layer that enforces the rules. A forbidden call never reaches a server."""

    rules: tuple[PrivilegeRule, ...]
    default: Effect = "allow"

    def decide(
        self, task: Task, said: Sequence[str], call: ToolCall, arguments: Mapping[str, Json]
    ) -> PrivilegeRule | None:
        """The rule that forbids the call; None if it is allowed."""
        applying = [rule for rule in self.rules if rule.applies(task, said, call, arguments)]
        if not applying:
            return None if self.default == "allow" else PrivilegeRule(effect="forbid", tools=("*",))
        first = max(applying, key=lambda rule: (rule.priority, rule.effect == "forbid"))
        return first if first.effect == "forbid" else None

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
        rule = self.decide(context.task, context.user_texts, call, arguments)
        if rule is None:
            return await call_next(call, arguments)
        why = f"not allowed: {rule.message or f'the privileges forbid this call of {call.name}'}"
        if rule.fallback == "terminate":
            raise StopEpisode(why)
        if rule.fallback == "ask" and await context.confirm(f"May {call.name} be called with {dict(arguments)}?"):
            return await call_next(call, arguments)
        return refusal(call, why)

    def settings(self) -> Json:
        return {"privileges": self.to_row()}

    def to_row(self) -> dict[str, Json]:
        """The rules in the form that `parse_privileges` reads."""
        return {"default": self.default, "rule": [asdict(rule) for rule in self.rules]}


def enforce_privileges(spec: EnvSpec, privileges: Privileges) -> EnvSpec:
    """The environment with the rules in force, next to the servers, so that no layer can change a call after them."""
    return replace(spec, layers=(privileges, *spec.layers))


def find_blocked_gold(tasks: Iterable[Task], privileges: Privileges) -> Iterator[tuple[Task, ToolCall]]:
    """All gold calls that are forbidden. This is a proof, as rules see only prompts, initial state and arguments."""
    for task in tasks:
        for turn, gold in enumerate(task.gold):
            for call in gold.calls:
                arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
                if privileges.decide(task, task.prompts[: turn + 1], call, arguments):
                    yield task, call


def check_rules(privileges: Privileges, tools: Mapping[str, Tool], tasks: Sequence[Task]) -> None:
    """Raises ConfigError for a rule about tools, arguments or tasks that do not exist."""
    for number, rule in enumerate(privileges.rules, 1):
        if not any(fnmatch.fnmatchcase(task.id, rule.tasks) for task in tasks):
            some = ", ".join(task.id for task in tasks[:3])
            raise ConfigError(f"privileges: rule {number}: no task '{rule.tasks}'; the ids look like {some}, ...")
        for pattern in rule.tools:
            matching = [tool for name, tool in tools.items() if fnmatch.fnmatchcase(name, pattern)]
            if not matching:
                raise ConfigError(f"privileges: rule {number}: no tool '{pattern}'; have {', '.join(sorted(tools))}")
            for argument in (*rule.arguments, *rule.known):
                if not any(argument in tool.input_schema.get("properties", {}) for tool in matching):
                    have = sorted({name for tool in matching for name in tool.input_schema.get("properties", {})})
                    raise ConfigError(
                        f"privileges: rule {number}: tool '{pattern}' has no argument '{argument}'; have "
                        f"{', '.join(have) or 'none'}"
                    )


def read_privileges(path: Path) -> Privileges:
    """The privileges in a TOML file. Raises ConfigError, which names the file, the rule and the fault."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"privileges '{path}': cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"privileges '{path}': is not TOML: {error}") from error
    privileges = parse_privileges(content, str(path))
    if not privileges.rules and privileges.default == "allow":
        raise ConfigError(f"privileges '{path}': has no rule, and allows what no rule applies to: it forbids nothing")
    return privileges


def parse_privileges(content: Mapping[str, Json], where: str) -> Privileges:
    """The privileges in a file's content or in the record of a run. Raises ConfigError."""
    who = f"privileges '{where}'"
    _check_keys(who, content, {"default", "rule"})
    default = _one_of(who, "default", content.get("default", "allow"), _EFFECTS)
    rows = content.get("rule", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{who}: rule must be an array of tables: [[rule]]")
    rules = tuple(_parse_rule(f"{who}: rule {number}", row) for number, row in enumerate(rows, 1))
    return Privileges(rules=rules, default="allow" if default == "allow" else "forbid")


def _parse_rule(who: str, row: Mapping[str, Json]) -> PrivilegeRule:
    _check_keys(who, row, {"effect", "tools", "tasks", "priority", "said", "arguments", "known", "fallback", "message"})
    effect = _one_of(who, "effect", row.get("effect"), _EFFECTS)
    fallback = _one_of(who, "fallback", row.get("fallback", "message"), _FALLBACKS)
    tools, tasks, priority = row.get("tools"), row.get("tasks", "*"), row.get("priority", 0)
    if not isinstance(tools, list | tuple) or not tools or not all(isinstance(tool, str) for tool in tools):
        raise ConfigError(f"{who}: tools must be a list of names or globs, not {tools!r}")
    if not all(isinstance(text, str) for text in (tasks, row.get("said", ""), row.get("message", ""))):
        raise ConfigError(f"{who}: tasks, said and message must be texts")
    try:
        re.compile(row.get("said", ""))
    except re.error as error:
        raise ConfigError(f"{who}: said: not a regular expression: {error}") from error
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise ConfigError(f"{who}: priority must be a whole number, not {priority!r}")
    arguments, known = row.get("arguments", {}), row.get("known", {})
    if not isinstance(arguments, dict) or not isinstance(known, dict):
        raise ConfigError(f"{who}: arguments and known must be tables")
    for name, schema in arguments.items():
        if fault := find_schema_fault(schema):
            raise ConfigError(f"{who}: arguments.{name}: not a JSON Schema: {fault}")
    for name, places in known.items():
        if not isinstance(places, list | tuple) or not all(_is_place(place) for place in places):
            raise ConfigError(
                f"{who}: known.{name}: must be a list of 'prompt', '/pointer' and 'in /pointer', not {places!r}"
            )
    return PrivilegeRule(
        effect="allow" if effect == "allow" else "forbid",
        tools=tuple(tools),
        tasks=tasks,
        priority=priority,
        said=row.get("said", ""),
        arguments=arguments,
        known={name: tuple(places) for name, places in known.items()},
        fallback="terminate" if fallback == "terminate" else "ask" if fallback == "ask" else "message",
        message=row.get("message", ""),
    )


def _check_keys(who: str, table: Mapping[str, Json], keys: set[str]) -> None:
    if unknown := sorted(table.keys() - keys):
        raise ConfigError(f"{who}: no key '{unknown[0]}'; have {', '.join(sorted(keys))}")


def _one_of(who: str, key: str, value: Json, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ConfigError(f"{who}: {key} must be one of {', '.join(known)}, not {value!r}")
    return str(value)


def _is_place(place: Json) -> bool:
    return isinstance(place, str) and (place == PROMPT or place.removeprefix(INSIDE).startswith("/"))


def _is_known(value: Json, places: Sequence[str], task: Task, said: Sequence[str]) -> bool:
    values: set[str] = set()
    texts = list(said) if PROMPT in places else []
    for place in places:
        if place.startswith("/"):
            values.update(_texts(_at(task.initial_state, place), keys=True))
        elif place != PROMPT:
            texts += _texts(_at(task.initial_state, place.removeprefix(INSIDE)))
    return all(text in values or _is_said(text, texts) for text in _texts([value]))


def _is_said(text: str, texts: Sequence[str]) -> bool:
    """True if the text is in one of the texts as whole words, ignoring case."""
    if not text.strip():
        return False
    words = re.compile(rf"(?<!\w){re.escape(text)}(?!\w)", re.IGNORECASE)
    return any(words.search(candidate) for candidate in texts)


def _at(world: Json, pointer: str) -> list[Json]:
    """The values at a JSON Pointer (RFC 6901) in which ``*`` stands for every key or item."""
    values = [world]
    for part in pointer.split("/")[1:]:
        values = [inner for value in values for inner in _children(value, part.replace("~1", "/").replace("~0", "~"))]
    return values


def _children(value: Json, part: str) -> list[Json]:
    if isinstance(value, Mapping):
        return list(value.values()) if part == "*" else [value[part]] if part in value else []
    if isinstance(value, list | tuple):
        return list(value) if part == "*" else [value[int(part)]] if part.isdigit() and int(part) < len(value) else []
    return []


def _texts(values: Iterable[Json], *, keys: bool = False) -> Iterator[str]:
    """All texts and numbers in the values, as texts; `keys`: those of mappings, too."""
    for value in values:
        if isinstance(value, Mapping):
            yield from map(str, value) if keys else ()
            yield from _texts(value.values(), keys=keys)
        elif isinstance(value, list | tuple):
            yield from _texts(value, keys=keys)
        elif value is not None:
            yield str(value)
