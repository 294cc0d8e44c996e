"""The report of a run: reads only its folder, writes ``summary.json`` and ``report.html`` into it."""

from gymcp.evaluators.report.write import write_report

__all__ = ["write_report"]
