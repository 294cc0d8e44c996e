"""Tests that take a sample in `make test`, here with all of it.

Every attempt on the sandbox is made on every start path; BFCL's 800 tasks and 500 imperfect episodes are judged by
upstream; two training processes have all kinds of models, and interpreters of their own; the properties of presets are
tried on 50 batches; a Ray cluster plays trees, loses workers that hang, and gets models and projects that its nodes
lack.
Exit code 1 if a test fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

from report_table import Result, options, show

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/adversarial/test_attempts.py",
    "tests/adversarial/test_hostile_programs.py",
    "tests/envs/test_mean.py",
    "tests/scale/long_ray_copies.py",
    "tests/scale/long_ray_files.py",
    "tests/scale/long_ray_plan.py",
    "tests/scale/long_ray_runs.py",
    "tests/scale/long_ray_vllm.py",
    "tests/suites/test_bfcl_parity.py",
    "tests/suites/test_bfcl_recorded.py",
    "tests/suites/test_bfcl_tasks.py",
    "tests/suites/test_unconfined_install.py",
    "tests/trainers/test_degenerate.py",
    "tests/trainers/test_processes.py",
)
LIMIT_S = 3600.0
"""Seconds after which the tests count as hung."""


def main() -> None:
    args = options(__doc__, "the samples of `make test`").parse_args()
    env = {**os.environ, "GYMCP_FULL_TESTS": "0" if args.quick else "1"}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *TESTS]
        done = subprocess.run(words, cwd=ROOT, env=env, stdout=sys.stderr, check=False, timeout=LIMIT_S)
        cases = list(ET.parse(report).getroot().iter("testcase")) if report.exists() else []
    passed = sum(not any(part.tag in ("failure", "error", "skipped") for part in case) for case in cases)
    results = [Result(metric="passed", value=passed, unit=f"of {len(cases)} tests")]
    results += [
        Result(metric=str(case.get("name")), value=float(case.get("time", 0)), unit="s")
        for case in cases
        if float(case.get("time", 0)) >= 1
    ]
    show("full_tests", results, as_json=args.json)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
