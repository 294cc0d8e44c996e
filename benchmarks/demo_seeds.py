"""Held-out success of the demo's recipe before and after practice, on several seeds, and the seconds of practice.

Runs that have ended under `--out` are not repeated: typed again, it goes on. `--set KEY=VALUE` tries other settings, on
seeds that are not reported; each choice of settings has a folder of its own. The two training runs at a time of
`--processes 2` disturb each other's seconds, not their success. Exit code 1 if a run fails.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from report_table import Result, options, show

ROOT = Path(__file__).resolve().parents[1]
GYMCP = str(Path(sys.executable).with_name("gymcp"))
RECIPE = ROOT / "recipes" / "demo.toml"
SEEDS = tuple(range(8))
AIM = 0.8
"""Success after practice that a seed must reach."""
TIMEOUT_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run of the recipe."""

    seed: int
    start: float
    """Held-out success before practice, from 0 to 1."""
    end: float
    seconds: float
    """Seconds of all iterations, evaluations aside."""


def main() -> None:
    parser = options(__doc__, "one seed, two iterations")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="seeds, joined by commas")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of the recipe")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "demo-seeds", help="folder of the training runs")
    parser.add_argument("--processes", type=int, default=1, help="training runs at a time")
    args = parser.parse_args()
    settings = [*args.set, *(["learn.iterations=2"] if args.quick else [])]
    seeds = [int(word) for word in args.seeds.split(",")][: 1 if args.quick else None]
    with ThreadPoolExecutor(args.processes) as pool:
        runs = list(pool.map(lambda seed: train(args.out, seed, settings), seeds))
    show("demo_seeds", summarise(runs), as_json=args.json, also=f"; {args.processes} at a time")


def train(out: Path, seed: int, settings: Sequence[str]) -> Run:
    """Figures of the training run of a seed, which is begun, or gone on with, if it has not ended."""
    digest = hashlib.sha256("\n".join([RECIPE.read_text(encoding="utf-8"), *settings]).encode()).hexdigest()[:8]
    folder = out / f"{digest}-{seed}"
    if not (folder / "ended").exists():
        words = [GYMCP, "train", str(RECIPE), "--out", str(folder), "--set", f"seed={seed}"]
        words += ["--resume"] if folder.exists() else []
        words += [word for setting in settings for word in ("--set", setting)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
        if done.returncode != 0:
            raise SystemExit(f"demo_seeds: seed {seed}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        (folder / "ended").touch()
    run = read_run(folder, seed)
    said = f"seed {seed}: {run.start:.1%} before, {run.end:.1%} after {run.seconds:.0f} s of practice"
    print(said, file=sys.stderr, flush=True)
    return run


def read_run(folder: Path, seed: int) -> Run:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    held = [row["test/seeds/success"] for row in rows if "test/seeds/success" in row]
    seconds = sum(row.get("seconds", 0.0) for row in rows)
    return Run(seed=seed, start=held[0], end=held[-1], seconds=seconds)


def summarise(runs: Sequence[Run]) -> list[Result]:
    """Each seed before and after, then all of them together."""
    each = [
        Result(metric=f"seed {run.seed}, held-out success {when} practice", value=100 * value, unit="%")
        for run in runs
        for when, value in (("before", run.start), ("after", run.end))
    ]
    return [
        *each,
        Result(metric="lowest success after practice", value=100 * min(run.end for run in runs), unit="%"),
        Result(metric="mean success after practice", value=100 * statistics.fmean(run.end for run in runs), unit="%"),
        Result(metric=f"seeds above {AIM:.0%}, of {len(runs)}", value=sum(run.end > AIM for run in runs), unit="seeds"),
        Result(metric="longest practice", value=max(run.seconds for run in runs), unit="s"),
    ]


if __name__ == "__main__":
    main()
