"""Everything that `faulty_server.py` can do wrong, and how an episode in which it does must end."""

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
from gymcp.types import EpisodeLimits, GoldTurn, Outcome, Suite, Task, ToolCall, Trajectory

Wall = Literal["files", "forked", "docker"]
"""files: a server under bubblewrap, started in a workspace; its state is its files. forked, docker: one that declares
its state, forked from a template under bubblewrap, or in a container."""
SANDBOX: Mapping[Wall, str] = {"files": "bwrap", "forked": "bwrap", "docker": "docker"}
NAME = "faulty"
CALLS = 3
AT = 2
"""The call in which it happens."""
NO_FAULT = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How an episode must end."""

    outcome: Outcome
    score: float | None
    says: str = ""
    """Part of the reason; where there is one, the last words on standard error are in the reason, too."""


def lost(says: str) -> End:
    return End(outcome=Outcome.ENV_INFRA, score=None, says=says)


def hung(says: str) -> End:
    return End(outcome=Outcome.TIMEOUT, score=None, says=says)


def spent(says: str) -> End:
    """Graded on the state before: the server was lost by what the agent did."""
    return End(outcome=Outcome.BUDGET_EXHAUSTED, score=0.0, says=f"out of budget ({says}")


_WHO = f"server '{NAME}': "
_TOOL = _WHO + "tool 'add': "
_STATE = _WHO + "gymcp/state: "
_NO_MESSAGE = "a line on standard output is not a JSON-RPC message: "
_ENDED = "the server ended (exit status 9); "
_HUNG_UP = "it hung up, and did not end; "
FINE = End(outcome=Outcome.SCORED, score=1.0)
_HUNG = hung(_TOOL + "hung: it no longer answers; ")
_SPENT = spent(_TOOL + "did not end within ")
_MEMORY = _TOOL + "memory: the process tree used more than 96 MB; "
_PROCESSES = _TOOL + "processes: the tree had more than 24 processes and threads; "

AT_START: Mapping[str, End] = {
    "dies at start": lost(_WHO + "start: " + _ENDED),
    "hangs at start": hung(_WHO + "handshake: no answer within "),
    "prints before the handshake": lost(_WHO + "handshake: " + _NO_MESSAGE + "'Welcome to the faulty server!\\n'; "),
    "dies while it lists its tools": lost(_WHO + "list: " + _ENDED),
    "hangs while it lists its tools": hung(_WHO + "list: no answer within "),
}
"""Wall "files" alone: elsewhere a server learns what it is to do after its handshake."""

IN_CALLS: Mapping[str, End | Mapping[Wall, End]] = {
    "dies before a call": lost(_TOOL + _ENDED),
    "dies in a call": lost(_TOOL + _ENDED),
    "dies after a call": {"files": lost(_TOOL + _ENDED), "forked": lost(_STATE + _ENDED), "docker": lost(_ENDED)},
    "crashes": lost(_TOOL + "the server ended (exit status 139); "),
    "aborts": lost(_TOOL + "the server ended (exit status 134); "),
    "hangs": {"files": _HUNG, "forked": _SPENT, "docker": _SPENT},
    "answers late": FINE,
    "answers twice": FINE,
    "answers another request": FINE,
    "answers nobody first": FINE,
    "answers garbage": lost(_TOOL + _NO_MESSAGE + "'Traceback (most recent call last):\\n'; "),
    "answers half a line and dies": lost(_TOOL + _NO_MESSAGE + '\'{"jsonrpc"'),
    "answers bytes": lost(_TOOL + _NO_MESSAGE),
    "answers a list": lost(_TOOL + _NO_MESSAGE + "'[1, 2, 3]\\n'; "),
    "answers in another shape": FINE,
    "answers an error": FINE,
    "answers 100 MB": lost(_TOOL + "a line on standard output is longer than any message may be; "),
    "floods its standard error": FINE,
    "floods with notices": FINE,
    "closes its input": {"files": _HUNG, "forked": lost(_HUNG_UP), "docker": spent(_STATE + "no answer within ")},
    "closes its output": {"files": _HUNG, "forked": lost(_TOOL + _HUNG_UP), "docker": _SPENT},
    "ignores termination": FINE,
    "leaves a child behind": FINE,
    "dies and leaves a child": lost(_TOOL + _ENDED),
    "uses up its processes": {"files": spent(_PROCESSES), "forked": spent(_PROCESSES), "docker": lost(_TOOL + _ENDED)},
    "uses up its memory": spent(_MEMORY),
}
"""One end, or one for each wall. Docker does not tell that a process was refused, so there nobody knows whose fault
it was."""


TIMED = ("hangs", "answers late", "answers another request", "closes its input", "closes its output")
"""Faults that show in a call's time. All other calls may take `PATIENCE_S`: a busy machine makes no healthy server
late, nor a flood."""
PATIENCE_S = 90.0


def ends(wall: Wall) -> dict[str, End]:
    """Every fault that can be had behind this wall, and how it must end."""
    of_wall = {name: end if isinstance(end, End) else end[wall] for name, end in IN_CALLS.items()}
    if os.getuid() != 0 and not Bubblewrap().uses_cgroup and wall == "files":
        of_wall["uses up its processes"] = lost(_TOOL + _ENDED)  # RLIMIT_NPROC refuses, and does not tell
    return {**AT_START, **of_wall} if wall == "files" else of_wall


def difference(ended: Trajectory, wanted: End, fault: str) -> str | None:
    """What is not as it must be; None where all is."""
    if (ended.outcome, ended.score) != (wanted.outcome, wanted.score):
        expected = f"{wanted.outcome} with {wanted.score}"
        return f"{fault}: {ended.outcome} with {ended.score} instead of {expected}: {ended.reason}"
    quote = f"its last words: about to do wrong: {fault}"
    if wanted.says and not (wanted.says in ended.reason and quote in ended.reason):
        return f"{fault}: its reason has no {wanted.says!r} and {quote!r}: {ended.reason}"
    return None


def environment(
    wall: Wall, faults: Sequence[str], *, healthy: int = 0, call_timeout_s: float = 3.0, start_timeout_s: float = 20.0
) -> LoadedEnv:
    """A task for each fault, and after each of them `healthy` tasks in which nothing goes wrong."""
    names = [name for fault in faults for name in (fault, *(f"{NO_FAULT}-{fault}-{n}" for n in range(healthy)))]
    spec = EnvSpec(
        name=f"chaos-{wall}",
        servers=(_server(wall, start_timeout_s),),
        suite=Suite(name="chaos", version="1", tasks=tuple(_tasks(wall, names, call_timeout_s))),
        grade=final_files_equal() if wall == "files" else final_state_equals(),
        limits=EpisodeLimits(call_timeout_s=PATIENCE_S),
    )
    return load_env(spec)


def _server(wall: Wall, start_timeout_s: float) -> ServerSpec:
    limits = Limits(memory_mb=96, processes=24)
    native = native_server(NAME, "faulty_server", limits=limits, start="fork" if wall == "forked" else "exec")
    server = replace(native, wire="legacy", start_timeout_s=start_timeout_s)
    return replace(server, state=FileState()) if wall == "files" else server


def _tasks(wall: Wall, names: Iterable[str], call_timeout_s: float) -> Iterable[Task]:
    notes = [f"note {number}" for number in range(CALLS)]
    calls = (ToolCall(id=f"call_{n}", name="add", arguments={"note": note}) for n, note in enumerate(notes))
    gold = GoldTurn(calls=tuple(calls), final_text="All is noted.")
    for name in names:
        plan = {"fault": name, "at": AT, "late_s": call_timeout_s + 1.0}
        files = {"fault.json": json.dumps(plan)}
        in_files = wall == "files"
        yield Task(
            id=name,
            prompts=("Note it.",),
            initial_state={"files": files} if in_files else plan,
            target=files | {"notes": "".join(f"{note}\n" for note in notes)} if in_files else {"notes": notes},
            gold=(gold,),
            last_necessary=(0, CALLS - 1),
            limits=EpisodeLimits(call_timeout_s=call_timeout_s) if name in TIMED else None,
        )
