"""Seconds of a new user's three walks: the commands of three pages, typed in a fresh clone with an empty cache.

An environment of one's own with its gates, a first benchmarked model (a stub endpoint on loopback), a first rising
curve. Set-up is counted apart: a virtualenv from a package index, without pip's cache, and then `make demo` in the
clone, with a cache of its own. With `--no-setup` the virtualenv of this checkout stands in for the clone's, and no demo
is played. What other processes do at the time changes everything: the load is in the result. Exit code 1 if a command
fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from child_processes import run_port_server
from report_table import Result, options, show

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from page_blocks import Block, read_blocks  # noqa: E402
from viewer_process import run_real_viewer  # noqa: E402

WALKS = {
    "own environment with gates": "your-server.md",
    "first benchmarked model": "benchmark-your-model.md",
    "first rising curve": "train.md",
}
"""Name of the walk -> page in docs/start."""
ENDPOINT = "http://127.0.0.1:8000/v1"
RISING = "runs/rising"
SET_UP = "set-up without pip's cache, from a local clone"
"""Name of the metric: everything but the clone itself comes from the package index."""
TIMEOUT_S = 1800


def main() -> None:
    parser = options(__doc__, "without blocks that take minutes, so without the curve's rise; a short demo")
    text = "make setup and make demo in the clone, and count them"
    parser.add_argument("--setup", action=argparse.BooleanOptionalAction, default=True, help=text)
    parser.add_argument("--only", choices=tuple(WALKS), help="walk to take; default: all")
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="gymcp-walks-") as scratch:
        clone = Path(scratch) / "gymcp"
        began = time.perf_counter()
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        if args.setup:
            uncached = {**os.environ, "PIP_NO_CACHE_DIR": "1"}
            words = ["make", "--silent", "setup"]
            subprocess.run(words, cwd=clone, env=uncached, check=True, stdout=subprocess.DEVNULL)
            results.append(Result(metric=SET_UP, value=time.perf_counter() - began, unit="s"))
            results += time_demo(clone, Path(scratch) / "demo-cache", since=began, quick=args.quick)
        else:
            (clone / ".venv").symlink_to(sys.prefix)
        os.environ |= {**activate(clone), "GYMCP_HOME": f"{scratch}/cache"}
        with stub_endpoint() as address:
            for walk, page in WALKS.items():
                if args.only in (None, walk):
                    began = time.perf_counter()
                    take_walk(ROOT / "docs" / "start" / page, clone, {ENDPOINT: address}, quick=args.quick)
                    results.append(Result(metric=walk, value=time.perf_counter() - began, unit="s"))
        if (clone / RISING).is_dir():
            results += rise(clone / RISING)
    show("walks", results, as_json=args.json)


def activate(clone: Path) -> dict[str, str]:
    """Environment of a shell in the clone after the last line of the block with which the page on installing clones."""
    (block,) = (block for block in read_blocks(ROOT / "docs" / "start" / "install.md") if "git clone" in block.text)
    script = f"{block.text.splitlines()[-1]} >&2\nenv -0"
    shell = subprocess.run(["bash", "-eu", "-c", script], cwd=clone, stdout=subprocess.PIPE, text=True, check=True)
    return dict(line.split("=", 1) for line in shell.stdout.split("\0") if line)


def time_demo(clone: Path, cache: Path, *, since: float, quick: bool) -> list[Result]:
    """Seconds of `make demo` in a clone that is set up, and of all `since` that time: the aim is 480 s."""
    began = time.perf_counter()
    words = ["make", "--silent", "demo", *(["DEMO=--limit 8"] if quick else [])]
    environment = {**os.environ, "GYMCP_HOME": str(cache)}
    done = subprocess.run(words, cwd=clone, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"walks: make demo: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    ended = time.perf_counter()
    return [
        Result(metric="make demo", value=ended - began, unit="s"),
        Result(metric="set-up and demo together", value=ended - since, unit="s"),
    ]


def take_walk(page: Path, clone: Path, replace: dict[str, str], *, quick: bool) -> None:
    """Type all blocks of the page in the clone. Raises SystemExit if one does not what the page says."""
    for block in read_blocks(page):
        if block.mark == "not run" or (quick and block.mark == "slow"):
            continue
        text = block.text
        for old, new in replace.items():
            text = text.replace(old, new)
        if block.file:
            (clone / block.file).write_text(text, encoding="utf-8")
        elif block.language in ("sh", "python"):
            for words in commands(block, text):
                run(words, clone)


def commands(block: Block, text: str) -> Iterator[list[str]]:
    """Command of a block as words; the lines of a shell block are typed one by one."""
    if block.language == "python":
        yield ["python", "-W", "ignore", "-c", text]
        return
    for line in text.replace("\\\n", " ").splitlines():
        yield ["view", *line.split()[1:]] if line.startswith("gymcp view ") else ["bash", "-eu", "-c", line]


def run(words: list[str], clone: Path) -> None:
    print(f"  {words[-1].strip().splitlines()[0][:100]}", file=sys.stderr, flush=True)
    if words[0] == "view":
        with run_real_viewer("--no-open", *words[1:], gymcp=Path("gymcp"), cwd=clone) as (address, _):
            httpx.get(address, follow_redirects=True, timeout=60).raise_for_status()
        return
    done = subprocess.run(words, cwd=clone, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    if done.returncode != 0:
        raise SystemExit(f"walks: {words[-1]}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def rise(run_folder: Path) -> list[Result]:
    """Held-out success before and after the training."""
    rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    held = [row["test/seeds/success"] for row in rows if "test/seeds/success" in row]
    return [
        Result(metric=f"held-out success {when} practice", value=100 * value, unit="%")
        for when, value in (("before", held[0]), ("after", held[-1]))
    ]


@contextmanager
def stub_endpoint() -> Iterator[str]:
    """Address of an endpoint on loopback that answers at once."""
    quiet = subprocess.DEVNULL  # it complains of requests without a body
    stub = str(ROOT / "benchmarks" / "stub_policy.py")
    with run_port_server(stub, "--turns", "3", "--latency", "0", stderr=quiet) as (_, address):
        yield f"{address}/v1"


if __name__ == "__main__":
    main()
