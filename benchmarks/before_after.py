"""Test if a change made gymcp slower: benchmarks of this checkout and of an earlier commit, in turns, in one run.

The earlier commit is checked out into a temporary folder and runs on this interpreter and its packages, with a cache of
its own; a benchmark that it lacks is taken from this checkout. Each round runs every benchmark once in either checkout,
in alternating order. The median of each metric counts; a ratio of 1.05 means 5 % faster now, 0.95 means 5 % slower.
Prints a table; with --json one object. Exit code 1 if a metric named by ``--must`` is slower than ``--at-most`` allows.
Let nothing else run.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from report_table import Result, options, show

ROOT = Path(__file__).parents[1]
CREDIT_SPEED = """
import json, sys
from credit_speed import OPTIONS, batch, seconds
steps = batch(20_000)
times = {name: 1e3 * seconds(name, steps, options) for name, options in OPTIONS.items()}
print(json.dumps({"results": [{"metric": name, "unit": "ms", "value": ms} for name, ms in times.items()]}))
"""
"""Milliseconds in which each preset gives credit to 20,000 steps; credit_speed.py is a module without a command."""
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "env_throughput": ("env_throughput.py", "--quick"),
    "start_cost": ("start_cost.py", "--quick"),
    "resets": ("resets.py", "--quick"),
    "rollouts": ("rollouts.py", "--quick", "--without-peers"),
    "credit_speed": ("-c", CREDIT_SPEED),
    "store": ("store.py", "--quick"),
    "viewer": ("viewer.py", "--quick"),
}
RATES = ("/s",)
TIMES = ("s", "ms", "ms/turn")
MUST = (
    "episodes @*",
    "native, started",
    "native, forked",
    "native, result*",
    "native, steps*",
    "started*",
    "forked",
    "spare",
    "gymcp, *",
    "all of it*",
)
TIMEOUT_S = 900.0


def main() -> None:
    parser = options(__doc__, "one round")
    parser.add_argument("--before", default="HEAD~1", metavar="COMMIT")
    parser.add_argument("--only", action="append", choices=list(COMMANDS), help="may be repeated")
    parser.add_argument(
        "--must", action="append", metavar="GLOB", help="metrics that may not be slower; may be repeated"
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    parser.add_argument("--at-most", type=float, default=0.05, metavar="SHARE", help="how much slower they may be")
    args = parser.parse_args()
    rounds = 1 if args.quick else args.rounds
    with check_out(args.before) as before:
        measurements = {"before": Measurements(), "now": Measurements()}
        trees = {"before": before, "now": ROOT}
        for number in range(rounds):
            for name in args.only or COMMANDS:
                for which in ("before", "now") if number % 2 == 0 else ("now", "before"):
                    began = time.monotonic()
                    measurements[which].add(name, measure(trees[which], COMMANDS[name]))
                    took = time.monotonic() - began
                    print(f"round {number + 1}/{rounds}: {name}, {which}: {took:.0f} s", file=sys.stderr, flush=True)
    results = compare(measurements["before"], measurements["now"])
    show("before_after", results, as_json=args.json, title=f"now against {args.before}")
    must = args.must or MUST
    slower = [result for result in results if is_slower(result, must, args.at_most)]
    for result in slower:
        print(f"slower: {result.metric}: {result.ratio:.3f} of before", file=sys.stderr)
    sys.exit(bool(slower))


class Measurements:
    """Values of every metric of one checkout, by (benchmark, metric, unit)."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str, str], list[float]] = {}

    def add(self, benchmark: str, results: list[dict[str, object]]) -> None:
        """Add one run. A metric that is listed twice, for another baseline, counts once."""
        seen = set()
        for result in results:
            key = (benchmark, str(result["metric"]), str(result["unit"]))
            if key not in seen:
                seen.add(key)
                self.values.setdefault(key, []).append(float(str(result["value"])))


@contextlib.contextmanager
def check_out(commit: str) -> Iterator[Path]:
    """A folder with that commit. Its benchmarks import its own package, because its `src` comes first."""
    with tempfile.TemporaryDirectory(prefix="gymcp-before-") as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT)]
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=False)


def measure(tree: Path, command: tuple[str, ...]) -> list[dict[str, object]]:
    """The results that one benchmark of a checkout prints."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    if tree != ROOT:
        environment["GYMCP_HOME"] = str(tree.parent / "cache")
    script = command[0]
    is_code = script == "-c"
    folder = next(place for place in (tree / "benchmarks", ROOT / "benchmarks") if is_code or (place / script).exists())
    done = subprocess.run(
        [sys.executable, *command, "--json"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"before_after: {tree}: {script}: exit code {done.returncode}: {done.stderr[-2000:]}")
    results: list[dict[str, object]] = json.loads(done.stdout)["results"]
    return results


def compare(before: Measurements, now: Measurements) -> list[Result]:
    """Every rate and every time that both checkouts have: the value now against the value before."""
    results = []
    for key, values in now.values.items():
        benchmark, metric, unit = key
        is_rate, is_time = any(mark in unit for mark in RATES), unit in TIMES
        if key not in before.values or not (is_rate or is_time):
            continue
        new, old = statistics.median(values), statistics.median(before.values[key])
        results.append(
            Result(
                metric=f"{benchmark}: {metric}",
                value=new,
                unit=unit,
                baseline="before",
                baseline_value=old,
                ratio=(new / old if is_rate else old / new) if new and old else None,
            )
        )
    return results


def is_slower(result: Result, must: tuple[str, ...] | list[str], at_most: float) -> bool:
    """True for a metric that `must` names and that is slower than allowed."""
    metric = result.metric.partition(": ")[2]
    return (
        result.ratio is not None
        and result.ratio < 1 - at_most
        and any(fnmatch.fnmatchcase(metric, pattern) for pattern in must)
    )


if __name__ == "__main__":
    main()
