"""Caveats of a run as JSON, for ``summary.json`` and ``--json``."""

from __future__ import annotations

from dataclasses import asdict

from gymcp.evaluators.metrics import Bounds, Metrics, Rate, Retries, TreeFigures, rate_held_out
from gymcp.evaluators.metrics.user_audit import UserAudit
from gymcp.evaluators.names import LOST_IN_ALL, UPPER_BOUND_KEY
from gymcp.evaluators.report.run_data import Evidence, FaultyTasks
from gymcp.evaluators.training_curves import HeldOut, read_held_out
from gymcp.outcome import Outcome
from gymcp.types import Json

MAX_FINDINGS = 200
"""Findings of the audit of a user that are in the summary; the counts are of all."""
ESTIMATORS = {
    "pass@k": "1 - C(n-c, k) / C(n, k), mean over the tasks with n >= k scored trials, c of them successes",
    "pass^k": "C(c, k) / C(n, k), mean over the same tasks; not (c/n)^k",
}
"""Formula of each figure over several trials: the unbiased estimators of arXiv:2107.03374 and arXiv:2406.12045."""


def caveats_object(evidence: Evidence) -> dict[str, Json]:
    """Keys of a summary that say what its figures rest on."""
    metrics = evidence.metrics
    return {
        "covered": metrics.overall.coverage_share,
        "min_coverage": evidence.min_coverage,
        "refused": "; ".join(evidence.refusals) or None,
        "success_bounds": _bounds(metrics.overall.bounds),
        "score": metrics.score.value,
        "score_bounds": _bounds(metrics.score_bounds),
        "tasks": metrics.tasks,
        "tasks_without_score": metrics.tasks_without_score,
        "retries": None if metrics.retries is None else _retries(metrics.retries),
        "trials": _trials(metrics),
        "faulty": None if evidence.faulty is None else _faulty(evidence.faulty),
        **({"lost_in_all_attempts": lost} if (lost := count_graded_losses(evidence)) else {}),
        **({} if evidence.trees is None else {"trees": _trees(evidence.trees)}),
        "user_audit": None if evidence.user_audit is None else _user_audit(evidence.user_audit),
        **({} if evidence.recipe is None else {"held_out": _held_out(evidence)}),
        **({"upper_bound": str(why)} if (why := evidence.run.config.get(UPPER_BOUND_KEY)) else {}),
    }


def count_graded_losses(evidence: Evidence) -> int:
    """Episodes that are graded though a server was lost in every attempt, after a call of the agent."""
    return sum(
        row.latest and row.outcome is Outcome.BUDGET_EXHAUSTED and LOST_IN_ALL in row.reason for row in evidence.rows
    )


def _bounds(bounds: Bounds | None) -> list[float] | None:
    return None if bounds is None else [bounds.low, bounds.high]


def _held_out(evidence: Evidence) -> list[dict[str, Json]]:
    """The last evaluation of a training run on each split; the split that was evaluated most often comes first."""
    return [_evaluation(evidence, held) for held in read_held_out(evidence.curves, evidence.heldout)]


def _evaluation(evidence: Evidence, held: HeldOut) -> dict[str, Json]:
    """Success on a split after the last evaluation, and its change since the first, paired by task."""
    last, pair, rate = held.last, held.change, rate_held_out(held.newest)
    change = None
    if pair is not None and pair.difference is not None:
        change = {
            "tasks": pair.tasks,
            "difference": pair.difference,
            "ci95": None if pair.ci95 is None else [pair.ci95.low, pair.ci95.high],
            "better": pair.better,
            "worse": pair.worse,
            "p": pair.p_permutation,
        }
    return {
        "split": held.split,
        "iteration": last.iteration,
        "tasks": None if rate is None else rate.episodes,
        "scored": last.scored if rate is None else rate.scored,
        "success": last.success,
        "ci95": None if last.ci95 is None else [last.ci95.low, last.ci95.high],
        "success_bounds": None if rate is None else _bounds(rate.bounds),
        "refused": evidence.refuse_held_out(held) or None,
        "first": None if held.first is last else {"iteration": held.first.iteration, "success": held.first.success},
        "change": change,
    }


def _retries(retries: Retries) -> dict[str, Json]:
    return {
        "first": _rate(retries.first),
        "retried": _rate(retries.retried),
        "difference": retries.difference,
        "p": retries.p,
        "method": retries.method,
    }


def _rate(rate: Rate) -> dict[str, Json]:
    ci95 = None if rate.ci95 is None else [rate.ci95.low, rate.ci95.high]
    return {"episodes": rate.episodes, "scored": rate.scored, "success": rate.success, "ci95": ci95}


def _trees(trees: TreeFigures) -> dict[str, Json]:
    """Figures of trees. `pass_k_over_leaves` is another figure than `pass_k`, which counts first episodes."""
    return {
        "trees": trees.trees,
        "branched": trees.branched,
        "branches": trees.branches,
        "depth": trees.depth,
        "leaves": {"fewest": trees.leaves_fewest, "mean": trees.leaves_mean, "most": trees.leaves_most},
        "success_of_roots": _rate(trees.roots),
        "success_of_leaves": _rate(trees.leaves),
        "stopped_leaves": trees.stopped,
        "pass_k_over_leaves": [
            {"k": each.k, "at": each.at, "hat": each.hat, "tasks": each.tasks} for each in trees.pass_k
        ],
        "steps": trees.steps,
        "path_steps": trees.path_steps,
        "branches_used": {"tool_calls": trees.tool_calls, "tokens": trees.tokens, "cost": round(trees.cost, 6)},
    }


def _faulty(faulty: FaultyTasks) -> dict[str, Json]:
    return {
        "package": faulty.package,
        "checked": faulty.checked,
        "listed": faulty.listed,
        "tasks": [
            {"task": task, "reason": fault.reason, "source": fault.source} for task, fault in faulty.tasks.items()
        ],
        "with": _rate(faulty.everything),
        "without": _rate(faulty.without),
        "left_out": faulty.left_out,
    }


def _user_audit(audit: UserAudit) -> dict[str, Json]:
    return {
        "episodes": audit.episodes,
        "turns": audit.turns,
        "flagged_turns": audit.flagged_turns,
        "kinds": dict(audit.kinds),
        "flagged": _rate(audit.flagged),
        "clean": _rate(audit.clean),
        "findings": [asdict(finding) for finding in audit.findings[:MAX_FINDINGS]],
    }


def _trials(metrics: Metrics) -> dict[str, Json] | None:
    """Denominators and formulas of pass@k and pass^k; None if no task was repeated."""
    if not metrics.pass_k:
        return None
    counts = [
        {"k": each.k, "tasks": each.tasks, "tasks_short": each.short, "fewest_n": each.fewest, "most_n": each.most}
        for each in metrics.pass_k
    ]
    return {"formulas": dict(ESTIMATORS), "denominators": counts}
