"""Records of variations, computed by the simulator once, in a sandbox, and kept in gymcp's cache.

A record has the variation's description, what is seen at the start, and upstream's own gold actions, played. Beside
them is upstream's division of the variations into train, dev and test.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from gymcp.atomic import cache_errors, write_atomically
from gymcp.envs.suites.scienceworld.installation import MAKER, records_fingerprint, with_simulator
from gymcp.envs.suites.upstream.run_once import run_once
from gymcp.envs.suites.upstream.suite_installation import choose_install_sandbox
from gymcp.errors import UsageError
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.paths import gymcp_home
from gymcp.types import Json

RECORDS_PER_RUN = 15
"""Records that one run of the simulator makes: what a run has made is stored. Its first record takes seconds more."""
Variation = tuple[str, int]
"""Name of upstream's task, and number."""
log = logging.getLogger(__name__)


@cache_errors()
def read_splits(sandbox: Sandbox | None = None) -> dict[str, dict[str, list[int]]]:
    """Task -> ``train``, ``dev`` or ``test`` -> variations, as upstream divides them."""
    path = _splits_path()
    if not path.is_file():
        (splits,) = _ask_simulator([{"splits": True}], sandbox)
        _write(path, splits)
    numbers: dict[str, dict[str, list[int]]] = json.loads(path.read_bytes())
    return numbers


@cache_errors()
def make_records(variations: Sequence[Variation], sandbox: Sandbox | None = None) -> list[Json]:
    """[N] -> [N]: ``{"description", "start", "gold", "scores", "solved"}`` of each variation.

    Records that are not in the cache are made in `sandbox`, else in bubblewrap. Raises SandboxUnavailable, UsageError.
    """
    missing = [each for each in dict.fromkeys(variations) if not _path(each).is_file()]
    for start in range(0, len(missing), RECORDS_PER_RUN):
        part = missing[start : start + RECORDS_PER_RUN]
        log.warning("scienceworld: playing gold of %d to %d of %d, once", start + 1, start + len(part), len(missing))
        answers = _ask_simulator([{"task": task, "variation": number} for task, number in part], sandbox)
        for each, record in zip(part, answers, strict=True):
            _write(_path(each), record)
    return [json.loads(_path(each).read_bytes()) for each in variations]


@cache_errors()
def read_record(variation: Variation) -> Json | None:
    """The record of a variation; None if it is not in the cache."""
    path = _path(variation)
    return json.loads(path.read_bytes()) if path.is_file() else None


def splits_are_made() -> bool:
    return _splits_path().is_file()


def _ask_simulator(orders: Sequence[Json], sandbox: Sandbox | None) -> list[Json]:
    confined = choose_install_sandbox("scienceworld", "the simulator plays the gold", sandbox, runs_unconfined=False)
    text = "".join(json.dumps(order) + "\n" for order in orders)
    lines = run_once(with_simulator("scienceworld-maker", MAKER), confined, text).splitlines()
    if len(lines) != len(orders):
        raise UsageError(f"scienceworld: the simulator ended after {len(lines)} of {len(orders)} answers")
    return [json.loads(line) for line in lines]


def _write(path: Path, content: Json) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(content).encode())


def _folder() -> Path:
    return gymcp_home() / "suites" / "scienceworld" / f"records-{records_fingerprint()}"


def _splits_path() -> Path:
    return _folder() / "splits.json"


def _path(variation: Variation) -> Path:
    task, number = variation
    return _folder() / f"{task}-{number}.json"
