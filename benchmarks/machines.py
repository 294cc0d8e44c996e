"""Runs of `make test` and `make demo` on every machine of tests/machines/run_machines.py: takes hours, and root."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from report_table import Result, options, show

SCRIPT = Path(__file__).parents[1] / "tests" / "machines" / "run_machines.py"


def main() -> None:
    args = options(__doc__, "the quick tests and a short demo").parse_args()
    words = [sys.executable, str(SCRIPT), "--json", "--at-once", "1", *([] if args.quick else ["--full"])]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        sys.exit("machines: the script said nothing")
    results = []
    for outcome in json.loads(done.stdout)["machines"]:
        for wrong in outcome["wrong"]:
            print(f"machines: {outcome['machine']}: {wrong}", file=sys.stderr)
        skipped = "; ".join(f"{why} ({number})" for why, number in outcome["skipped"].items())
        print(f"machines: {outcome['machine']}: {outcome['tests']}; skipped: {skipped or 'nothing'}", file=sys.stderr)
        results.append(Result(metric=f"{outcome['machine']}: failed", value=len(outcome["wrong"]), unit="commands"))
        results.append(
            Result(metric=f"{outcome['machine']}: skipped", value=sum(outcome["skipped"].values()), unit="tests")
        )
    show("machines", results, as_json=args.json)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
