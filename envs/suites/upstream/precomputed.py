"""Answers of upstream's code that gymcp brings with it, so that an install need not wait for that code.

A file has one JSON object per line: a heading with the fingerprint of everything that decides the answers, then one
answer after the other, by name. `benchmarks/precomputed.py` makes the files, and every night compares them with answers
that are made anew.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping
from pathlib import Path

from gymcp.atomic import write_atomically
from gymcp.types import Json


def find_precomputed(path: Path, fingerprint: str, name: str) -> Json | None:
    """A copy of the answer of that name; None if it is not in the file, or if the file has another fingerprint."""
    return copy.deepcopy(read_precomputed(path, fingerprint).get(name))


@functools.cache
def read_precomputed(path: Path, fingerprint: str) -> Mapping[str, Json]:
    """Name -> answer; empty if the file has another fingerprint: it was made by other code."""
    if not path.is_file():
        return {}
    heading, *lines = path.read_text(encoding="utf-8").splitlines()
    if json.loads(heading)["fingerprint"] != fingerprint:
        return {}
    return {row["name"]: row["answer"] for row in map(json.loads, lines)}


def write_precomputed(path: Path, fingerprint: str, source: str, answers: Mapping[str, Json]) -> None:
    """Write the answers, sorted by name, for `read_precomputed`. `source`: upstream's name, version and licence."""
    rows: list[Json] = [{"fingerprint": fingerprint, "source": source}]
    rows += [{"name": name, "answer": answers[name]} for name in sorted(answers)]
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    write_atomically(path, text.encode())
