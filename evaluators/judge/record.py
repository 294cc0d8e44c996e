"""A judge's figures on a run, for ``summary.json`` and the report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from gymcp.atomic import write_atomically
from gymcp.errors import StoreError
from gymcp.evaluators.judge.agreement import Agreement
from gymcp.store.checked import number_of, text_of, whole_of
from gymcp.store.foreign import read_foreign
from gymcp.types import Json

JUDGE_FILE = "judge.json"


def load_judge(folder: Path) -> dict[str, Json] | None:
    """The figures that `save_judge` wrote into the run folder; None if no judge was used. Raises StoreError if they are
    invalid."""
    try:
        found = json.loads(read_foreign(folder, JUDGE_FILE))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise StoreError(f"run folder {folder}: {JUDGE_FILE} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise StoreError(f"run folder {folder}: {JUDGE_FILE} is not an object")
    try:
        _check(found)
    except (TypeError, ValueError, KeyError) as error:
        raise StoreError(f"run folder {folder}: {JUDGE_FILE}: is not what gymcp judge writes: {error}") from error
    return found


def _check(found: Mapping[str, Json]) -> None:
    """Check the types and ranges that a report relies on. Raises TypeError, ValueError or KeyError."""
    if "rubric" in found:
        for name in ("rubric", "policy"):
            text_of(found[name], name)
        for name in ("votes", "judged", "errors"):
            whole_of(found[name], name)
        text_of(str(found["prompt_version"]), "prompt_version")
    if (measured := found.get("agreement")) is None:
        return
    whole_of(measured["items"], "items")
    low, high = measured["agree_ci95"]
    shares = [measured["agree"], low, high]
    if measured["kappa"] is not None:
        shares += [measured["kappa"], *(measured["kappa_ci95"] or ())]
    for share in shares:
        if not -1 <= number_of(share, "a share") <= 1:
            raise ValueError(f"a share is {share}")


def save_judge(folder: Path, figures: Mapping[str, Json]) -> None:
    """Write the figures, whole or not at all. Raises StoreError if the folder cannot be written."""
    try:
        write_atomically(folder / JUDGE_FILE, json.dumps(dict(figures), indent=2).encode() + b"\n")
    except OSError as error:
        raise StoreError(f"run folder {folder}: {JUDGE_FILE} cannot be written: {error.strerror or error}") from error


def agreement_object(found: Agreement, problems: int) -> dict[str, Json]:
    """The agreement as JSON; `problems` is the number of labels that name no judged episode."""
    return {
        "items": found.items,
        "unmatched": problems,
        "agree": found.agree,
        "agree_ci95": [found.agree_ci95.low, found.agree_ci95.high],
        "kappa": found.kappa,
        "kappa_ci95": None if found.kappa_ci95 is None else [found.kappa_ci95.low, found.kappa_ci95.high],
        "table": dict(zip(("both pass", "only person", "only judge", "both fail"), found.table, strict=True)),
        "methods": [each.method for each in (found.agree_ci95, found.kappa_ci95) if each is not None],
    }
