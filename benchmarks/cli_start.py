"""Seconds of CPU that `gymcp` takes before anything runs: help, version, a wrong option, completion, help of a verb.

User and system time of the process and its children; rounds are interleaved, and the median counts. The baseline is
`python -c "import typer, rich"`, in the same rounds. Exit code 1 if a command does not answer as it must, or if one
that has to answer at once takes more than `LIMIT_S`.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from report_table import all_against, options, show

GYMCP = str(Path(sys.executable).with_name("gymcp"))
BASELINE = "import typer, rich"
LIMIT_S = 0.35
"""Seconds of CPU in which the help of gymcp, its version, a wrong option and completion answer."""
RUNS = 50
"""Run folders among which one is completed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command, and a part of what it must print."""

    words: tuple[str, ...]
    answer: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    at_once: bool = True
    """False for a command to which the limit does not apply."""


def complete(line: str, answer: str) -> Command:
    """The question that bash asks when Tab is pressed at the end of the line."""
    env = {"_GYMCP_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    return Command(words=(GYMCP,), answer=answer, env=env)


COMMANDS: dict[str, Command] = {
    BASELINE: Command(words=(sys.executable, "-c", BASELINE)),
    "--version": Command(words=(GYMCP, "--version"), answer="gymcp "),
    "--help": Command(words=(GYMCP, "--help"), answer="eval"),
    "a wrong option": Command(words=(GYMCP, "--no-such-option"), answer="no such option"),
    "completion of an environment": complete("gymcp eval b", "bfcl"),
    "completion of an agent": complete("gymcp eval bfcl --agent r", "random"),
    "completion of a preset": complete("gymcp credit runs/run-7 --preset g", "gigpo"),
    f"completion of a run among {RUNS}, report": complete("gymcp report runs/run-", f"runs/run-{RUNS - 1}"),
    f"completion of a run among {RUNS}, view": complete("gymcp view runs/run-", f"runs/run-{RUNS - 1}"),
    "eval --help": Command(words=(GYMCP, "eval", "--help"), answer="--policy", at_once=False),
    "a wrong option of eval": Command(words=(GYMCP, "eval", "--no-such-option"), answer="no such option"),
    "report of no run": Command(words=(GYMCP, "report", "nowhere"), answer="nowhere", at_once=False),
}


def main() -> None:
    args = options(__doc__, "3 rounds instead of 15").parse_args()
    rounds = 3 if args.quick else 15
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        make_runs(Path(folder))
        for number in range(rounds + 1):
            for name, command in COMMANDS.items():
                seconds = cpu_seconds(command, Path(folder))
                if number:  # the first round warms the cache of files
                    times[name].append(seconds)
    medians = {name: statistics.median(each) for name, each in times.items()}
    show("cli_start", all_against(medians, "s of CPU", BASELINE), as_json=args.json)
    slow = [name for name, command in COMMANDS.items() if command.at_once and medians[name] > LIMIT_S]
    if slow:
        raise SystemExit(f"cli_start: more than {LIMIT_S} s of CPU: {', '.join(slow)}")


def make_runs(folder: Path) -> None:
    """Write what marks a run folder."""
    for number in range(RUNS):
        run = folder / "runs" / f"run-{number}"
        run.mkdir(parents=True)
        (run / "run.json").write_text("{}")


def cpu_seconds(command: Command, folder: Path) -> float:
    """User and system time of a command in this folder. Raises SystemExit if it prints something else."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command.words, cwd=folder, env={**os.environ, **command.env}, capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if command.answer not in done.stdout + done.stderr:
        line = command.env.get("COMP_WORDS", " ".join(command.words))
        raise SystemExit(f"cli_start: {line}: printed no {command.answer!r}: {done.stdout}{done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
