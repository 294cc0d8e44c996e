"""Results of a benchmark whose parts are measured in several runs, one file for all of them.

Each part has the commit, the date and the machine of its own run. A part that is measured again takes the place of the
earlier one; all others stay as they are.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from report_table import Result, machine
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
_NOT_RESULTS = ":(top,exclude)benchmarks/results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part as one run measured it."""

    commit: str
    """With ``-dirty`` if the checkout had changes that were not committed."""
    date: str
    """Day of the run, UTC, as YYYY-MM-DD."""
    machine: str
    results: tuple[Result, ...]


def make_part(results: Sequence[Result]) -> Part:
    """The results with the commit, the date and the machine as they are now."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Part(commit=_name_commit(), date=today, machine=machine(), results=tuple(results))


def _name_commit() -> str:
    """The commit that is checked out; results that are written meanwhile are no change of it."""
    try:
        commit = _ask_git("rev-parse", "--short=8", "HEAD").strip()
        changed = _ask_git("status", "--porcelain", "--untracked-files=no", "--", ":/", _NOT_RESULTS)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}-dirty" if changed.strip() else commit


def _ask_git(*words: str) -> str:
    """Answer of git about this checkout. Raises CalledProcessError."""
    command = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def keep_part(name: str, part_name: str, part: Part, folder: Path = RESULTS) -> None:
    """Write the part into the benchmark's result file, beside the parts that are there already."""
    path = folder / f"{name}.json"
    parts = read_parts(path) | {part_name: part}
    folder.mkdir(exist_ok=True)
    half_written = path.with_suffix(f".{os.getpid()}.tmp")
    half_written.write_text(encode_parts(name, parts) + "\n")
    half_written.replace(path)


def read_parts(path: Path) -> dict[str, Part]:
    """Part name -> part; empty if there is no file, or one of another form."""
    try:
        kept: dict[str, dict[str, Any]] = json.loads(path.read_text()).get("parts", {})
    except FileNotFoundError:
        return {}
    return {
        name: Part(**{**part, "results": tuple(Result(**row) for row in part["results"])})
        for name, part in kept.items()
    }


def list_left(name: str, part_names: Sequence[str], folder: Path = RESULTS) -> list[str]:
    """Parts that the result file does not have of the code that is checked out; texts and results are no code."""
    kept = read_parts(folder / f"{name}.json")
    return [part for part in part_names if part not in kept or not _is_of_this_code(kept[part].commit)]


def _is_of_this_code(commit: str) -> bool:
    texts = (":(top,exclude)docs", ":(top,exclude)*.md")
    try:
        return _ask_git("diff", "--name-only", f"{commit}^{{commit}}", "--", ":/", _NOT_RESULTS, *texts).strip() == ""
    except (OSError, subprocess.CalledProcessError):  # a commit with changes, or one that is not here
        return False


def encode_parts(name: str, parts: Mapping[str, Part]) -> str:
    """One JSON object, the parts in the order of their names."""
    return json.dumps({"name": name, "parts": {part: asdict(parts[part]) for part in sorted(parts)}}, indent=1)


def show_parts(name: str, parts: Mapping[str, Part], *, as_json: bool) -> None:
    """Print the parts: a table, or with `as_json` one object."""
    if as_json:
        print(encode_parts(name, parts))
        return
    table = Table(title=name, title_justify="left", header_style="bold")
    for heading in ("part", "metric", "value", "unit", "commit", "date"):
        table.add_column(heading, justify="right" if heading == "value" else "left")
    for part_name, part in parts.items():
        for result in part.results:
            table.add_row(part_name, result.metric, f"{result.value:.3f}", result.unit, part.commit, part.date)
    Console().print(table)
