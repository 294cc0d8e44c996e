"""The part of a report that says what its figures rest on: bounds, tasks that are lost, and episodes played again."""

from __future__ import annotations

from gymcp.evaluators.metrics import Bounds, Metrics, Rate
from gymcp.evaluators.names import LOSS_NOTE, NET_OF_PRICE, UPPER_BOUND_KEY, WITHOUT_NETWORK, mark_upper_bound
from gymcp.evaluators.percent import format_bounds
from gymcp.evaluators.report.caveats.summary import ESTIMATORS, count_graded_losses
from gymcp.evaluators.report.formatting import interval, percent
from gymcp.evaluators.report.run_data import Evidence

SIGNIFICANCE_LEVEL = 0.05
DENOMINATORS = "What the figures rest on"
TRIALS_HEADINGS = ("k", "pass@k", "pass^k", "tasks that count", "tasks with fewer than k", "n, their scored trials")


def headline(evidence: Evidence) -> str:
    """The run's success; its bounds if too few episodes have a score. It is marked if it is an upper bound."""
    bounds = evidence.metrics.overall.bounds
    success = percent(evidence.metrics.overall.success)
    figure = between(bounds) if evidence.refusal and bounds is not None else success
    return mark_upper_bound(figure, evidence.run.config.get(UPPER_BOUND_KEY))


def net_of_price(evidence: Evidence) -> str:
    """ "95.0 %": the mean of the score less what questions or calls cost; empty without prices or a headline figure."""
    net = None if evidence.recipe is not None else evidence.metrics.components.get(NET_OF_PRICE)
    return "" if net is None or evidence.refusal else percent(net)


def score_line(evidence: Evidence) -> str:
    """ "81.2 % (78.0 to 84.1 %), 488/500 scored, 12 infra"; with bounds if too few episodes have a score."""
    overall = evidence.metrics.overall
    if evidence.refusal:
        return f"no headline figure: {headline(evidence)}, {overall.coverage}"
    bounds = f" ({interval(overall.ci95)})" if overall.ci95 else ""
    return f"{headline(evidence)}{bounds}, {overall.coverage}"


def denominator_rows(evidence: Evidence) -> list[tuple[str, str]]:
    """(name, value) of each line; empty for a run without episodes."""
    metrics = evidence.metrics
    overall = metrics.overall
    if overall.bounds is None or metrics.score_bounds is None:
        return []
    rows = [("episodes with a score", f"{overall.coverage} ({percent(overall.coverage_share)})")]
    if why := evidence.run.config.get(UPPER_BOUND_KEY):
        rows.append(("success is an upper bound", str(why)))
    if lost := overall.episodes - overall.scored:
        one = "it" if lost == 1 else "they"
        rows += [
            (f"success, if {one} had failed, and succeeded", between(overall.bounds)),
            (f"mean score, if {one} had failed, and succeeded", between(metrics.score_bounds)),
        ]
    if graded := count_graded_losses(evidence):
        rows.append(("graded though a server was lost in every attempt", f"{graded}: {LOSS_NOTE}"))
    if evidence.recipe is None:
        rows.append(("coverage floor of the headline", percent(evidence.min_coverage)))
    if net := net_of_price(evidence):
        rows.append(("mean score, less the price of questions and calls", net))
    with_score = metrics.tasks - metrics.tasks_without_score
    gone = (
        f"; no figure says anything about the other {metrics.tasks_without_score}" if with_score < metrics.tasks else ""
    )
    rows.append(("tasks with a score", f"{with_score} of {metrics.tasks}{gone}"))
    return rows + _network_rows(metrics) + _retry_rows(metrics)


def _network_rows(metrics: Metrics) -> list[tuple[str, str]]:
    """The calls that failed because no host could be reached, which says nothing of the agent; empty without any."""
    failed = {name: int(figures.get(WITHOUT_NETWORK, 0)) for name, figures in metrics.spent.tools.items()}
    names = ", ".join(f"{name} {count}" for name, count in failed.items() if count)
    return [("calls that failed for want of network", f"{sum(failed.values())} ({names})")] if names else []


def _retry_rows(metrics: Metrics) -> list[tuple[str, str]]:
    retries = metrics.retries
    if retries is None:
        return []
    rows = [
        ("success of episodes scored at the first attempt", _describe_rate(retries.first)),
        ("success of episodes lost and played again", _describe_rate(retries.retried)),
    ]
    if retries.difference is None or retries.p is None:
        return [*rows, ("played again against first attempt", "one of the two has no score")]
    size = f"{100 * retries.difference:+.1f} points, p = {retries.p:.2g} ({retries.method})"
    says = "playing again has moved the result" if retries.p < SIGNIFICANCE_LEVEL else "no difference is shown"
    return [*rows, ("played again against first attempt", f"{size}: {says}")]


def trials_rows(metrics: Metrics) -> list[tuple[str, ...]]:
    """The figures over k trials with their denominators; the columns are `TRIALS_HEADINGS`."""
    return [
        (
            str(each.k),
            percent(each.at),
            percent(each.hat),
            str(each.tasks),
            str(each.short),
            str(each.most) if each.fewest == each.most else f"{each.fewest} to {each.most}",
        )
        for each in metrics.pass_k
    ]


def trials_note() -> str:
    """Formulas of the figures over k trials."""
    return "; ".join(f"{name} = {formula}" for name, formula in ESTIMATORS.items()) + "."


def _describe_rate(rate: Rate) -> str:
    bounds = f" ({interval(rate.ci95)})" if rate.ci95 else ""
    return f"{percent(rate.success)}{bounds}, {rate.coverage}"


def between(bounds: Bounds) -> str:
    """ "70.2 .. 87.8 %"."""
    return format_bounds(bounds.low, bounds.high)
