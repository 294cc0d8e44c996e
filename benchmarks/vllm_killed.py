"""`kill -9` of a real vLLM in the middle of a run, then a new one: no episode is lost, scored twice, or wrongly scored.

The new server starts once an episode was lost to the old one's end. The run is resumed if some episodes had used up
their attempts before that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from report_table import Result, options, show

from gymcp.agents.policies.tiny_model import make_tiny_model
from gymcp.agents.policies.vllm.server import VllmServer, VllmServerOptions, run_vllm_server
from gymcp.outcome import Outcome
from gymcp.store import TrajectoryStore

GYMCP = Path(sys.executable).with_name("gymcp")
BANK = Path(__file__).parents[1] / "examples" / "bank.py"
TASKS = 3
MAX_RESUMES = 3
WAIT_S = 1800.0
"""Seconds to wait for any one thing."""
FINISHED, LOST_TO_INFRA = 0, 3


def main() -> None:
    args = options(__doc__, "10 trials of each task instead of 40").parse_args()
    trials = 10 if args.quick else 40
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as servers:
        run, model = Path(folder) / "run", make_tiny_model(Path(folder) / "model")
        server = servers.enter_context(run_vllm_server(VllmServerOptions(model=model), _say))
        command = [str(GYMCP), "eval", str(BANK), "--agent", "react", "--policy", server.spec, "--trials", str(trials)]
        command += ["--max-tokens", "32", "--max-turns", "4", "--concurrency", "4", "--out", str(run), "--resume"]
        evaluation = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _until(lambda: len(_outcomes(run)) >= TASKS * trials // 3, evaluation)
        _say(f"killing vLLM with {len(_outcomes(run))} episodes recorded")
        os.killpg(server.process.pid, signal.SIGKILL)
        _until(lambda: Outcome.POLICY_INFRA in _outcomes(run), evaluation)
        servers.enter_context(run_vllm_server(_plan_successor(server, model), _say))
        code, resumes = evaluation.wait(WAIT_S), 0
        while code == LOST_TO_INFRA and resumes < MAX_RESUMES:
            resumes += 1
            code = subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=WAIT_S).returncode
        with TrajectoryStore.open(run) as store:
            latest, every = store.summaries(), store.summaries(latest=False)
    scored = Counter((row.task, row.trial) for row in every if row.outcome.has_score)
    lost = [row for row in every if not row.outcome.has_score]
    results = [
        Result(metric="episodes recorded", value=len(latest), unit=f"of {TASKS * trials}"),
        Result(metric="scored", value=len(scored), unit=f"of {TASKS * trials}"),
        Result(metric="scored twice", value=sum(count > 1 for count in scored.values()), unit="episodes"),
        Result(metric="lost, but with a score", value=sum(row.score is not None for row in lost), unit="attempts"),
        Result(metric="lost while vLLM was away", value=len(lost), unit="attempts"),
        Result(metric="resumes", value=resumes, unit=""),
    ]
    show("vllm_killed", results, as_json=args.json)
    expected = [TASKS * trials, TASKS * trials, 0, 0]
    sys.exit(code != FINISHED or not lost or [result.value for result in results[:4]] != expected)


def _plan_successor(server: VllmServer, model: Path) -> VllmServerOptions:
    """The plan of a server with the same model and port, once the old one has ended: the run sees only a pause."""
    server.process.wait(WAIT_S)
    return VllmServerOptions(model=model, port=int(server.url.rpartition(":")[2]))


def _outcomes(run: Path) -> list[Outcome]:
    """Outcomes of all attempts so far."""
    if not (run / "trajectories.sqlite").exists():
        return []
    with TrajectoryStore.open(run) as store:
        return [outcome for ended in store.attempts().values() for outcome in ended]


def _until(holds: Callable[[], bool], evaluation: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        if evaluation.poll() is not None:
            raise SystemExit(f"the evaluation ended too early, with code {evaluation.returncode}")
        if time.monotonic() > deadline:
            raise SystemExit(f"waited for {WAIT_S:g} s")
        with contextlib.suppress(subprocess.TimeoutExpired):
            evaluation.wait(timeout=0.1)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
