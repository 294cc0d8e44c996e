"""The coverage floor: the share of scored episodes below which a run gets no headline figure and no rank."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from gymcp.evaluators.metrics.records import Rate
from gymcp.store import EpisodeRow
from gymcp.types import Json

MIN_COVERAGE = 0.95
"""Share of a run's episodes that must have a score, unless the run's config or an option says otherwise."""
MIN_COVERAGE_KEY = "min_coverage"
"""Key of a run's config that holds its own floor."""


def coverage_floor(config: Mapping[str, Json], asked: float | None = None) -> float:
    """The floor of a run: the one that was asked for, else that of its config, else `MIN_COVERAGE`."""
    if asked is not None:
        return asked
    own = config.get(MIN_COVERAGE_KEY)
    return own if isinstance(own, int | float) and not isinstance(own, bool) and 0 <= own <= 1 else MIN_COVERAGE


def has_headline(rate: Rate, floor: float) -> bool:
    """False if too few of the episodes have a score; a run without episodes is not refused."""
    return rate.coverage_share is None or rate.coverage_share >= floor


def explain_low_coverage(
    rate: Rate, floor: float, *, lost: Iterable[EpisodeRow], folder: str, counted: str = "episodes"
) -> str:
    """Reason why the run's success is no headline figure, its bounds instead, and what to do; empty if it is one.

    `lost`: the counted episodes without a score that can be scored yet. `counted`: plural of what the rate counts. A
    run without episodes has no figure in any case: empty.
    """
    bounds, covered = rate.bounds, rate.coverage_share
    if bounds is None or covered is None or has_headline(rate, floor):
        return ""
    reasons = {row.outcome.runs_again for row in lost}
    folder = shlex.quote(folder)
    todo = [f"repeat its command with --out {folder} --resume"] if True in reasons else []
    todo += [f"gymcp grade {folder}"] if False in reasons else []
    hint = f"to score the lost ones: {'; then: '.join(todo)}; " if todo else ""
    # the option takes a share; rounded down, so that it accepts this run
    accepted = int(covered * 1000) / 1000
    return (
        f"{rate.scored} of {rate.episodes} {counted} ({_percent(covered)}) have a score, below the floor of "
        f"{_percent(floor)}: over all {counted}, success is between {_percent(bounds.low)} (all lost ones failed) and "
        f"{_percent(bounds.high)} (all succeeded); {hint}to accept this coverage: --min-coverage {accepted:g}"
    )


def _percent(share: float) -> str:
    """ "82.4 %", and "95 %" for whole numbers; never rounded up to the next tenth, so that 94.96 % is not 95 %."""
    return f"{int(share * 1000 + 1e-9) / 10:g} %"
