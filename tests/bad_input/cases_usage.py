"""Words that no verb takes."""

from __future__ import annotations

from case import Case
from things import BANK, record_run

CASES: tuple[Case, ...] = (
    Case("a verb with a typing error", "evl bank.py", "no such command 'evl'; did you mean 'eval'; see gymcp --help"),
    Case("no such option before the verb", "--quiet eval bank.py", "no such option: --quiet; see gymcp --help"),
    Case(
        "an option with a typing error",
        "eval bank.py --polcy tiny",
        "eval: no such option: --polcy (Possible options: --plan, --policy, --user-policy); see gymcp eval --help",
        given={"bank.py": BANK},
    ),
    Case(
        "an option of another framework",
        "eval bank.py --model tiny",
        "eval: no such option: --model; here it is --policy; see gymcp eval --help",
        given={"bank.py": BANK},
    ),
    Case("eval without an environment", "eval", "eval: missing argument 'ENV...'; see gymcp eval --help"),
    Case(
        "a number that is no number",
        "eval bank.py --trials many",
        "eval: invalid value for '--trials': must be a valid integer, unable to parse string as an integer; see",
        given={"bank.py": BANK},
    ),
    Case(
        "no trials",
        "eval bank.py --trials 0",
        "eval: invalid value for '--trials': must be greater than or equal to 1; see gymcp eval --help",
        given={"bank.py": BANK},
    ),
    Case(
        "an option without its value",
        "report run --format",
        "report: option '--format' requires an argument; see gymcp report --help",
        given={"run": record_run},
    ),
    Case(
        "too many words",
        "grade run other",
        "grade: got unexpected extra argument(s) (other); see gymcp grade --help",
        given={"run": record_run},
    ),
    Case(
        "a port that is no port",
        "view run --port 99999",
        "view: invalid value for '--port': must be less than or equal to 65535; see gymcp view --help",
        given={"run": record_run},
    ),
    Case(
        "doctor with a typing error",
        "doctor --jsn",
        "doctor: no such option: --jsn (Possible options: --json); see gymcp doctor --help",
    ),
    Case(
        "an error of a command with --json",
        "eval nope --json",
        "no environment 'nope'",
        prints='{"error": "no environment \'nope\'',
    ),
    Case(
        "a typing error beside --json",
        "eval bank.py --polcy tiny --json",
        "eval: no such option: --polcy",
        given={"bank.py": BANK},
        prints='see gymcp eval --help", "exit_code": 2}',
    ),
    Case(
        "a part of the demo that is not there",
        "demo --only tennis",
        "demo: invalid value for '--only': 'tennis' is not one of 'bfcl', 'tiny', 'train'; see gymcp demo --help",
    ),
    Case(
        "an interval of 0 s",
        "watch run --every 0",
        "watch: invalid value for '--every': must be greater than or equal to 0.1; see gymcp watch --help",
        given={"run": record_run},
    ),
    Case(
        "a resolution above 1",
        "compare run run --resolution 2",
        "compare: invalid value for '--resolution': must be less than or equal to 1; see gymcp compare --help",
        given={"run": record_run},
    ),
    Case("an empty verb", "''", "no such command ''; see gymcp --help"),
    Case(
        "servers with an unknown verb",
        "servers remove x",
        "servers: no such command 'remove'; see gymcp servers --help",
    ),
    Case(
        "judge agreement without labels",
        "judge agreement",
        "judge agreement: missing argument 'LABELS|RUN'; see gymcp judge agreement --help",
    ),
    Case(
        "shell completion of an unknown shell",
        "eval --install-completion fish2",
        "eval: no such option: --install-completion; see gymcp eval --help",
    ),
    Case("an option before the verb that needs one", "--debug", "missing command; see gymcp --help"),
    Case("a width that is no number", "report nowhere", "run folder nowhere: no such folder", env={"COLUMNS": "many"}),
    Case("control characters in a verb", "'\x1b[2Jevl'", "no such command '\\x1b[2Jevl'; see gymcp --help"),
)
