"""Reports of runs. They read only the run folders, and for gates the folders beside them."""

from gymcp.evaluators.report.run_data import CreditAdvice, FindCredit, FindTasks
from gymcp.evaluators.report.write import FORMATS, REPORT_FILE, Report, read_report, write_report, write_text

__all__ = [
    "FORMATS",
    "REPORT_FILE",
    "CreditAdvice",
    "FindCredit",
    "FindTasks",
    "Report",
    "read_report",
    "write_report",
    "write_text",
]
