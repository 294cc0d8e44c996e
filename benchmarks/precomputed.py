"""The records of ScienceWorld's suite and the games of TextWorld's, made anew by upstream's code: minutes of one core.

Every one of those that gymcp brings must be the same. `--write` replaces them, which is needed after a change of the
code that makes them. Exit code 1 if one differs or is missing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from report_table import Result, options, show

from gymcp.envs.suites.scienceworld import installation, records
from gymcp.envs.suites.scienceworld.tasks import list_suite_slots
from gymcp.envs.suites.textworld import games
from gymcp.envs.suites.textworld.tasks import MAX_SEEDS_TRIED, is_playable, list_suite_kinds
from gymcp.envs.suites.upstream.precomputed import read_precomputed, write_precomputed
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.types import Json

QUICK = 3
"""Answers of each suite that --quick makes."""
T = TypeVar("T")
Answers = Iterator[tuple[str, Json]]
"""(name, answer)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    path: Path
    fingerprint: str
    make: Callable[[int | None], Answers]
    """A function that makes so many answers anew, or all."""
    describe_source: Callable[[], str]
    """A function that returns upstream's name, version and licence."""


def main() -> None:
    parser = options(__doc__, f"{QUICK} of each suite")
    parser.add_argument("--write", action="store_true", help="replace what gymcp brings")
    args = parser.parse_args()
    results: list[Result] = []
    wrong: list[str] = []
    for suite, file in FILES.items():
        began = time.perf_counter()
        made = {name: json.loads(json.dumps(answer)) for name, answer in file.make(QUICK if args.quick else None)}
        if args.write and not args.quick:
            write_precomputed(file.path, file.fingerprint, file.describe_source(), made)
            read_precomputed.cache_clear()
        brought = read_precomputed(file.path, file.fingerprint)
        wrong += [f"{suite}: {name}: is not as it is made now" for name in made if brought.get(name) != made[name]]
        if not args.quick:
            wrong += [f"{suite}: {name}: the suite does not need it" for name in brought if name not in made]
        same = sum(brought.get(name) == answer for name, answer in made.items())
        results.append(Result(metric=f"{suite}: the same as brought", value=same, unit=f"of {len(made)}"))
        results.append(Result(metric=f"{suite}: time", value=time.perf_counter() - began, unit="s"))
    show("precomputed", results, as_json=args.json)
    if wrong:
        sys.exit("\n".join(wrong))


def make_records(limit: int | None) -> Answers:
    """The splits, and of each kind of tasks the records up to the first variation that its gold solves."""
    yield records.SPLITS, records.ask_splits()
    waiting = [iter(slot.candidates) for slot in list_suite_slots()[:limit]]
    while waiting:
        variations = [next(candidates) for candidates in waiting]
        played = list(in_parts(variations, records.play_gold, records.RECORDS_PER_RUN))
        yield from zip(map(records.name_record, variations), played, strict=True)
        waiting = [each for each, record in zip(waiting, played, strict=True) if not record["solved"]]


def make_games(limit: int | None) -> Answers:
    """The games of each task's seeds up to the first that can be played."""
    sandbox = get_sandbox("bwrap")
    waiting = list(list_suite_kinds())[:limit]
    for attempt in range(MAX_SEEDS_TRIED):
        orders = [kind.order(attempt) for kind in waiting]
        made = list(in_parts(orders, lambda part: games.ask_games(part, sandbox), games.GAMES_PER_RUN))
        yield from ((order.key, game) for order, game in zip(orders, made, strict=True))
        waiting = [kind for kind, game in zip(waiting, made, strict=True) if not is_playable(kind, game)]


def in_parts(orders: Sequence[T], ask: Callable[[Sequence[T]], list[Json]], size: int) -> Iterator[Json]:
    """The answers to all orders, of which `ask` gets `size` at a time."""
    for start in range(0, len(orders), size):
        print(f"precomputed: {start} of {len(orders)} are made", file=sys.stderr, flush=True)
        yield from ask(orders[start : start + size])


def describe_scienceworld() -> str:
    return f"{installation.SCIENCEWORLD.name}=={installation.SCIENCEWORLD.version}, Apache-2.0"


def describe_textworld() -> str:
    (licence,) = games.install_textworld().glob("venv/lib/python*/site-packages/textworld-*.dist-info/licenses/*")
    return f"textworld=={games.packages().version}\n{licence.read_text(encoding='utf-8')}"


FILES = {
    "scienceworld": File(
        path=records.PRECOMPUTED,
        fingerprint=installation.records_fingerprint(),
        make=make_records,
        describe_source=describe_scienceworld,
    ),
    "textworld": File(
        path=games.PRECOMPUTED,
        fingerprint=games.games_fingerprint(),
        make=make_games,
        describe_source=describe_textworld,
    ),
}


if __name__ == "__main__":
    main()
