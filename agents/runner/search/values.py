"""Values of episodes in a search, in [0, 1]. All but `verdict` come from the episodes, not from what a grader says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from gymcp.agents.runner.search.moves import End, Leaf
from gymcp.types import Trajectory

VERDICT = "verdict"
"""Name of the value that sees what graders say: success with it is an upper bound."""

JUDGE = "judge"
"""Name of the value that a model gives by a rubric."""

STEP_VALUE = "q"
"""Name of the value that a head gives, which was trained to tell the score of an episode from its steps so far."""


class StepRater(Protocol):
    """A trained head, as a search asks it."""

    @property
    def tasks(self) -> frozenset[str]:
        """``ENV/TASK`` of the episodes whose scores it has learnt from."""
        ...

    def rate(self, record: Trajectory) -> float:
        """The score in [0, 1] that an episode will have, by its steps so far. Called in a thread."""
        ...


Value = Callable[[Leaf, Sequence[Leaf]], float]
"""(episode, the episodes that it is compared with, itself among them) -> value."""


def agreement(leaf: Leaf, among: Sequence[Leaf]) -> float:
    """Share of the episodes that have left the world in the same state, and ended in the same way."""
    if leaf.end in (End.CUT, End.LOST):
        return 0.0
    return sum(_ends_alike(leaf, other) for other in among) / len(among)


def answer(leaf: Leaf, among: Sequence[Leaf]) -> float:
    """As `agreement`, and the agent's last text must be the same, apart from case and space."""
    if leaf.end in (End.CUT, End.LOST):
        return 0.0
    said = _last_text(leaf)
    return sum(_ends_alike(leaf, other) and _last_text(other) == said for other in among) / len(among)


def clean(leaf: Leaf, among: Sequence[Leaf]) -> float:
    """Share of the calls on the path that did not fail; 1 without calls, 0 if the search or a budget has ended it."""
    if leaf.end not in (End.FINISHED, End.PAUSED):
        return 0.0
    results = [result for step in leaf.record.steps for result in step.results]
    return 1.0 - sum(result.is_error for result in results) / len(results) if results else 1.0


def judge(leaf: Leaf, among: Sequence[Leaf]) -> float:
    """The score that the judge, or the head, gave to the episode; 0 for one that it was not asked about, or gave no
    verdict on."""
    return leaf.judged or 0.0


def verdict(leaf: Leaf, among: Sequence[Leaf]) -> float:
    """The environment's score of the episode as it stands; 0 without a score."""
    return leaf.record.score or 0.0


def _ends_alike(one: Leaf, other: Leaf) -> bool:
    return one.end is other.end and one.record.final_key == other.record.final_key


def _last_text(leaf: Leaf) -> str:
    steps = leaf.record.steps
    return " ".join(steps[-1].action.text.split()).casefold() if steps else ""


VALUES: Mapping[str, Value] = {
    "agreement": agreement,
    "answer": answer,
    "clean": clean,
    JUDGE: judge,
    STEP_VALUE: judge,
    VERDICT: verdict,
}
