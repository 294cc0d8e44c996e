"""An hour of tests/fuzz with ever new seeds; what reproduces a failure is kept in results/fuzz_failures.json.

Seeds that failed once are tried first. Exit code 1 if a test failed.
"""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import asdict, dataclass
from pathlib import Path

from report_table import Result, options, show

ROOT = Path(__file__).parents[1]
FAILURES = Path(__file__).with_name("results") / "fuzz_failures.json"
FULL_S, QUICK_S = 3600.0, 60.0
ROUND_S = 1800.0
"""Seconds after which a round counts as hung."""
EXAMPLE_CHARS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    test: str
    seed: int
    example: str
    """As Hypothesis prints it, with the line that reproduces it; else the end of the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    tests: int
    failures: list[Failure]


def main() -> None:
    parser = options(__doc__, "a minute, with the examples of `make test`")
    parser.add_argument("--seconds", type=float, help="begin no round after this many seconds")
    parser.add_argument("--tests", type=Path, default=ROOT / "tests" / "fuzz", help="folder or file")
    args = parser.parse_args()
    seconds = args.seconds or (QUICK_S if args.quick else FULL_S)
    profile = "gymcp" if args.quick else "nightly"
    waiting = sorted({kept.seed for kept in kept_failures()})
    rounds: list[Round] = []
    began = time.monotonic()
    while not rounds or time.monotonic() - began < seconds:
        seed = waiting.pop() if waiting else secrets.randbelow(2**32)
        rounds.append(play(args.tests, seed, profile))
        keep(rounds[-1].failures)
    failed = [failure for each in rounds for failure in each.failures]
    results = [
        Result(metric="rounds", value=len(rounds), unit="seeds"),
        Result(metric="tests", value=rounds[0].tests, unit="each round"),
        Result(metric="time", value=time.monotonic() - began, unit="s"),
        Result(metric="failed", value=len({failure.test for failure in failed}), unit="tests"),
    ]
    show("fuzz", results, as_json=args.json)
    for failure in failed:
        print(f"fuzz: {failure.test} failed with seed {failure.seed}:\n{failure.example}", file=sys.stderr)
    if failed:
        sys.exit(f"fuzz: what reproduces it is kept in {FAILURES}")


def play(tests: Path, seed: int, profile: str) -> Round:
    """All tests once with this seed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", f"--junitxml={report}"]
        words += [f"--hypothesis-profile={profile}", f"--hypothesis-seed={seed}", str(tests)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=ROUND_S)
        if done.returncode not in (0, 1):
            sys.exit(f"fuzz: the tests did not run:\n{(done.stdout + done.stderr)[-3000:]}")
        cases = list(ET.parse(report).getroot().iter("testcase"))
    failures = [
        Failure(test=f"{case.get('classname')}::{case.get('name')}", seed=seed, example=example_in(said.text or ""))
        for case in cases
        for said in case
        if said.tag in ("failure", "error")
    ]
    return Round(tests=len(cases), failures=failures)


def example_in(report: str) -> str:
    said = re.sub(r"^E {3,7}", "", report, flags=re.MULTILINE)
    found = re.search(r"^(?:Falsifying example|Failing test case).*", said, re.DOTALL | re.MULTILINE)
    return found[0][:EXAMPLE_CHARS] if found else said[-EXAMPLE_CHARS:]


def kept_failures() -> list[Failure]:
    if not FAILURES.exists():
        return []
    return [Failure(**kept) for kept in json.loads(FAILURES.read_text())]


def keep(failures: list[Failure]) -> None:
    if failures:
        FAILURES.parent.mkdir(exist_ok=True)
        known = kept_failures()
        new = [failure for failure in failures if failure not in known]
        FAILURES.write_text(json.dumps([asdict(failure) for failure in [*known, *new]], indent=1) + "\n")


if __name__ == "__main__":
    main()
