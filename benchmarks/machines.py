"""Runs of `make test` and `make demo` on every machine of tests/machines/run_machines.py: takes hours, and root.

The machines are made one after the other; with ``--only`` these alone. The output of each is printed as soon as it is
done, and with ``--keep`` written into results/machines.json, beside the machines of earlier runs. Typed again with the
same code it goes on with the machines that are left.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from parts import RESULTS, Part, keep_part, list_left, make_part, read_parts, show_parts
from report_table import Result, options

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
    parser.add_argument("--keep", action="store_true", help="add each machine to results/machines.json when it is done")
    args = parser.parse_args()
    if args.keep and args.quick:
        parser.error("--keep is for full runs: leave --quick out")
    parts: dict[str, Part] = {}
    for name in args.only or (list_left("machines", list_machines()) if args.keep else list_machines()):
        parts[name] = make_part(describe(run(name, quick=args.quick)))
        if args.keep:
            keep_part("machines", name, parts[name])
    show_parts("machines", read_parts(RESULTS / "machines.json") if args.keep else parts, as_json=args.json)
    sys.exit(1 if any(part.results[0].value for part in parts.values()) else 0)


def describe(outcome: dict[str, Any]) -> list[Result]:
    """Figures of one machine; the first is the number of commands that failed."""
    return [
        Result(metric="failed", value=len(outcome["wrong"]), unit="commands"),
        Result(metric="skipped", value=sum(outcome["skipped"].values()), unit="tests"),
        Result(metric="time", value=outcome["seconds"], unit="s"),
    ]


if __name__ == "__main__":
    main()
