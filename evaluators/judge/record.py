"""A judge's figures on a run, for ``summary.json`` and the report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from gymcp.atomic import write_atomically
from gymcp.errors import StoreError
from gymcp.evaluators.judge.agreement import Agreement
from gymcp.store.untrusted_files import read_foreign
from gymcp.store.validation import require_integer, require_number, require_text
from gymcp.types import Json

JUDGE_FILE = "judge.json"


def load_judge(folder: Path) -> dict[str, Json] | None:
    """The figures that `save_judge` wrote into the run folder; None if no judge was used. Raises StoreError if they are
    invalid."""
    try:
        figures = json.loads(read_foreign(folder, JUDGE_FILE))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise StoreError(f"run folder {folder}: {JUDGE_FILE} cannot be read: {error}") from error
    if not isinstance(figures, dict):
        raise StoreError(f"run folder {folder}: {JUDGE_FILE} is not an object")
    try:
        _check(figures)
    except (TypeError, ValueError, KeyError) as error:
        raise StoreError(f"run folder {folder}: {JUDGE_FILE}: is not what gymcp judge writes: {error}") from error
    return figures


def _check(figures: Mapping[str, Json]) -> None:
    """Check the types and ranges that a report relies on. Raises TypeError, ValueError or KeyError."""
    if "rubric" in figures:
        for name in ("rubric", "policy"):
            require_text(figures[name], name)
        for name in ("votes", "judged", "errors"):
            require_integer(figures[name], name)
        require_text(str(figures["prompt_version"]), "prompt_version")
    if (measured := figures.get("agreement")) is None:
        return
    require_integer(measured["items"], "items")
    low, high = measured["agree_ci95"]
    shares = [measured["agree"], low, high]
    if measured["kappa"] is not None:
        shares += [measured["kappa"], *(measured["kappa_ci95"] or ())]
    for share in shares:
        if not -1 <= require_number(share, "a share") <= 1:
            raise ValueError(f"a share is {share}")


def save_judge(folder: Path, figures: Mapping[str, Json]) -> None:
    """Write the figures, whole or not at all. Raises StoreError if the folder cannot be written."""
    try:
        write_atomically(folder / JUDGE_FILE, json.dumps(dict(figures), indent=2).encode() + b"\n")
    except OSError as error:
        raise StoreError(f"run folder {folder}: {JUDGE_FILE} cannot be written: {error.strerror or error}") from error


def agreement_object(agreement: Agreement, problems: int) -> dict[str, Json]:
    """The agreement as JSON; `problems` is the number of labels that name no judged episode."""
    return {
        "items": agreement.items,
        "unmatched": problems,
        "agree": agreement.agree,
        "agree_ci95": [agreement.agree_ci95.low, agreement.agree_ci95.high],
        "kappa": agreement.kappa,
        "kappa_ci95": None if agreement.kappa_ci95 is None else [agreement.kappa_ci95.low, agreement.kappa_ci95.high],
        "table": dict(zip(("both pass", "only person", "only judge", "both fail"), agreement.table, strict=True)),
        "methods": [each.method for each in (agreement.agree_ci95, agreement.kappa_ci95) if each is not None],
    }
