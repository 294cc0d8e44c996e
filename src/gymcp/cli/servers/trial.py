"""Try out the tools of a server that `gymcp new` locks: a call for a first task, and the files that calls change."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gymcp.agents.strategies.random_arguments import sample_instance
from gymcp.cli.servers.state_kinds import MAX_NAMES, Files, StateChoice, choose_state, find_changes
from gymcp.envs.audit.repeats import AnswerPair, find_difference
from gymcp.envs.episodes.network_failures import lacks_network
from gymcp.errors import EnvInfraError, ServerTimeout
from gymcp.evaluators.names import WITHOUT_NETWORK
from gymcp.mcp_servers.packages.locked_server import make_spec
from gymcp.mcp_servers.packages.lockfile import LockedServer
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.spec import FileState, ServerSpec
from gymcp.types import Json, Tool, ToolCall, ToolResult

CALLS_PER_TOOL = 6
"""Most calls of one tool with random arguments, until one succeeds."""
CALL_TIMEOUT_S = 10.0
CALL_LIMIT = "the limit of a trial call"
TRIAL_S, FRUITLESS_TRIAL_S = 60.0, 120.0
"""Seconds after which no further tool is called: once a call has succeeded, and at all."""
MAX_CANDIDATES = 4
"""Calls that are tried alone, on fresh servers, until one of them is fit for a first task."""
_ERROR = re.compile(r"\W*(\w+\W+){0,2}(error|exception|failed|invalid)\b", re.IGNORECASE)
"""Beginning of an answer that reports an error, though its server does not say that it is one."""
REMOTE = StateChoice(state="opaque", reason="it runs elsewhere, so nothing is known of what it keeps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Tools of the server, a call of one of them, and the state kind that fits."""

    tools: tuple[Tool, ...]
    call: ToolCall
    state: StateChoice
    succeeded: bool | None = None
    """None: the call was not made."""
    changed: tuple[str, ...] = ()
    """Paths of the files that the call changes."""
    offline: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Calls that failed for want of network, by tool, under the key of `Usage.tools`."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """First error of each tool of which no call succeeded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A call that succeeded among others."""

    rank: int
    """2: it changed files. 1: it did not. 0: its answer reads like an error."""
    call: ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alone:
    """One call on a fresh server: the answer, and the files before and after it."""

    call: ToolCall
    result: ToolResult
    before: Files
    after: Files


@dataclass(slots=True, kw_only=True)
class _Calls:
    """The trial calls of all tools, as they go on."""

    best: dict[str, _Candidate] = field(default_factory=dict)
    """Best call of each tool that has succeeded."""
    errors: dict[str, str] = field(default_factory=dict)
    """First error of each tool."""
    offline: Counter[str] = field(default_factory=Counter)
    """Number of calls that failed for want of network, by tool."""
    tried: set[str] = field(default_factory=set)
    answers: int = 0
    lost: EnvInfraError | None = None
    """The first loss of the server."""
    began: float = field(default_factory=time.monotonic)

    def is_late(self) -> bool:
        return time.monotonic() > self.began + (TRIAL_S if self.best else FRUITLESS_TRIAL_S)


async def try_out(entry: LockedServer, backend: Sandbox) -> Trial:
    """Call each tool with random valid arguments until a call succeeds, then the best calls alone, twice each.

    Nothing is called on a remote server, because effects there cannot be undone. Raises EnvInfraError if the server
    does not start.
    """
    if entry.runtime == "remote":
        async with open_session(make_spec(entry), backend, initial_state=None, seed=0) as session:
            return Trial(tools=session.tools, call=_first_call(session.tools), state=REMOTE)
    spec = make_spec(entry, state=FileState())
    calls, (tools, start, end) = await _call_all(spec, backend)
    candidates = sorted(calls.best.values(), key=lambda candidate: -candidate.rank)
    plays = await _find_task(spec, backend, candidates)
    starts = [play.before for play in plays] or [await _read_start(spec, backend)]
    alike = bool(plays) and _answer_alike(plays)
    state = choose_state([start, *starts], end, tools, alike=alike, succeeded=bool(candidates))
    offline = {name: {WITHOUT_NETWORK: count} for name, count in calls.offline.items()}
    errors = {name: error for name, error in calls.errors.items() if name not in calls.best}
    call = candidates[0].call if candidates else _first_call(tools)
    trial = Trial(tools=tools, call=call, state=state, succeeded=bool(plays), offline=offline, errors=errors)
    if not plays:
        return trial
    first, second = plays
    if varying := sorted(find_changes(first.after, second.after)):
        state = replace(state, reason=f"{state.reason}; {', '.join(varying[:MAX_NAMES])}: other content each time")
    return replace(trial, call=first.call, state=state, changed=tuple(sorted(find_changes(first.before, first.after))))


async def _call_all(spec: ServerSpec, backend: Sandbox) -> tuple[_Calls, tuple[tuple[Tool, ...], Files, Files | None]]:
    """(calls of all tools; the tools, the files before them and after them), on a new server after each loss of one.

    The files afterwards are None if they could not be read. Raises EnvInfraError if no tool answers.
    """
    calls = _Calls()
    seen: list[tuple[Files, Files | None]] = []
    goes_on = True
    while goes_on:
        async with open_session(spec, backend, initial_state=None, seed=0) as session:
            tools = session.tools
            before = await _read_files(session) or {}
            goes_on = await _call_tools(session, calls)
            seen.append((before, await _read_files(session)))
    if not calls.answers:
        raise calls.lost or ServerTimeout(f"server '{spec.name}': no tool answers: {next(iter(calls.errors.values()))}")
    ends = [find_changes(before, after) for before, after in seen if after is not None]
    start = seen[0][0]
    end = {**start, **{path: entry for changes in ends for path, entry in changes.items()}} if ends else None
    return calls, (tools, start, end)


async def _find_task(spec: ServerSpec, backend: Sandbox, candidates: Sequence[_Candidate]) -> list[_Alone]:
    """Two plays, each on a fresh server, of the best call that succeeds there; empty if none does.

    A call that leaves the same files both times comes before one that does not.
    """
    works: list[_Alone] = []
    for candidate in candidates[:MAX_CANDIDATES]:
        first = await _call_alone(spec, backend, candidate.call)
        second = first if first.result.is_error else await _call_alone(spec, backend, candidate.call)
        if second.result.is_error:
            continue
        if first.after == second.after:
            return [first, second]
        works = works or [first, second]
    return works


async def _call_tools(session: ToolSession, calls: _Calls) -> bool:
    """Call the tools that have not been tried; True if the server was lost before all of them were.

    Read-only tools are called first. A tool that does not answer in time is not called again.
    """
    tools = sorted(session.tools, key=lambda tool: not tool.annotations.get("readOnlyHint", False))
    tried_before, late = frozenset(calls.tried), set[str]()
    for tool, arguments in generate_calls(tools):
        known = calls.best.get(tool.name)
        if tool.name in tried_before | late or (known is not None and known.rank > 0) or calls.is_late():
            continue
        calls.tried.add(tool.name)
        call = ToolCall(id="call_1", name=tool.name, arguments=arguments)
        key = session.world_key
        try:
            result = await session.call_tool(call, arguments, timeout_s=CALL_TIMEOUT_S, limit=CALL_LIMIT)
            await session.update()
        except EnvInfraError as error:
            calls.lost = calls.lost or error
            calls.errors.setdefault(tool.name, str(error))
            return not calls.is_late() and any(each.name not in calls.tried for each in tools)
        if result.is_error and result.seconds >= CALL_TIMEOUT_S:
            late.add(tool.name)
            calls.errors.setdefault(tool.name, result.content)
            continue
        calls.answers += 1
        if result.is_error:
            calls.errors.setdefault(tool.name, result.content)
            calls.offline.update({tool.name: int(lacks_network(result))})
            continue
        rank = 2 if session.world_key != key else 0 if _ERROR.match(result.content) else 1
        if known is None or rank > known.rank:
            calls.best[tool.name] = _Candidate(rank=rank, call=call)
    return False


async def _call_alone(spec: ServerSpec, backend: Sandbox, call: ToolCall) -> _Alone:
    """The call on a fresh server. A server that it costs has given an error."""
    arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
    before: Files = {}
    async with open_session(spec, backend, initial_state=None, seed=0) as session:
        before = await _read_files(session) or {}
        try:
            result = await session.call_tool(call, arguments, timeout_s=CALL_TIMEOUT_S, limit=CALL_LIMIT)
        except EnvInfraError as error:
            lost = ToolResult(call_id=call.id, content=str(error), is_error=True)
            return _Alone(call=call, result=lost, before=before, after=before)
        return _Alone(call=call, result=result, before=before, after=await _read_files(session) or {})


def _answer_alike(plays: Sequence[_Alone]) -> bool:
    first, second = (play.result.content for play in plays)
    difference = find_difference(AnswerPair(tool="", first=first, second=second))
    return difference is None or difference.volatile


async def _read_start(spec: ServerSpec, backend: Sandbox) -> Files:
    """The files that a fresh server starts with."""
    async with open_session(spec, backend, initial_state=None, seed=0) as session:
        return await _read_files(session) or {}


async def _read_files(session: ToolSession) -> Files | None:
    """The files of the server as they are now; None if they cannot be read."""
    try:
        await session.update()
        state = (await session.state())[1]
    except EnvInfraError:
        return None
    return dict(state.get("files", {}))


def _first_call(tools: tuple[Tool, ...]) -> ToolCall:
    tool, arguments = next(generate_calls(list(tools)))
    return ToolCall(id="call_1", name=tool.name, arguments=arguments)


def generate_calls(tools: list[Tool]) -> Iterator[tuple[Tool, dict[str, Json]]]:
    """Several calls of each tool with random valid arguments, always the same ones."""
    rng = random.Random(0)
    for tool in tools:
        for attempt in range(CALLS_PER_TOOL):
            schema = dict(tool.input_schema)
            if attempt == 0:  # required arguments only
                needed = set(schema.get("required", ()))
                schema["properties"] = {k: v for k, v in schema.get("properties", {}).items() if k in needed}
            yield tool, sample_instance(schema, rng, ["UTC", "12:00", "example"])
