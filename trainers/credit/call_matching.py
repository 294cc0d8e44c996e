"""Similarity between an episode's tool calls and the gold calls: dense rewards without a model (MatchTIR)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy.optimize import linear_sum_assignment

from gymcp.trainers.settings.arrays import Floats
from gymcp.types import ToolCall

Assignment = Literal["optimal", "greedy"]


def similarity(call: ToolCall, gold: ToolCall) -> float:
    """Similarity in [0, 1]: 0 for another tool, else the agreement of parameter names and values.

    The formula is (1 + J + E) / (2 + P): J is the Jaccard index of the parameter names, E the number of parameters with
    equal values, P the number of parameters of the gold call. Arguments that are no object count as none.

    Source: MatchTIR, Code/verl/utils/reward_score/tool.py.
    """
    if call.name != gold.name:
        return 0.0
    arguments = call.arguments if not isinstance(call.arguments, str) else {}
    expected = gold.arguments if not isinstance(gold.arguments, str) else {}
    names = arguments.keys() | expected.keys()
    jaccard = len(arguments.keys() & expected.keys()) / len(names) if names else 1.0
    equal = sum(1 for name, value in expected.items() if name in arguments and _are_equal(arguments[name], value))
    return (1 + jaccard + equal) / (2 + len(expected))


def similarities(calls: Sequence[ToolCall], gold: Sequence[ToolCall]) -> Floats:
    """[P] calls, [Q] gold calls -> [P, Q] similarities."""
    return np.array([[similarity(a, b) for b in gold] for a in calls], float).reshape(len(calls), len(gold))


def assign_gold(table: Floats, assignment: Assignment = "optimal") -> list[int | None]:
    """[P, Q] -> [P]: index of the gold call that each call is matched with, at most one each; None for a call without a
    match.

    optimal: the matching with the largest sum (Kuhn-Munkres). greedy: the best remaining pair, again and again; the
    authors' code does this under the name of the optimal one.
    """
    matches: list[int | None] = [None] * table.shape[0]
    if assignment == "optimal":
        for p, q in zip(*linear_sum_assignment(table, maximize=True), strict=True):
            if table[p, q] > 0:
                matches[int(p)] = int(q)
        return matches
    used: set[int] = set()
    for cell in np.argsort(-table, axis=None, kind="stable").tolist():
        p, q = divmod(cell, table.shape[1])
        if table[p, q] > 0 and matches[p] is None and q not in used:
            matches[p] = q
            used.add(q)
    return matches


def hard_rewards(table: Floats, *, unmatched: float = 0.0, assignment: Assignment = "optimal") -> list[float]:
    """[P, Q] -> [P]: similarity of each call to the gold call that it is matched with; `unmatched` for a call without
    one."""
    pairs = enumerate(assign_gold(table, assignment))
    return [unmatched if q is None else float(table[p, q]) for p, q in pairs]


def soft_rewards(table: Floats, *, regularisation: float = 0.1, rounds: int = 1000) -> list[float]:
    """[P, Q] -> [P]: share of each call in an entropic transport plan, times its similarities (Sinkhorn, uniform
    marginals).

    The shares of a call sum to 1 / P, as in the authors' code, so longer episodes have smaller rewards.
    """
    calls, golds = table.shape
    if not calls or not golds:
        return [0.0] * calls
    kernel = np.exp(-(1.0 - table) / regularisation)
    rows, columns = np.full(calls, 1.0 / calls), np.full(golds, 1.0 / golds)
    left, right = np.ones(calls), np.ones(golds)
    for _ in range(rounds):
        left = rows / (kernel @ right)
        right = columns / (kernel.T @ left)
    plan = left[:, None] * kernel * right[None, :]
    return [float(value) for value in (plan * table).sum(axis=1)]


def token_f1(answer: str, expected: str) -> float:
    """F1 in [0, 1]: the harmonic mean of precision and recall over words; 1 if neither text has a word."""
    a, b = Counter(_words(answer)), Counter(_words(expected))
    if not a and not b:
        return 1.0
    common = sum((a & b).values())
    return 2 * common / (sum(a.values()) + sum(b.values())) if common else 0.0


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _are_equal(a: object, b: object) -> bool:
    """JSON equality of scalars: true is not 1, but 1 is 1.0."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)
