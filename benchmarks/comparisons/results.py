"""Results of registered training runs: one small JSON file for each arm and seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

from comparisons.registration import Registration
from gymcp.atomic import write_atomically
from gymcp.errors import ConfigError
from gymcp.trainers.run.run_state import FINISHED
from gymcp.types import Json

State = Literal["finished", "ended early", "unfinished", "failed"]
DIGITS = 6
"""Significant digits of a stored metric."""
_COLUMNS = (
    "iteration", "success", "steps", "calls", "unusable", "entropy", "kl", "grad_norm", "clipped", "dropped", "tokens",
    "tokens/sampled", "curriculum/groups", "branches",
    "advantage/size", "advantage/active", "anchor/singletons", "anchor/step_share", "critic/explained", "learning_rate",
    "skipped", "seconds", "seconds/rollout", "seconds/update", "seconds/evaluation",
)  # fmt: skip
"""Columns of the metrics that are stored, beside those of held-out evaluations."""
_TAGS = ("level ", "split ", "round")
"""Beginnings of the columns of an evaluation that are left out: success by tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    registration: str
    digest: str
    """Digest of the registration, or of the tuning, that the run belongs to."""
    commit: str
    """Commit of the code that ran it last; empty: unknown."""
    machine: str
    """The machine in words, without its load."""
    arm: str
    seed: int
    rate: float
    done: int
    """Complete iterations."""
    reason: str
    """`FINISHED`, or why training ended before its last iteration; empty: it failed."""
    failures: tuple[str, ...] = ()
    """Errors that ended an attempt, one for each; the run failed if the last attempt ended so."""
    rows: tuple[Mapping[str, Json], ...] = ()

    @property
    def seconds(self) -> float:
        """Wall-clock time of iterations and evaluations."""
        return float(sum(row.get("seconds", 0.0) + row.get("seconds/evaluation", 0.0) for row in self.rows))

    def state_in(self, registration: Registration) -> State:
        """State of the run, measured by the registered budget."""
        if not self.reason:
            return "failed"
        if self.reason != FINISHED:
            return "ended early"
        return "finished" if self.done >= registration.iterations else "unfinished"


def select_columns(rows: Sequence[Mapping[str, Json]]) -> tuple[Mapping[str, Json], ...]:
    """The rows with the columns that are stored, rounded."""
    return tuple({key: _round(value) for key, value in row.items() if _is_stored(key)} for row in rows)


def _is_stored(key: str) -> bool:
    if not key.startswith("test/"):
        return key in _COLUMNS
    return not key.rpartition("/")[2].startswith(_TAGS)


def _round(value: Json) -> Json:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def result_path(folder: Path, arm: str, seed: int) -> Path:
    """The file of a run's result, below the folder of its registration."""
    return folder / f"{arm}-{seed}.json"


def tuning_path(folder: Path, arm: str, rate: float, seed: int | None = None) -> Path:
    """The file of a tuning run's result; no seed: there is a single one for tuning."""
    return folder / "tuning" / (f"{arm}-{rate:g}.json" if seed is None else f"{arm}-{rate:g}-{seed}.json")


def write_result(path: Path, result: RunResult) -> None:
    """Write the result; one line for each row of metrics, so that a change of the file can be read."""
    table = asdict(result)
    rows = ",\n".join(f"  {json.dumps(row)}" for row in table.pop("rows"))
    head = json.dumps(table, indent=1).removesuffix("\n}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, f'{head},\n "rows": [\n{rows}\n ]\n}}\n'.encode())


def read_result(path: Path) -> RunResult | None:
    """The result in the file; None if there is no file. Raises ConfigError if it is not a result."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        known = {each.name for each in fields(RunResult)}
        table["failures"], table["rows"] = tuple(table.get("failures", ())), tuple(table["rows"])
        return RunResult(**{key: value for key, value in table.items() if key in known})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"result {path}: cannot be read: {error}; move it away, and the run is made again") from error


def read_results(registration: Registration, folder: Path) -> dict[tuple[str, int], RunResult]:
    """(arm, seed) -> result of each registered run that has one.

    Raises ConfigError for a result that was measured under another registration: it must not stand in this one's
    report, and must not be lost either.
    """
    found = {}
    for arm in registration.arms:
        for seed in registration.seeds_of(arm):
            path = result_path(folder, arm.name, seed)
            result = read_result(path)
            if result is None:
                continue
            if result.digest != registration.digest:
                raise ConfigError(
                    f"result {path}: was measured under another registration ({result.digest[:12]}, now"
                    f" {registration.digest[:12]}); restore the registration and its recipe, or register anew under"
                    " another name, with seeds never used"
                )
            found[arm.name, seed] = result
    return found
