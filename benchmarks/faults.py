"""Everything that `faulty_server.py` can do wrong, and the end that an episode with such a fault must have."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.evaluators.graders import final_files_equal, final_state_equals
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import Limits
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.spec import FileState, ServerSpec
from gymcp.outcome import Outcome
from gymcp.types import EpisodeLimits, GoldTurn, Suite, Task, ToolCall, Trajectory

StartPath = Literal["files", "forked", "docker"]
"""Ways to start a server. files: under bubblewrap in a workspace; its state is its files. forked: from a template under
bubblewrap, with a declared state. docker: in a container, with a declared state."""
SANDBOX: Mapping[StartPath, str] = {"files": "bwrap", "forked": "bwrap", "docker": "docker"}
NAME = "faulty"
CALLS = 3
AT = 2
"""Number of the call in which the fault happens."""
NO_FAULT = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end that an episode must have."""

    outcome: Outcome
    score: float | None
    says: str = ""
    """Part of the reason; if it is not empty, the reason must quote the last words on standard error as well."""


def end_lost(says: str) -> End:
    return End(outcome=Outcome.ENV_INFRA, score=None, says=says)


def end_hung(says: str) -> End:
    return End(outcome=Outcome.TIMEOUT, score=None, says=says)


def end_over_budget(says: str) -> End:
    """The end of an episode whose server was lost by what the agent did: it is graded on the state before."""
    return End(outcome=Outcome.BUDGET_EXHAUSTED, score=0.0, says=f"out of budget ({says}")


_WHO = f"server '{NAME}': "
_TOOL = _WHO + "tool 'add': "
_STATE = _WHO + "gymcp/state: "
_NO_MESSAGE = "a line on standard output is not a JSON-RPC message: "
_ENDED = "the server ended (exit status 9); "
_HUNG_UP = "it hung up, and did not end; "
FINE = End(outcome=Outcome.SCORED, score=1.0)
_HUNG = end_hung(_TOOL + "hung: no answer within ")
_SPENT = end_over_budget(_TOOL + "did not end within ")
_MEMORY = _TOOL + "memory: the process tree used more than 96 MB; "
_PROCESSES = _TOOL + "processes: the tree had more than 24 processes and threads; "

AT_START: Mapping[str, End] = {
    "dies at start": end_lost(_WHO + "start: " + _ENDED),
    "hangs at start": end_hung(_WHO + "handshake: no answer within "),
    "prints before the handshake": end_lost(
        _WHO + "handshake: " + _NO_MESSAGE + "'Welcome to the faulty server!\\n'; "
    ),
    "dies while it lists its tools": end_lost(_WHO + "list: " + _ENDED),
    "hangs while it lists its tools": end_hung(_WHO + "list: no answer within "),
}
"""Faults of the start path "files" alone: on the others, a server learns its fault only after the handshake."""

IN_CALLS: Mapping[str, End | Mapping[StartPath, End]] = {
    "dies before a call": end_lost(_TOOL + _ENDED),
    "dies in a call": end_lost(_TOOL + _ENDED),
    "dies after a call": {
        "files": end_lost(_TOOL + _ENDED),
        "forked": end_lost(_STATE + _ENDED),
        "docker": end_lost(_ENDED),
    },
    "crashes": end_lost(_TOOL + "the server ended (exit status 139); "),
    "aborts": end_lost(_TOOL + "the server ended (exit status 134); "),
    "hangs": {"files": _HUNG, "forked": _SPENT, "docker": _SPENT},
    "answers late": FINE,
    "answers twice": FINE,
    "answers another request": FINE,
    "answers nobody first": FINE,
    "answers garbage": end_lost(_TOOL + _NO_MESSAGE + "'Traceback (most recent call last):\\n'; "),
    "answers half a line and dies": end_lost(_TOOL + _NO_MESSAGE + '\'{"jsonrpc"'),
    "answers bytes": end_lost(_TOOL + _NO_MESSAGE),
    "answers a list": end_lost(_TOOL + _NO_MESSAGE + "'[1, 2, 3]\\n'; "),
    "answers in another shape": FINE,
    "answers an error": FINE,
    "answers 100 MB": end_lost(_TOOL + "a line on standard output is longer than any message may be; "),
    "floods its standard error": FINE,
    "floods with notices": FINE,
    "closes its input": {
        "files": _HUNG,
        "forked": end_lost(_HUNG_UP),
        "docker": end_over_budget(_STATE + "no answer within "),
    },
    "closes its output": {"files": _HUNG, "forked": end_lost(_TOOL + _HUNG_UP), "docker": _SPENT},
    "ignores termination": FINE,
    "leaves a child behind": FINE,
    "dies and leaves a child": end_lost(_TOOL + _ENDED),
    "uses up its processes": {
        "files": end_over_budget(_PROCESSES),
        "forked": end_over_budget(_PROCESSES),
        "docker": end_lost(_TOOL + _ENDED),
    },
    "uses up its memory": end_over_budget(_MEMORY),
}
"""Faults in calls: one end, or one for each start path. Docker does not report a refused process, so that end is no
verdict on the agent."""


