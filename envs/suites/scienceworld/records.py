"""Records of variations, computed by the simulator once, in a sandbox, and kept in gymcp's cache.

A record has the variation's description, what is seen at the start, and upstream's own gold actions, played. Beside
them is upstream's division of the variations into train, dev and test. That division and the suite's own records are
in `PRECOMPUTED`: the simulator takes minutes to play them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from gymcp.atomic import cache_errors, write_atomically
from gymcp.envs.suites.scienceworld.installation import MAKER, records_fingerprint, with_simulator
from gymcp.envs.suites.upstream.precomputed import find_precomputed
from gymcp.envs.suites.upstream.run_once import run_once
from gymcp.envs.suites.upstream.suite_installation import choose_install_sandbox
from gymcp.errors import UsageError
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.paths import gymcp_home
from gymcp.types import Json

PRECOMPUTED = Path(__file__).with_name("records.jsonl")
SPLITS = "splits"
"""Name of the division of the variations, beside the names of records."""
RECORDS_PER_RUN = 15
"""Records that one run of the simulator makes: what a run has made is stored. Its first record takes seconds more."""
Variation = tuple[str, int]
"""Name of upstream's task, and number."""
log = logging.getLogger(__name__)


@cache_errors()
def read_splits(sandbox: Sandbox | None = None) -> dict[str, dict[str, list[int]]]:
    """Task -> ``train``, ``dev`` or ``test`` -> variations, as upstream divides them."""
    splits: dict[str, dict[str, list[int]]] | None = _find(SPLITS)
    if splits is None:
        splits = ask_splits(sandbox)
        _write(SPLITS, splits)
    return splits


@cache_errors()
def make_records(variations: Sequence[Variation], sandbox: Sandbox | None = None) -> list[Json]:
    """[N] -> [N]: ``{"description", "start", "gold", "scores", "solved"}`` of each variation.

    Records that gymcp does not bring and that are not in the cache are made in `sandbox`, else in bubblewrap. Raises
    SandboxUnavailable, UsageError.
    """
    found = {each: read_record(each) for each in variations}
    missing = [each for each, record in found.items() if record is None]
    for start in range(0, len(missing), RECORDS_PER_RUN):
        part = missing[start : start + RECORDS_PER_RUN]
        log.warning("scienceworld: playing gold of %d to %d of %d, once", start + 1, start + len(part), len(missing))
        for each, record in zip(part, play_gold(part, sandbox), strict=True):
            _write(name_record(each), record)
            found[each] = record
    return [found[each] for each in variations]


@cache_errors()
def read_record(variation: Variation) -> Json | None:
    """The record of a variation; None if the simulator has to play its gold first."""
    return _find(name_record(variation))


def name_record(variation: Variation) -> str:
    """Name of the variation's record in the cache and in `PRECOMPUTED`."""
    task, number = variation
    return f"{task}-{number}"


def splits_are_made() -> bool:
    return _find(SPLITS) is not None


def ask_splits(sandbox: Sandbox | None = None) -> dict[str, dict[str, list[int]]]:
    """The division of the variations, from the simulator itself."""
    (splits,) = _ask_simulator([{"splits": True}], sandbox)
    return dict(splits)


def play_gold(variations: Sequence[Variation], sandbox: Sandbox | None = None) -> list[Json]:
    """[N] -> [N]: records from the simulator itself, in one run."""
    return _ask_simulator([{"task": task, "variation": number} for task, number in variations], sandbox)


def _ask_simulator(orders: Sequence[Json], sandbox: Sandbox | None) -> list[Json]:
    confined = choose_install_sandbox("scienceworld", "the simulator plays the gold", sandbox, runs_unconfined=False)
    text = "".join(json.dumps(order) + "\n" for order in orders)
    lines = run_once(with_simulator("scienceworld-maker", MAKER), confined, text).splitlines()
    if len(lines) != len(orders):
        raise UsageError(f"scienceworld: the simulator ended after {len(lines)} of {len(orders)} answers")
    return [json.loads(line) for line in lines]


def _find(name: str) -> Json | None:
    """Content of that name in the cache, else in what gymcp brings; None if it is in neither."""
    path = _path(name)
    if path.is_file():
        return json.loads(path.read_bytes())
    return find_precomputed(PRECOMPUTED, records_fingerprint(), name)


def _write(name: str, content: Json) -> None:
    path = _path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(content).encode())


def _path(name: str) -> Path:
    return gymcp_home() / "suites" / "scienceworld" / f"records-{records_fingerprint()}" / f"{name}.json"
