"""Test that gymcp leaves the host as it was: mixed load on every start path, half of the runs killed and resumed.

Native servers (forked), copies of them and of third-party servers (runs with `--branch`), third-party servers (started
and forked), the warm pool, containers if an engine answers, and agent programs; three runs at a time.
tests/host_guard/guard.py compares the host before and after. Exit code 1 if a run failed or the host differs.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from report_table import Result, options, show

from gymcp.errors import SandboxUnavailable
from gymcp.mcp_servers.sandbox import check_images, get_sandbox

ROOT = Path(__file__).parents[1]
GUARD = ROOT / "tests" / "host_guard" / "guard.py"
GYMCP = Path(sys.executable).with_name("gymcp")
NATIVE = ("bfcl", "backoffice", str(ROOT / "examples" / "bank.py"))
THIRD_PARTY = ("filesystem", "git", "time")
FULL_S, QUICK_S = 900.0, 60.0
"""Seconds after which no run starts, in full and with --quick."""
PROGRAM = "cmd:true"
"""A program as the agent, which ends its turn at once."""
AGENTS = ("oracle", "random", PROGRAM)
BRANCHES = "ways=2,steps=1+2,episodes=4"
"""For every second run, unless a program plays it."""
MAX_RUNS = 3
"""Runs at the same time."""
RUN_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Result of one run, after it was killed and resumed or not."""

    what: str
    killed: bool
    status: int
    last_words: str


def main() -> None:
    parser = options(__doc__, "one minute instead of fifteen")
    parser.add_argument("--load", type=Path, help="only make the load; write here what ran")
    args = parser.parse_args()
    if args.load:
        make_load(args.load, QUICK_S if args.quick else FULL_S)
        return
    with tempfile.TemporaryDirectory() as folder:
        ran = Path(folder) / "ran.json"
        load = [sys.executable, __file__, "--load", str(ran), *(["--quick"] if args.quick else [])]
        results = str(Path(__file__).with_name("results"))
        guard = [sys.executable, str(GUARD), "--except", results, "around", "--", *load]
        done = subprocess.run(guard, stdout=subprocess.PIPE, text=True, check=False)
        runs = json.loads(ran.read_text()) if ran.exists() else []
    differences = [line for line in done.stdout.splitlines() if line.startswith("the host was changed: ")]
    failed = [run for run in runs if run["status"] != 0]
    show(
        "host_guard",
        [
            Result(metric="runs", value=len(runs), unit="runs"),
            Result(metric="killed and resumed", value=sum(run["killed"] for run in runs), unit="runs"),
            Result(metric="with branches", value=sum("branches" in run["what"] for run in runs), unit="runs"),
            Result(metric="failed", value=len(failed), unit="runs"),
            Result(metric="differences of the host", value=len(differences), unit="lines"),
        ],
        as_json=args.json,
    )
    for line in [*differences, *(f"{run['what']} exits with {run['status']}: {run['last_words']}" for run in failed)]:
        print(line, file=sys.stderr)
    sys.exit(1 if differences or failed or not runs else done.returncode)


def make_load(ran: Path, seconds: float) -> None:
    loads = [(env, "bwrap") for env in (*NATIVE, *THIRD_PARTY)] + [(env, "docker") for env in NATIVE if has_engine()]
    draw = random.Random(0)
    plans = [(*draw.choice(loads), draw.random() < 0.5) for _ in range(10_000)]
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(MAX_RUNS) as threads:

        def play(number: int) -> RunRecord | None:
            if time.monotonic() > until:
                return None
            env, sandbox, killed = plans[number]
            return run_eval(Path(folder) / str(number), env, sandbox, 1 + number % 7 if killed else None)

        runs = [run for run in threads.map(play, range(len(plans))) if run is not None]
    subprocess.run([GYMCP, "clean"], check=True, stdout=subprocess.DEVNULL, timeout=RUN_TIMEOUT_S)
    ran.write_text(json.dumps([{name: getattr(run, name) for name in RunRecord.__dataclass_fields__} for run in runs]))


def run_eval(out: Path, env: str, sandbox: str, kill_after_s: float | None) -> RunRecord:
    """One run; with `kill_after_s`, killed after that many seconds and resumed."""
    agent = AGENTS[int(out.name) % len(AGENTS)]
    words = [str(GYMCP), "eval", env, "--agent", agent, "--sandbox", sandbox, "--limit", "20", "--out", str(out)]
    has_branches = agent != PROGRAM and int(out.name) % 2 == 0
    words += ["--branch", BRANCHES] if has_branches else []
    killed = False
    if kill_after_s is not None:
        first = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            first.wait(kill_after_s)
        except subprocess.TimeoutExpired:
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
            killed = True
        words.append("--resume")  # it may have ended before
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=RUN_TIMEOUT_S)
    what = f"{env} in {sandbox}{' with branches' if has_branches else ''}"
    return RunRecord(what=what, killed=killed, status=done.returncode, last_words=done.stderr[-500:])


def has_engine() -> bool:
    try:
        docker = get_sandbox("docker")
        docker.check()
        check_images(docker, [None])
    except SandboxUnavailable:
        return False
    return True


if __name__ == "__main__":
    main()
