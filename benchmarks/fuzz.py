"""An hour of tests/fuzz with new seeds in every round; results/fuzz_failures.json stores how to reproduce failures.

Tests that have failed before run first, alone, with their seeds. Exit code 1 if a test failed.
"""

from __future__ import annotations

import json
import os
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
"""Seconds after which no new round starts, in full and with --quick."""
ROUND_S = 1800.0
"""Seconds after which a round counts as hung."""
ALL_PASSED, SOME_FAILED, NONE_RAN = 0, 1, 5
"""Exit codes of pytest with workers."""
MAX_EXAMPLE_CHARS = 4000
"""Characters of an example that are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    test: str
    """Argument of pytest: one test, or all tests of a round that hung or ended early."""
    seed: int
    profile: str
    example: str
    """The example that Hypothesis prints, with the line that reproduces it; else the end of the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    tests: int
    failures: list[Failure]


def main() -> None:
    parser = options(__doc__, "a minute, with the examples of `make test`")
    parser.add_argument("--seconds", type=float, help="begin no round after this many seconds")
    parser.add_argument("--tests", type=Path, default=ROOT / "tests" / "fuzz", help="folder or file")
    args = parser.parse_args()
    if not args.tests.exists():
        sys.exit(f"fuzz: no tests at {args.tests}")
    seconds = args.seconds or (QUICK_S if args.quick else FULL_S)
    profile = "gymcp" if args.quick else "nightly"
    rounds: list[Round] = []
    began = time.monotonic()
    known = {(failure.test, failure.seed, failure.profile) for failure in read_failures()}
    for test, seed, known_profile in sorted(known):
        rounds.append(run_tests(test, seed, known_profile))
    new = 0
    while not new or time.monotonic() - began < seconds:
        rounds.append(run_tests(os.path.relpath(args.tests, ROOT), secrets.randbelow(2**32), profile))
        store_failures(rounds[-1].failures)
        new += 1
    failed = [failure for one_round in rounds for failure in one_round.failures]
    results = [
        Result(metric="rounds", value=new, unit="seeds"),
        Result(metric="tried again", value=len(rounds) - new, unit="tests that failed once"),
        Result(metric="tests", value=rounds[-1].tests, unit="each round"),
        Result(metric="time", value=time.monotonic() - began, unit="s"),
        Result(metric="failed", value=len({failure.test for failure in failed}), unit="tests"),
    ]
    show("fuzz", results, as_json=args.json)
    for failure in failed:
        print(f"fuzz: {failure.test} failed with seed {failure.seed}:\n{failure.example}", file=sys.stderr)
    if failed:
        sys.exit(f"fuzz: {FAILURES} has what reproduces it")


def run_tests(tests: str, seed: int, profile: str) -> Round:
    """One round of the tests with this seed; it takes no example from Hypothesis's own database."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", f"--junitxml={report}"]
        words += [f"--hypothesis-profile={profile}", f"--hypothesis-seed={seed}", tests]
        try:
            done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=ROUND_S)
        except subprocess.TimeoutExpired:
            return Round(tests=0, failures=[Failure(test=tests, seed=seed, profile=profile, example="it hung")])
        output = (done.stdout + done.stderr)[-MAX_EXAMPLE_CHARS:]
        if done.returncode == NONE_RAN:
            print(f"fuzz: no test is there: {tests} (seed {seed}):\n{output}", file=sys.stderr)
            return Round(tests=0, failures=[])
        if done.returncode not in (ALL_PASSED, SOME_FAILED):
            return Round(tests=0, failures=[Failure(test=tests, seed=seed, profile=profile, example=output)])
        cases = list(ET.parse(report).getroot().iter("testcase"))
    failures = [
        Failure(test=node_id(case), seed=seed, profile=profile, example=example_in(part.text or ""))
        for case in cases
        for part in case
        if part.tag in ("failure", "error")
    ]
    return Round(tests=len(cases), failures=failures)


def node_id(case: ET.Element) -> str:
    """The test of a report, as an argument of pytest."""
    return f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"


def example_in(report: str) -> str:
    text = re.sub(r"^E {3,7}", "", report, flags=re.MULTILINE)
    example = re.search(r"^(?:Falsifying example|Failing test case).*", text, re.DOTALL | re.MULTILINE)
    return example[0][:MAX_EXAMPLE_CHARS] if example else text[-MAX_EXAMPLE_CHARS:]


def read_failures() -> list[Failure]:
    if not FAILURES.exists():
        return []
    return [Failure(**row) for row in json.loads(FAILURES.read_text())]


def store_failures(failures: list[Failure]) -> None:
    if failures:
        FAILURES.parent.mkdir(exist_ok=True)
        known = read_failures()
        new = [failure for failure in failures if failure not in known]
        FAILURES.write_text(json.dumps([asdict(failure) for failure in [*known, *new]], indent=1) + "\n")


if __name__ == "__main__":
    main()
