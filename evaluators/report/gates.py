"""Gates of a suite: agents whose score is known beforehand if environment and harness work.

A report shows the gates beside the score: the run itself if it is a gate's, else gate runs in the folders beside it,
with the same environment and the same tasks to the byte (``env_digest`` and ``suite_digest``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gymcp.errors import StoreError
from gymcp.store import EpisodeRow, Run, TrajectoryStore, open_run

GATES = {"oracle": 1.0, "null": 0.0, "mutated": 0.0}
"""Agent -> the score that it must have in every episode."""
MAX_BESIDE = 200
"""Most folders that are searched for gate runs."""
_SAME = ("env", "env_digest", "suite_digest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    agent: str
    wanted: float
    scored: int
    broken: int
    """Episodes with a score other than `wanted`."""
    folder: Path | None
    """Folder of the gate's run; None if none was found."""

    @property
    def state(self) -> str:
        """``held``, ``broken``, ``not tried`` (nothing was scored) or ``not run``."""
        if self.folder is None:
            return "not run"
        if not self.scored:
            return "not tried"
        return "broken" if self.broken else "held"


def gates_of(run: Run, attempts: Sequence[EpisodeRow]) -> tuple[Gate, ...]:
    """The three gates; the newest run of each."""
    gates = {agent: Gate(agent=agent, wanted=GATES[agent], scored=0, broken=0, folder=None) for agent in GATES}
    for beside in _beside(run):
        agent = str(beside.config["agent"])
        try:
            with TrajectoryStore.open(beside.folder) as store:
                gates[agent] = _gate(agent, beside.folder, store.summaries())
        except StoreError:
            continue  # an unreadable gate run counts as none
    if (agent := str(run.config.get("agent", ""))) in GATES:
        gates[agent] = _gate(agent, run.folder, [row for row in attempts if row.latest])
    return tuple(gates.values())


def _gate(agent: str, folder: Path, rows: Sequence[EpisodeRow]) -> Gate:
    scores = [row.score for row in rows if row.score is not None]
    broken = sum(score != GATES[agent] for score in scores)
    return Gate(agent=agent, wanted=GATES[agent], scored=len(scores), broken=broken, folder=folder)


def _beside(run: Run) -> list[Run]:
    """Gate runs of the same tasks in the folders beside the run's, oldest first."""
    if any(key not in run.config for key in _SAME):
        return []
    try:
        folders = sorted(run.folder.resolve().parent.iterdir())[:MAX_BESIDE]
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
