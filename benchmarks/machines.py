"""Runs of `make test` and `make demo` on every machine of tests/machines/run_machines.py: takes hours, and root.

The machines are made one after the other; with ``--only`` these alone. What each said is printed as soon as it is
done, so that a run that is interrupted has told something.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from report_table import Result, options, show

SCRIPT = Path(__file__).parents[1] / "tests" / "machines" / "run_machines.py"


def list_machines() -> list[str]:
    """Names of all machines."""
    listed = subprocess.run([sys.executable, str(SCRIPT), "--list"], stdout=subprocess.PIPE, text=True, check=True)
    return listed.stdout.split()


def run(machine: str, *, quick: bool) -> dict[str, Any]:
    """Outcome of one machine, as the script prints it."""
    words = [sys.executable, str(SCRIPT), "--json", "--only", machine, *([] if quick else ["--full"])]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        sys.exit(f"machines: {machine}: the script said nothing")
    outcome: dict[str, Any] = json.loads(done.stdout)["machines"][0]
    for wrong in outcome["wrong"]:
        print(f"machines: {machine}: {wrong}", file=sys.stderr)
    skipped = "; ".join(f"{why} ({number})" for why, number in outcome["skipped"].items())
    print(
        f"machines: {machine}: {outcome['tests']} ({outcome['seconds']:.0f} s); skipped: {skipped or 'nothing'}",
        file=sys.stderr,
        flush=True,
    )
    return outcome


def main() -> None:
    parser = options(__doc__, "the quick tests and a short demo")
    parser.add_argument("--only", action="append", metavar="NAME", help="make this machine alone; may be repeated")
    args = parser.parse_args()
    outcomes = [run(machine, quick=args.quick) for machine in args.only or list_machines()]
    results = []
    for outcome in outcomes:
        name, skipped = outcome["machine"], sum(outcome["skipped"].values())
        results.append(Result(metric=f"{name}: failed", value=len(outcome["wrong"]), unit="commands"))
        results.append(Result(metric=f"{name}: skipped", value=skipped, unit="tests"))
        results.append(Result(metric=f"{name}: time", value=outcome["seconds"], unit="s"))
    show("machines", results, as_json=args.json)
    sys.exit(1 if any(outcome["wrong"] for outcome in outcomes) else 0)


if __name__ == "__main__":
    main()