TIMED = ("hangs", "answers late", "answers another request", "closes its input", "closes its output")
"""Faults that show in a call's time. All other calls may take `PATIENCE_S`, so that neither a busy machine nor a flood
makes a healthy server late."""
PATIENCE_S = 90.0
"""Seconds that a call may take if its fault does not show in time."""


def ends(start_path: StartPath) -> dict[str, End]:
    """Every fault of this start path, and the end that its episode must have."""
    in_calls = {name: end if isinstance(end, End) else end[start_path] for name, end in IN_CALLS.items()}
    if os.getuid() != 0 and not Bubblewrap().uses_cgroup and start_path == "files":
        in_calls["uses up its processes"] = end_lost(_TOOL + _ENDED)  # RLIMIT_NPROC refuses, and does not tell
    return {**AT_START, **in_calls} if start_path == "files" else in_calls


def difference(ended: Trajectory, expected: End, fault: str) -> str | None:
    """A description of the first difference from the expected end; None if there is none."""
    if (ended.outcome, ended.score) != (expected.outcome, expected.score):
        end = f"{expected.outcome} with {expected.score}"
        return f"{fault}: {ended.outcome} with {ended.score} instead of {end}: {ended.reason}"
    quote = f"its last words: about to do wrong: {fault}"
    if expected.says and not (expected.says in ended.reason and quote in ended.reason):
        return f"{fault}: its reason has no {expected.says!r} and {quote!r}: {ended.reason}"
    return None


def environment(
    start_path: StartPath,
    faults: Sequence[str],
    *,
    healthy: int = 0,
    call_timeout_s: float = 3.0,
    start_timeout_s: float = 20.0,
) -> LoadedEnv:
    """An environment with a task for each fault, and after each `healthy` tasks in which nothing goes wrong."""
    names = [name for fault in faults for name in (fault, *(f"{NO_FAULT}-{fault}-{n}" for n in range(healthy)))]
    spec = EnvSpec(
        name=f"chaos-{start_path}",
        servers=(_server(start_path, start_timeout_s),),
        suite=Suite(name="chaos", version="1", tasks=tuple(_tasks(start_path, names, call_timeout_s))),
        grade=final_files_equal() if start_path == "files" else final_state_equals(),
        limits=EpisodeLimits(call_timeout_s=PATIENCE_S),
    )
    return load_env(spec)


def _server(start_path: StartPath, start_timeout_s: float) -> ServerSpec:
    limits = Limits(memory_mb=96, processes=24)
    native = native_server(NAME, "faulty_server", limits=limits, start="fork" if start_path == "forked" else "exec")
    server = replace(native, wire="legacy", start_timeout_s=start_timeout_s)
    return replace(server, state=FileState()) if start_path == "files" else server


def _tasks(start_path: StartPath, names: Iterable[str], call_timeout_s: float) -> Iterable[Task]:
    notes = [f"note {number}" for number in range(CALLS)]
    calls = (ToolCall(id=f"call_{n}", name="add", arguments={"note": note}) for n, note in enumerate(notes))
    gold = GoldTurn(calls=tuple(calls), final_text="All is noted.")
    for name in names:
        plan = {"fault": name, "at": AT, "late_s": call_timeout_s + 1.0}
        files = {"fault.json": json.dumps(plan)}
        in_files = start_path == "files"
        yield Task(
            id=name,
            prompts=("Note it.",),
            initial_state={"files": files} if in_files else plan,
            target=files | {"notes": "".join(f"{note}\n" for note in notes)} if in_files else {"notes": notes},
            gold=(gold,),
            last_necessary=(0, CALLS - 1),
            limits=EpisodeLimits(call_timeout_s=call_timeout_s) if name in TIMED else None,
        )
