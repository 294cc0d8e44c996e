"""``heldout.jsonl`` of a training run: success of every held-out episode, so that two runs can be paired by task."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from gymcp.atomic import write_atomically
from gymcp.errors import StoreError
from gymcp.store.untrusted_files import MAX_LINES_BYTES, read_foreign
from gymcp.types import Json

HELDOUT_FILE = "heldout.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutResult:
    """One evaluation of a policy on the tasks of one split."""

    iteration: int
    """Number of iterations that the policy had learnt from."""
    split: str
    success: Mapping[str, bool]
    """Task id -> success; a task whose episode has no score is left out."""


def record_heldout(folder: Path, results: Iterable[HeldoutResult]) -> None:
    """Add results to the file. They replace those of the same iteration and split, and all of later iterations.

    An iteration that was interrupted is repeated, and whatever came after it is no longer of this run.
    """
    new = list(results)
    if not new:
        return
    last, names = max(result.iteration for result in new), {(result.iteration, result.split) for result in new}
    kept = [
        result
        for result in read_heldout(folder)
        if result.iteration <= last and (result.iteration, result.split) not in names
    ]
    lines = "".join(json.dumps(asdict(result)) + "\n" for result in [*kept, *new])
    write_atomically(folder / HELDOUT_FILE, lines.encode())


def read_heldout(folder: Path) -> list[HeldoutResult]:
    """Results in the order of their evaluations; empty if the run recorded none. Lines that are none are left out."""
    try:
        content = read_foreign(folder, HELDOUT_FILE, most_bytes=MAX_LINES_BYTES)
    except (OSError, StoreError):
        return []
    results = []
    for line in content.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if (result := _to_result(row)) is not None:
            results.append(result)
    return results


def _to_result(row: Json) -> HeldoutResult | None:
    if not isinstance(row, dict):
        return None
    iteration, split, success = row.get("iteration"), row.get("split"), row.get("success")
    if not isinstance(iteration, int) or isinstance(iteration, bool) or iteration < 0 or not isinstance(split, str):
        return None
    if not isinstance(success, dict) or not all(isinstance(value, bool) for value in success.values()):
        return None
    return HeldoutResult(iteration=iteration, split=split, success=success)
