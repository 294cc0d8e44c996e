"""A searched run beside independent tries of its agent at the same budget: success, and what an answer takes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gymcp.errors import StoreError
from gymcp.evaluators.compare import Comparison, Contender
from gymcp.evaluators.names import UPPER_BOUND_KEY, mark_upper_bound
from gymcp.evaluators.percent import format_percent
from gymcp.evaluators.statistics import Interval, mean_ci95, pass_at_k
from gymcp.evaluators.suite_groups import COMPARED_KEYS
from gymcp.store import EpisodeRow, Run, TrajectoryStore
from gymcp.store.trees.stopped_leaves import SEARCH_KEY
from gymcp.types import Usage

TITLE = "The same budget spent on independent tries"
HEADINGS = ("", "success", "95 % interval", "tokens", "calls", "cost", "seconds")
_BOUNDING = ("tokens", "calls", "cost")
"""Resources that the tries may not take more of than the search. Seconds depend on what else runs."""

Rows = Mapping[str, Sequence[EpisodeRow]]
"""Task -> its scored trials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Means for one answer to a task. Those of a search count all its episodes."""

    tokens: float
    """Tokens that models read and wrote."""
    calls: float
    cost: float
    seconds: float
    """Seconds of whole episodes, one after another, with starts and copies of servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way of getting an answer, with its success and its price."""

    name: str
    success: float
    ci95: Interval | None
    taken: Taken


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualBudget:
    """A search, one try, and as many tries as the search pays for, all on the tasks that both runs have scores of."""

    tasks: int
    ways: tuple[Way, ...]
    """The search, one try and, if the search pays for more, several tries of which the verdict picks the best."""
    pays_for: float
    """Number of tries that take as much as the search, of the resource that allows the fewest."""
    bound_by: str
    """Name of that resource."""
    words: str
    """Number of tries that was compared, and the reason for it, in sentences."""


def compare_budgets(contenders: Sequence[Contender], comparison: Comparison) -> tuple[EqualBudget, ...]:
    """Each searched run beside each run of independent tries of the same agent and policy, among those compared."""
    fit = {each.name for each in comparison.standings if each.comparable}
    searched = [each for each in contenders if each.name in fit and each.config.get("search")]
    tries = [
        each
        for each in contenders
        if each.name in fit and not each.config.get("search") and not each.config.get("branch")
    ]
    same = (*COMPARED_KEYS, "agent", "policy")
    pairs = [(a, b) for a in searched for b in tries if all(a.config.get(key) == b.config.get(key) for key in same)]
    found = [_compare(search, plain) for search, plain in pairs]
    return tuple(each for each in found if each is not None)


def lacks_judged_s(run: Run) -> bool:
    """True if the seconds of a searched run lack those of its judge or trained head, as in runs of before they counted.

    The first episode of a search tells, because a run may have been resumed later. Unreadable, it says nothing.
    """
    if not (run.config.get("search_rubric") or run.config.get("search_head")):
        return False
    with contextlib.suppress(StoreError), TrajectoryStore.open(run.folder) as store:
        for record in store.iter_trajectories(tokens=False):
            if isinstance(note := record.provenance.get(SEARCH_KEY), Mapping):
                return "judged_s" not in note
    return False


def list_ways(found: EqualBudget) -> list[tuple[str, ...]]:
    """Rows of a table with `HEADINGS`."""
    return [
        (
            way.name,
            format_percent(way.success),
            "–" if way.ci95 is None else f"{100 * way.ci95.low:.1f} to {100 * way.ci95.high:.1f} %",
            *(_format_amount(getattr(way.taken, name)) for name in ("tokens", "calls", "cost", "seconds")),
        )
        for way in found.ways
    ]


def _format_amount(amount: float) -> str:
    if not amount:
        return "–"
    return f"{amount:,.0f}" if amount >= 1000 else f"{amount:.3g}"


def _compare(search: Contender, plain: Contender) -> EqualBudget | None:
    """None if no task has scores of both, or nothing that the tries took was measured."""
    of_search, of_plain = _group(search.rows), _group(plain.rows)
    shared = of_search.keys() & of_plain.keys()
    of_search, of_plain = ({task: rows[task] for task in sorted(shared)} for rows in (of_search, of_plain))
    takes, one = _measure(of_search), _measure(of_plain)
    measured = [name for name in _BOUNDING if getattr(takes, name) and getattr(one, name)]
    measured = measured or ["seconds"] * bool(takes.seconds and one.seconds)
    if not measured:
        return None
    pays_for, bound_by = min((getattr(takes, name) / getattr(one, name), name) for name in measured)
    paid, trials = math.floor(pays_for + 1e-9), min(map(len, of_plain.values()))
    ways = [_rate(search.name, of_search, takes), _rate(f"1 try of {plain.name}", of_plain, one)]
    if (tries := min(paid, trials)) > 1:
        ways.append(_pick_best(plain.name, of_plain, one, tries))
    return EqualBudget(
        tasks=len(shared),
        ways=tuple(ways),
        pays_for=pays_for,
        bound_by=bound_by,
        words=" ".join(_explain(search, plain, f"in {bound_by}, what {pays_for:.2f} tries", paid, trials)),
    )


def _explain(search: Contender, plain: Contender, pays_for: str, paid: int, trials: int) -> list[str]:
    """Sentences on the number of tries that the search pays for, and on what the figures leave out.

    `paid`: that number, `trials`: the number that was played.
    """
    parts = [f"For an answer, {search.name} takes, {pays_for} of {plain.name} take."]
    if paid > trials:
        parts.append(f"{plain.name} has {trials} of each task: for all of them, play it with --trials {paid}.")
    if min(paid, trials) > 1:
        parts.append("The best of several tries is picked by the verdict (pass@k), as no agent could.")
    if why := search.config.get(UPPER_BOUND_KEY):
        parts.append(f"{search.name}: {why}.")
    if search.config.get("search_rubric"):
        parts.append("The tokens and the cost of the judge of the search are left out; they are in summary.json.")
    if search.config.get("search_head"):
        parts.append("The tokens that the head of the search read are left out.")
    if search.lacks_judged_s:
        parts.append("Its seconds are left out, too: the run began before they were recorded.")
    return parts


def _group(rows: Sequence[EpisodeRow]) -> dict[str, list[EpisodeRow]]:
    """Task -> its scored trials."""
    grouped: dict[str, list[EpisodeRow]] = {}
    for row in rows:
        if row.score is not None:
            grouped.setdefault(row.task, []).append(row)
    return grouped


def _measure(rows: Rows) -> Taken:
    def average(amount: Callable[[Usage], float]) -> float:
        amounts = [amount(row.usage) for of_task in rows.values() for row in of_task]
        return math.fsum(amounts) / len(amounts) if amounts else 0.0

    return Taken(
        tokens=average(lambda used: used.prompt_tokens + used.completion_tokens),
        calls=average(lambda used: used.tool_calls),
        cost=average(lambda used: used.cost),
        seconds=average(lambda used: used.wall_s),
    )


def _rate(name: str, rows: Rows, taken: Taken) -> Way:
    scores = {task: [float(row.success or False) for row in of_task] for task, of_task in rows.items()}
    flat = [score for of_task in scores.values() for score in of_task]
    return Way(name=name, success=math.fsum(flat) / len(flat), ci95=mean_ci95(scores), taken=taken)


def _pick_best(name: str, rows: Rows, one: Taken, tries: int) -> Way:
    """So many tries, of which the verdict picks the best: pass@k, unbiased from all trials of a task."""
    chances = {
        task: [pass_at_k(len(of_task), sum(row.success or False for row in of_task), tries)]
        for task, of_task in rows.items()
    }
    taken = Taken(**{key: tries * getattr(one, key) for key in Taken.__dataclass_fields__})
    return Way(
        name=mark_upper_bound(f"best of {tries} tries of {name}", "picked by the verdict"),
        success=math.fsum(chance for (chance,) in chances.values()) / len(chances),
        ci95=mean_ci95(chances),
        taken=taken,
    )
