"""Coverage of a judge that is an environment's grader: how many episodes have its verdict, and why others have none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gymcp.evaluators.judge.rubric_grader import JudgeNotAsked, JudgeSilent
from gymcp.evaluators.judge.verdict import NoVerdict
from gymcp.evaluators.names import list_judged_parts
from gymcp.outcome import Outcome
from gymcp.store import EpisodeRow
from gymcp.types import Json

KINDS: Mapping[str, str] = {
    JudgeNotAsked.__name__: "not asked",
    JudgeSilent.__name__: "no answer",
    NoVerdict.__name__: "no verdict in the answer",
}
"""Name of the error that a grade gives as its reason -> words for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCoverage:
    """Episodes whose grader needs a judge."""

    judged: int
    """Episodes with a verdict."""
    lost: Mapping[str, int]
    """Words of `KINDS` -> episodes without a verdict, and so without a score."""

    @property
    def episodes(self) -> int:
        """Number of episodes that needed a verdict."""
        return self.judged + sum(self.lost.values())

    @property
    def words(self) -> str:
        """The coverage in words: "18/20 judged, 2 no answer"."""
        return ", ".join([f"{self.judged}/{self.episodes} judged", *(f"{n} {kind}" for kind, n in self.lost.items())])

    def object(self) -> dict[str, Json]:
        """The coverage for ``summary.json``."""
        return {"judged": self.judged, "episodes": self.episodes, "lost": dict(self.lost), "words": self.words}


def judge_coverage(rows: Sequence[EpisodeRow]) -> JudgeCoverage | None:
    """Coverage over the newest attempts; None if no grade needed a judge, or ``gymcp judge`` gave the grades."""
    latest = [row for row in rows if row.latest and not (row.grader or "").startswith("judge ")]
    judged = sum(bool(list_judged_parts(row.components)) for row in latest)
    lost = Counter(kind for row in latest if (kind := _kind_of_loss(row)))
    if not judged and not lost:
        return None
    return JudgeCoverage(judged=judged, lost=dict(sorted(lost.items())))


def _kind_of_loss(row: EpisodeRow) -> str:
    if row.outcome is not Outcome.GRADER_ERROR:
        return ""
    return next((words for name, words in KINDS.items() if f"{name}: " in row.reason), "")
