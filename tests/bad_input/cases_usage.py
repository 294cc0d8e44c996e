"""Words that no verb takes."""

from __future__ import annotations

from case import Case
from things import BANK, record_run

CASES: tuple[Case, ...] = (
    Case("a verb with a typing error", "evl bank.py", ""),
    Case("no such option before the verb", "--quiet eval bank.py", ""),
    Case("an option with a typing error", "eval bank.py --polcy tiny", "", given={"bank.py": BANK}),
    Case("eval without an environment", "eval", ""),
    Case("a number that is no number", "eval bank.py --trials many", "", given={"bank.py": BANK}),
    Case("no trials", "eval bank.py --trials 0", "", given={"bank.py": BANK}),
    Case("an option without its value", "report run --format", "", given={"run": record_run}),
    Case("too many words", "grade run other", "", given={"run": record_run}),
    Case("a port that is no port", "view run --port 99999", "", given={"run": record_run}),
    Case("doctor with a typing error", "doctor --jsn", ""),
    Case("a part of the demo that is not there", "demo --only tennis", ""),
    Case("an interval of 0 s", "watch run --every 0", "", given={"run": record_run}),
    Case("a resolution above 1", "compare run run --resolution 2", "", given={"run": record_run}),
    Case("an empty verb", "''", ""),
    Case("servers with an unknown verb", "servers remove x", ""),
    Case("judge agreement without labels", "judge agreement", ""),
    Case("shell completion of an unknown shell", "eval --install-completion fish2", ""),
    Case("an option before the verb that needs one", "--debug", ""),
    Case("a width that is no number", "report nowhere", "", env={"COLUMNS": "many"}),
    Case("control characters in a verb", "'\x1b[2Jevl'", ""),
)
