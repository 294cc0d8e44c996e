"""One table of all training methods: each preset trains the same small policy on a ground on which it can act.

The grounds are the registrations ``methods-*.toml``: an arm for each preset, with its paper's claim. Learning rates are
chosen on a seed of its own (--tune), and no measured seed is run before registration, recipe and tuning are committed.
All of it takes hours, a run a minute: name methods with --only, or bound the time with --minutes; typed again, the
same command goes on. The page says which rows are not measured yet.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import tomllib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from comparisons.methods import find_tables, plan_methods
from comparisons.methods_page import Ground, draw_methods, write_methods_page
from comparisons.registration import Arm, read_registrations
from comparisons.results import read_results
from comparisons.runs import Bench, Progress, plan_tuning, run_jobs
from comparisons.tuning import find_rate, find_rate_arm
from credit import RESULTS, help_from, print_rates, put_in_force, run_script, try_out

from gymcp.atomic import write_atomically
from gymcp.errors import ConfigError

PAGE = Path(__file__).parent / "results" / "methods"
REASONS = PAGE / "reasons.toml"
"""A section for each registration: arm -> why the claim of its paper does not show, as far as it was found out."""
Work = list[tuple[Bench, list[Arm]]]


def choose_methods(benches: Sequence[Bench], names: Sequence[str]) -> Work:
    """The arms of these names on each ground; without a name all. Raises ConfigError if no ground has one of them."""
    known = [arm.name for bench in benches for arm in bench.registration.arms]
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"no method '{unknown[0]}'; have {', '.join(dict.fromkeys(known))}")
    chosen = [(bench, [arm for arm in bench.registration.arms if not names or arm.name in names]) for bench in benches]
    return [(bench, arms) for bench, arms in chosen if arms]


def is_before(deadline: float) -> bool:
    """True until the deadline, in seconds since the epoch."""
    return time.time() < deadline


def tune(bench: Bench, arms: Sequence[Arm], retry: bool, *, deadline: float) -> None:
    """Run the grids of rates of these arms on the tuning seed."""
    jobs = plan_tuning(bench, arms)
    run_jobs(bench, jobs, Progress(bench, jobs), retry=retry, may_start=partial(is_before, deadline))


def measure(bench: Bench, arms: Sequence[Arm], retry: bool, *, deadline: float) -> None:
    """Run the arms on the first seeds, then those near the best on all."""
    rates = {arm.name: find_rate(bench.registration, arm, bench.results) for arm in arms}
    for _ in range(2):
        jobs = plan_methods(bench, rates, arms)
        run_jobs(bench, jobs, Progress(bench, jobs), retry=retry, may_start=partial(is_before, deadline))


def select_tuned(bench: Bench, arms: Sequence[Arm]) -> list[Arm]:
    """The arms that have a learning rate; why the others have none is printed."""
    tuned = []
    for arm in arms:
        try:
            find_rate(bench.registration, arm, bench.results)
            tuned.append(arm)
        except ConfigError as error:
            reason = str(error).partition(": python ")[0]
            print(f"methods.py: left out: {reason}: methods.py --tune --only {arm.name}", file=sys.stderr)
    return tuned


def report(benches: Sequence[Bench]) -> None:
    """Write the page and its picture, and print the page."""
    grounds = [
        Ground(registration=bench.registration, results=read_results(bench.registration, bench.results))
        for bench in benches
    ]
    reasons = tomllib.loads(REASONS.read_text(encoding="utf-8")) if REASONS.is_file() else {}
    page = write_methods_page(grounds, reasons)
    PAGE.mkdir(parents=True, exist_ok=True)
    write_atomically(PAGE / "REPORT.md", page.encode())
    if any(ground.results for ground in grounds):
        draw_methods(grounds, PAGE)
    print(page)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="METHOD", help="run these methods only")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no further run after so long")
    parser.add_argument("--retry", action="store_true", help="run again what failed; the failures stay in the results")
    parser.add_argument("--out", type=Path, default=Path("runs/methods"), help="folder of the runs, which resume there")
    parser.add_argument(
        "--processes", type=int, default=min(os.cpu_count() or 1, 4), help="processes that share the runs"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--tune", action="store_true", help="try the grids of learning rates on the tuning seed")
    what.add_argument("--report", action="store_true", help="run nothing; write the page of the results that are there")
    what.add_argument("--quick", action="store_true", help="tiny runs on the tuning seed, to see that it works")
    return parser.parse_args()


def execute(args: argparse.Namespace) -> None:
    """Do what was asked for. Raises UsageError, before any run, for what cannot be done."""
    benches = [
        Bench(registration=each, runs=args.out / each.name, results=RESULTS / each.name)
        for each in find_tables(read_registrations())
    ]
    work = choose_methods(benches, args.only)
    deadline = time.time() + 60 * args.minutes
    if args.quick:
        for bench, arms in work:
            try_out(bench, [arm.name for arm in arms])
        return
    if args.tune:
        for bench, arms in work:
            tuned = list(
                {each.name: each for each in (find_rate_arm(bench.registration, arm) for arm in arms)}.values()
            )
            with help_from(args.processes - 1, partial(tune, deadline=deadline), bench, tuned, args.retry):
                tune(bench, tuned, args.retry, deadline=deadline)
            if is_before(deadline):
                print_rates(bench, tuned)
        return
    if not args.report:
        ready = [(bench, tuned) for bench, arms in work if (tuned := select_tuned(bench, arms))]
        for bench, arms in [(put_in_force(bench, arms), arms) for bench, arms in ready]:
            with help_from(args.processes - 1, partial(measure, deadline=deadline), bench, arms, args.retry):
                measure(bench, arms, args.retry, deadline=deadline)
    report(benches)


if __name__ == "__main__":
    sys.exit(run_script("methods.py", execute, read_arguments()))
