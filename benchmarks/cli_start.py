"""Seconds of CPU that `gymcp` takes before anything runs: help, version, a wrong option, completion, help of a verb.

User and system time of the process and its children; rounds are interleaved, and the median counts. The baseline is
`python -c "import typer, rich"`, in the same rounds.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from report_table import all_against, options, show

GYMCP = str(Path(sys.executable).with_name("gymcp"))
BASELINE = "import typer, rich"
COMPLETION = {"_GYMCP_COMPLETE": "complete_bash", "COMP_WORDS": "gymcp eval b", "COMP_CWORD": "2"}
COMMANDS: dict[str, tuple[Sequence[str], dict[str, str]]] = {
    BASELINE: ((sys.executable, "-c", BASELINE), {}),
    "--version": ((GYMCP, "--version"), {}),
    "--help": ((GYMCP, "--help"), {}),
    "a wrong option": ((GYMCP, "--no-such-option"), {}),
    "completion of an environment": ((GYMCP,), COMPLETION),
    "eval --help": ((GYMCP, "eval", "--help"), {}),
    "a wrong option of eval": ((GYMCP, "eval", "--no-such-option"), {}),
    "report of no run": ((GYMCP, "report", "nowhere"), {}),
}


def main() -> None:
    args = options(__doc__, "3 rounds instead of 15").parse_args()
    rounds = 3 if args.quick else 15
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(rounds + 1):
        for name, (words, env) in COMMANDS.items():
            seconds = cpu_seconds(words, env)
            if number:  # the first round warms the cache of files
                times[name].append(seconds)
    medians = {name: statistics.median(each) for name, each in times.items()}
    show("cli_start", all_against(medians, "s of CPU", BASELINE), as_json=args.json)


def cpu_seconds(words: Sequence[str], env: dict[str, str]) -> float:
    """User and system time of a command, which may fail."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, env={**os.environ, **env}, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
