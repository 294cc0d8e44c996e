"""The part of a report on the sources of credit, with advice for training."""

from __future__ import annotations

from gymcp.evaluators.report.html import Html, element, join, table
from gymcp.evaluators.report.run_data import Evidence
from gymcp.evaluators.report.sections import section

CREDIT = "Where credit comes from"
CREDIT_NOTE = "For training on such episodes; docs/credit.md explains it, gymcp credit RUN --diagnose prints all of it."


def credit_section(evidence: Evidence) -> Html:
    """Sentences of advice, and the figures behind them; empty if there are none."""
    advice = evidence.credit
    if advice is None:
        return join()
    sentences = (element("p", sentence) for sentence in advice.advice)
    return section(CREDIT, *sentences, table(("", ""), list(advice.figures)), note=CREDIT_NOTE)
