"""Gates of a suite: agents whose score is known beforehand if environment and harness work.

A report shows the gates beside the score: the run itself if it is a gate's, else gate runs in the folders beside it,
with the same environment and the same suite to the byte (``env_digest`` and ``suite_digest``). Only episodes of tasks
that the run has, too, are proof.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from gymcp.errors import StoreError
from gymcp.store import EpisodeRow, Run, TrajectoryStore, open_run

GATES = {"oracle": 1.0, "null": 0.0, "mutated": 0.0}
"""Agent -> the score that it must have in every episode."""
MAX_FOLDERS_BESIDE = 200
"""Most folders that are searched for gate runs."""
_UNTOLD = frozenset({"privileges", "retrieval"})
"""Keys of a config that do not hold the words that were typed."""
_SAME = ("env", "env_digest", "suite_digest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    agent: str
    wanted: float
    scored: int
    broken: int
    """Episodes with a score other than `wanted`."""
    tasks: int
    """Number of tasks of the run that the gates are for."""
    shared: int
    """Number of those tasks that the gate has played."""
    folder: Path | None
    """Folder of the gate's run; None if none was found."""

    @property
    def state(self) -> str:
        """``held``, ``broken``, ``not tried`` (nothing was scored), ``other tasks`` or ``not run``."""
        if self.folder is None:
            return "not run"
        if self.tasks and not self.shared:
            return "other tasks"
        if not self.scored:
            return "not tried"
        return "broken" if self.broken else "held"


def gates_of(run: Run, attempts: Sequence[EpisodeRow]) -> tuple[Gate, ...]:
    """The three gates; of each the run with most of the tasks, the newest of several."""
    rows = [row for row in attempts if row.latest]
    tasks = {row.task for row in rows}
    gates = {agent: _gate(agent, None, [], tasks) for agent in GATES}
    for beside in _beside(run):
        agent = str(beside.config["agent"])
        try:
            with TrajectoryStore.open(beside.folder) as store:
                gate = _gate(agent, beside.folder, store.summaries(), tasks)
        except StoreError:
            continue  # an unreadable gate run counts as none
        if gate.shared >= gates[agent].shared:
            gates[agent] = gate
    if (agent := str(run.config.get("agent", ""))) in GATES:
        gates[agent] = _gate(agent, run.folder, rows, tasks)
    return tuple(gates.values())


def _gate(agent: str, folder: Path | None, rows: Sequence[EpisodeRow], tasks: Set[str]) -> Gate:
    """The gate as episodes of `tasks` show it; `rows` may be of others, too."""
    played = [row for row in rows if row.task in tasks]
    scores = [row.score for row in played if row.score is not None]
    return Gate(
        agent=agent,
        wanted=GATES[agent],
        scored=len(scores),
        broken=sum(score != GATES[agent] for score in scores),
        tasks=len(tasks),
        shared=len({row.task for row in played}),
        folder=folder,
    )


def gate_command(gate: Gate, run: Run) -> str:
    """The command that plays a gate on the run's tasks, into a new folder beside the run's; empty if none is needed.

    None is needed for a gate that has played all tasks to which its agent applies: null applies to all. There is none
    for a run with privileges or retrieval, since their options are not in its record.
    """
    config = run.config
    is_whole = gate.shared == gate.tasks or (gate.shared > 0 and gate.agent != "null")
    if (gate.folder is not None and is_whole) or not config.get("source") or _UNTOLD & config.keys():
        return ""
    words = ["gymcp", "eval", str(config["source"]), "--agent", gate.agent]
    for option in ("tasks", "attack", "stress"):
        values = config.get(option) or ()
        for value in [values] if isinstance(values, str) else values if isinstance(values, list | tuple) else ():
            words += [f"--{option}", str(value)] if (option, value) != ("tasks", "*") else []
    for option, default in (("limit", 0), ("seed", 0), ("sandbox", "bwrap")):
        if (value := config.get(option, default)) != default:
            words += [f"--{option}", str(value)]
    return shlex.join([*words, "--out", str(_free_folder(run.folder, gate.agent))])


def _free_folder(folder: Path, agent: str) -> Path:
    """A folder beside the run's that does not exist yet."""
    folder = folder if folder.name else folder.resolve()
    names = (f"{folder.name}-{agent}{'' if number == 1 else f'-{number}'}" for number in range(1, MAX_FOLDERS_BESIDE))
    return next((free for name in names if not (free := folder.with_name(name)).exists()), folder / agent)


def _beside(run: Run) -> list[Run]:
    """Gate runs of the same tasks in the folders beside the run's, oldest first."""
    if any(key not in run.config for key in _SAME):
        return []
    try:
        folders = sorted(run.folder.resolve().parent.iterdir())[:MAX_FOLDERS_BESIDE]
    except OSError:
        return []
    runs = []
    for folder in folders:
        if folder == run.folder.resolve() or not (folder / "run.json").is_file():
            continue
        try:
            other = open_run(folder)
        except StoreError:
            continue
        if str(other.config.get("agent")) in GATES and all(other.config.get(k) == run.config[k] for k in _SAME):
            runs.append(other)
    return sorted(runs, key=lambda each: each.created)
