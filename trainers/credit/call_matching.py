"""How well the calls of an episode match the gold calls: dense rewards without a model (MatchTIR)."""

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


def similarity(made: ToolCall, gold: ToolCall) -> float:
    """In [0, 1]: 0 for another tool, else how many parameter names and values agree.

    (1 + J + E) / (2 + P): J the Jaccard index of the parameter names, E how many parameters have equal values, P how
    many the gold call has. Arguments that are no object count as none.

    Source: MatchTIR, Code/verl/utils/reward_score/tool.py.
    """
    if made.name != gold.name:
        return 0.0
    given = made.arguments if not isinstance(made.arguments, str) else {}
    wanted = gold.arguments if not isinstance(gold.arguments, str) else {}
    names = given.keys() | wanted.keys()
    jaccard = len(given.keys() & wanted.keys()) / len(names) if names else 1.0
    equal = sum(1 for name, value in wanted.items() if name in given and _are_equal(given[name], value))
    return (1 + jaccard + equal) / (2 + len(wanted))


def similarities(made: Sequence[ToolCall], gold: Sequence[ToolCall]) -> Floats:
    """[P] calls, [Q] gold calls -> [P, Q]."""
    return np.array([[similarity(a, b) for b in gold] for a in made], float).reshape(len(made), len(gold))


def assign_gold(table: Floats, assignment: Assignment = "optimal") -> list[int | None]:
    """[P, Q] -> [P]: the gold call each call stands for, at most one each; None for a call that matches none.

    optimal: the largest sum there is (Kuhn-Munkres). greedy: the best pair first, again and again, which the authors'
    code does under the other's name.
    """
    chosen: list[int | None] = [None] * table.shape[0]
    if assignment == "optimal":
        for p, q in zip(*linear_sum_assignment(table, maximize=True), strict=True):
            if table[p, q] > 0:
                chosen[int(p)] = int(q)
        return chosen
    taken: set[int] = set()
    for place in np.argsort(-table, axis=None, kind="stable").tolist():
        p, q = divmod(place, table.shape[1])
        if table[p, q] > 0 and chosen[p] is None and q not in taken:
            chosen[p] = q
            taken.add(q)
    return chosen


def hard_rewards(table: Floats, *, unmatched: float = 0.0, assignment: Assignment = "optimal") -> list[float]:
    """[P, Q] -> [P]: the similarity to the gold call that a call was assign_gold; `unmatched` where there is none."""
    pairs = enumerate(assign_gold(table, assignment))
    return [unmatched if q is None else float(table[p, q]) for p, q in pairs]


def soft_rewards(table: Floats, *, regularisation: float = 0.1, rounds: int = 1000) -> list[float]:
    """[P, Q] -> [P]: each call's share of an entropic transport plan times its similarities (Sinkhorn, uniform).

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


def token_f1(said: str, wanted: str) -> float:
    """In [0, 1]: the harmonic mean of precision and recall over words; 1 where both have none."""
    a, b = Counter(_words(said)), Counter(_words(wanted))
    if not a and not b:
        return 1.0
    common = sum((a & b).values())
    return 2 * common / (sum(a.values()) + sum(b.values())) if common else 0.0


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _are_equal(a: object, b: object) -> bool:
    """True is not 1 in JSON, but 1 is 1.0."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)
