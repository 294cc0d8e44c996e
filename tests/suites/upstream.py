"""Verdicts of upstream's own `multi_turn_checker`, in a virtualenv of its own, on our trajectories."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gymcp.atomic import make_once
from gymcp.envs.suites.bfcl.suite import BFCL, MPMATH
from gymcp.envs.suites.upstream.file_layout import SuiteFiles
from gymcp.envs.suites.upstream.wheels import fetch_wheel
from gymcp.mcp_servers.native.runtime import find_violation
from gymcp.types import Json, Step, ToolCall, Trajectory

CHECKER = Path(__file__).with_name("upstream_checker.py")


def upstream_verdicts(home: Path, files: SuiteFiles, trajectories: Sequence[Trajectory]) -> list[Json]:
    """Upstream's verdicts: ``{"valid": bool, "error_type": ...}``. Each is made in a process of its own."""
    entries, golds = _upstream_entries(files), _upstream_golds(files)
    lines = [
        json.dumps({"entry": entries[t.task], "gold": golds[t.task], "turns": to_upstream(t)}) for t in trajectories
    ]
    python = _virtualenv(home) / "bin" / "python"
    argv = [str(python), "-I", str(CHECKER)]
    done = subprocess.run(argv, input="\n".join(lines), capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def to_upstream(trajectory: Trajectory) -> list[list[list[str]]]:
    """The calls as upstream's decoders give them: per user turn, per step, as Python text.

    A call that our harness refused becomes a call of an unknown function, so upstream does not run it either. Traps: we
    withhold functions that upstream would run if called, and upstream rewrites ``name(`` inside of strings.
    """
    turns: list[list[list[str]]] = [[] for _ in range(max((s.turn for s in trajectory.steps), default=-1) + 1)]
    for step in trajectory.steps:
        if calls := [text for call in step.action.tool_calls if (text := _call_text(step, call)) is not None]:
            turns[step.turn].append(calls)
    return turns


def _call_text(step: Step, call: ToolCall) -> str | None:
    arguments = call.arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    if not isinstance(arguments, Mapping):
        return None
    offered = {tool.name: tool.input_schema for tool in step.observation.tools}
    if call.name not in offered or find_violation(dict(arguments), offered[call.name]):
        return f"refused_{''.join(filter(str.isidentifier, call.name))}()"
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def _upstream_entries(files: SuiteFiles) -> dict[str, Json]:
    return {row["id"]: row for path in (files.private / "questions").iterdir() for row in _rows(path)}


def _upstream_golds(files: SuiteFiles) -> dict[str, Json]:
    return {row["id"]: row["ground_truth"] for path in (files.private / "gold").iterdir() for row in _rows(path)}


def _rows(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _virtualenv(home: Path) -> Path:
    """A virtualenv with upstream's package and nothing else, from the pinned wheels; later sessions use it again."""
    wheels = [fetch_wheel(wheel, home / "wheels") for wheel in (BFCL, MPMATH)]

    def make(folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        argv = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--quiet", "install"]
        argv += ["--no-deps", "--no-index", "--disable-pip-version-check", *map(str, wheels)]
        subprocess.run(argv, check=True)

    version = f"{BFCL.version}-py{sys.version_info.major}{sys.version_info.minor}"
    return make_once(home / "tests" / f"bfcl-upstream-{version}", make)
