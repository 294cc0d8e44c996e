"""A vLLM server that ends with the process that has started this program, however that ends.

``python -m gymcp.scale.vllm_process FOLDER cpu|gpu [ARGUMENT ...]``: serves the model in the folder with further
arguments of vLLM, until its standard input ends. Prints lines of JSON: ``{"policy": ..., "key": ...}`` once the server
answers, or ``{"error": ...}``, and ``{"code": ...}`` if the server ends by itself.

Before Ray ends an actor, it kills the actor's children, and a vLLM server that is killed leaves its workers behind.
So this program is no child of the actor: it sees that the pipe from there has ended, and then stops the server.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from pathlib import Path

from gymcp.agents.policies.vllm.server import VllmServerOptions, run_vllm_server
from gymcp.errors import UsageError

START_S = 840.0
"""Seconds until the server answers: its own error comes before that of the driver, which waits a minute longer."""


def main() -> None:
    if os.fork():
        os._exit(0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # threads of an actor block SIGINT, and their children inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_interrupt_at_end, daemon=True).start()
    folder, device, *arguments = sys.argv[1:]
    plan = VllmServerOptions(model=Path(folder), cpu=device == "cpu", start_timeout_s=START_S, extra=tuple(arguments))
    try:
        with run_vllm_server(plan, lambda line: None) as server:
            _tell(policy=server.spec, key=server.key)
            code = server.process.wait()
        _tell(code=code)
    except UsageError as error:
        _tell(error=str(error))
    except KeyboardInterrupt:
        pass


def _interrupt_at_end() -> None:
    """Interrupt the main thread at the end of standard input."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGINT)


def _tell(**facts: str | int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the actor has just died
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
