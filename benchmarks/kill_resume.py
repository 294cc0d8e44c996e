"""`kill -9` of a BFCL evaluation at five random moments, then --resume: nothing lost, nothing twice, nothing left."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from report_table import Result, options, show

from gymcp.store import TrajectoryStore

GYMCP = Path(sys.executable).with_name("gymcp")


def main() -> None:
    parser = options(__doc__, "160 tasks instead of 800")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    args = parser.parse_args()
    tasks = 160 if args.quick else 800
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [str(GYMCP), "eval", "bfcl", "--out", str(run), "--resume", "--json", "--limit", str(tasks)]
        moments = sorted(random.Random(args.seed).sample(range(1, tasks - tasks // 8), 5))
        for moment in moments:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while count_recorded(run) < moment and process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.02)
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=60)
            print(f"killed with {count_recorded(run)} episodes recorded", file=sys.stderr, flush=True)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        with TrajectoryStore.open(run) as store:
            rows = store.summaries()
    counts = Counter((row.task, row.trial) for row in rows)
    left = subprocess.run([str(GYMCP), "clean", "--dry-run"], capture_output=True, text=True, check=True).stdout
    results = [
        Result(metric="episodes recorded", value=len(counts), unit=f"of {tasks}"),
        Result(metric="recorded twice", value=sum(count > 1 for count in counts.values()), unit="episodes"),
        Result(metric="scored 1.0", value=sum(row.score == 1.0 for row in rows), unit=f"of {tasks}"),
        Result(metric="left on the machine", value=0 if "nothing to clean" in left else 1, unit="things"),
    ]
    for result in results:
        print(f"{result.metric}: {result.value:g} {result.unit}", file=sys.stderr)
    if args.json:
        show("kill_resume", results, as_json=True)
    expected = [tasks, 0, tasks, 0]
    sys.exit(done.returncode or [result.value for result in results] != expected)


def count_recorded(run: Path) -> int:
    """Attempts at episodes in the run folder so far."""
    if not (run / "trajectories.sqlite").exists():
        return 0
    with TrajectoryStore.open(run) as store:
        return len(store.attempts())


if __name__ == "__main__":
    main()
