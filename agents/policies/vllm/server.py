"""A vLLM server as a child process: start, wait until healthy, warm up, stop together with its own children."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from gymcp.agents.policies.vllm import guard as vllm_guard
from gymcp.agents.policies.vllm.drafts import DraftOptions, add_repair, check_drafts, describe_drafts, may_draft
from gymcp.agents.policies.vllm.guard import KEY_VARIABLE
from gymcp.agents.policies.vllm.install import CPU, GPU, Say, ensure_vllm
from gymcp.agents.policies.vllm.keys import choose_key, publish_key
from gymcp.agents.policies.vllm.weight_folder import untie_embeddings
from gymcp.errors import ConfigError, UsageError
from gymcp.http_headers import check_headers
from gymcp.mcp_servers.output_tail import describe_output, show_output
from gymcp.mcp_servers.redaction import Redaction
from gymcp.process_owner import environment_with_owner

_GUARD = "gymcp_vllm_guard"
"""Name under which vLLM imports a copy of `gymcp.agents.policies.vllm.guard`."""
PORTS = range(20_000, 30_000)
"""Ports to choose from: below Linux's range for connections and for servers that ask for any port."""
POLL_S = 0.5
"""Seconds between two health checks while the server starts."""
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM accepts as the maximum rank; adapters may have any rank up to it."""
STOP_TIMEOUT_S = 20.0
"""Seconds that the server has to end by itself before it is killed."""
TIDY_TIMEOUT_S = 5.0
"""Seconds that the rest of its group then has: Python's resource tracker removes what the others left in /dev/shm."""
_LAUNCH = """import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])"""
"""Program that asks the kernel to end the server with SIGTERM if gymcp is killed: PR_SET_PDEATHSIG survives execv. If
gymcp was killed before that, it starts nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmServerOptions:
    """The model to serve, and the server's settings."""

    model: Path
    name: str = ""
    """Name of the model in requests; empty for the folder's name."""
    cpu: bool = True
    port: int = 0
    """Port to listen on; 0 for a free one."""
    max_context: int = 0
    """Maximum number of tokens of prompt and sample together; 0 for the model's own maximum."""
    max_requests: int = 64
    """Maximum number of requests sampled at once; more wait."""
    dtype: str = ""
    """Data type of the weights. Empty for float32 on a CPU, because it is faster there and agrees with a trainer's
    forward pass, and for the model's own type on a GPU."""
    lora_rank: int = 0
    """Maximum rank of adapters that can be loaded; 0 for no adapters."""
    takes_weights: bool = False
    """True to enable the endpoints for new weights, which vLLM has for development: training needs them."""
    draft: DraftOptions | None = None
    """Method that drafts tokens; None: each forward pass samples one token per request."""
    tool_parser: str = "hermes"
    kv_cache_gb: int = 1
    """Memory for keys and values on a CPU, in GB."""
    start_timeout_s: float = 900.0
    extra: tuple[str, ...] = ()
    """Further command-line arguments for vLLM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmServer:
    """A running server."""

    url: str
    model: str
    process: subprocess.Popen[bytes]
    """The server's process, which leads a process group of its own."""
    key: str = field(repr=False)
    """Key that every request must carry."""
    key_file: Path | None = None
    """Place of the key for the user and `gymcp.agents.policies.vllm.keys`; None for the one in ``$VLLM_API_KEY``."""

    @property
    def spec(self) -> str:
        """The argument of `--policy` for this server."""
        return f"vllm:{self.url}#{self.model}"


@contextmanager
def run_vllm_server(plan: VllmServerOptions, say: Say) -> Iterator[VllmServer]:
    """Start a server that has answered a first request with logprobs, which compiles; stop all its processes on exit.

    Raises UsageError with the server's last lines if it does not start.
    """
    check_served_folder(plan.model)
    if plan.draft is not None:
        check_drafts(plan.draft, plan.model, "vllm")
    port = plan.port or _free_port()
    _check_port(port)
    python = ensure_vllm(CPU if plan.cpu else GPU, say)
    name = plan.name or plan.model.resolve().name
    url = f"http://127.0.0.1:{port}"
    own = os.environ.get(KEY_VARIABLE, "")
    key = own or choose_key(port)
    with ExitStack() as stack:
        folder = stack.enter_context(untie_embeddings(plan.model))
        guard = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gymcp-vllm-")))
        shutil.copyfile(vllm_guard.__file__, guard / f"{_GUARD}.py")
        is_repaired = plan.cpu and may_draft(plan.draft, plan.model, plan.extra)
        repair = add_repair(guard, os.environ.get("VLLM_PLUGINS")) if is_repaired else {}
        key_file = None if own else stack.enter_context(publish_key(port, key))
        log = stack.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
        process = subprocess.Popen(
            [
                *(str(python), "-c", _LAUNCH, str(os.getpid())),
                *(str(python), "-m", "vllm.entrypoints.cli.main", "serve", *_arguments(plan, folder, name, port)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**environment_with_owner(), **_environment(plan, guard, key), **repair},
            start_new_session=True,
        )
        try:
            say(f"starting vLLM on {url}")
            server = VllmServer(url=url, model=name, process=process, key=key, key_file=key_file)
            deadline = time.monotonic() + plan.start_timeout_s
            try:
                _wait_healthy(process, server, deadline)
                say("warming up")
                _warm_up(server, deadline)
            except (TimeoutError, httpx.HTTPError, ChildProcessError) as error:
                log.seek(0)
                raise UsageError(
                    f"vllm: {plan.model}: {error or type(error).__name__}{_describe_log(log.read(), key)}"
                ) from error
            yield server
        finally:
            stop_group(process)


def check_served_folder(model: Path) -> None:
    """Raise ConfigError if the folder lacks a file that every server needs."""
    if not (model / "config.json").is_file():
        raise ConfigError(f"vllm: no model in {model}: it has no config.json")
    if not (model / "tokenizer.json").is_file():
        raise ConfigError(f"vllm: no tokenizer in {model}: it has no tokenizer.json")


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """End the process and its group: with SIGTERM to the process, then, after a pause, with SIGKILL to the group."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
    with suppress(ProcessLookupError):
        deadline = time.monotonic() + TIDY_TIMEOUT_S
        while process.poll() is not None and time.monotonic() < deadline:
            os.killpg(process.pid, 0)  # raises when the group is empty
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_TIMEOUT_S)


def _arguments(plan: VllmServerOptions, folder: Path, name: str, port: int) -> list[str]:
    dtype = plan.dtype or ("float32" if plan.cpu else "auto")
    argv = [str(folder), "--served-model-name", name, "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--dtype", dtype, "--max-num-seqs", str(plan.max_requests)]
    argv += ["--enable-scale-out", "--logprobs-mode", "processed_logprobs"]
    # no browser page may read an answer, and every path requires the key: vLLM's own check leaves most paths out
    argv += ["--allowed-origins", "[]", "--disable-fastapi-docs", "--middleware", f"{_GUARD}.KeyOnEveryPath"]
    argv += ["--enable-auto-tool-choice", "--tool-call-parser", plan.tool_parser]
    argv += ["--max-model-len", str(plan.max_context)] if plan.max_context else []
    # a prompt computed in parts ends vLLM 0.32 if its request has a seed: torch's generator of CPUs has no offset
    argv += ["--enforce-eager", "--no-enable-chunked-prefill"] if plan.cpu else []
    argv += ["--speculative-config", describe_drafts(plan.draft)] if plan.draft is not None else []
    if plan.lora_rank:
        rank = next((allowed for allowed in _LORA_RANKS if allowed >= plan.lora_rank), plan.lora_rank)
        argv += ["--enable-lora", "--max-lora-rank", str(rank), "--max-loras", "2"]
    return [*argv, *plan.extra]


def _environment(plan: VllmServerOptions, guard: Path, key: str) -> dict[str, str]:
    """The server's environment. It holds the key, because every user of the machine can read arguments."""
    paths = [str(guard), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {
        "VLLM_SERVER_DEV_MODE": "1" if plan.takes_weights else "0",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1" if plan.lora_rank else "0",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONDONTWRITEBYTECODE": "",  # uv compiles nothing; otherwise each process compiles thousands of modules
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(paths),
        KEY_VARIABLE: key,
    }
    if plan.cpu:
        env["VLLM_CPU_KVCACHE_SPACE"] = str(plan.kv_cache_gb)
        env["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")  # more are very slow if the cores are busy
    return env


def _wait_healthy(process: subprocess.Popen[bytes], server: VllmServer, deadline: float) -> None:
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ChildProcessError(f"the server ended with code {process.returncode}")
        with suppress(httpx.TransportError):  # not listening yet
            if httpx.get(f"{server.url}/health", timeout=5.0, trust_env=False).status_code == httpx.codes.OK:
                return
        time.sleep(POLL_S)
    raise TimeoutError("the server was not healthy in time")


def _warm_up(server: VllmServer, deadline: float) -> None:
    body = {
        "model": server.model,
        "token_ids": [1],
        "sampling_params": {"max_tokens": 2, "temperature": 1.0, "logprobs": 0, "seed": 0},
    }
    timeout = max(1.0, deadline - time.monotonic())
    headers = {"authorization": f"Bearer {server.key}"}
    check_headers(f"vllm: variable {KEY_VARIABLE}", headers)
    url = f"{server.url}/inference/v1/generate"
    answer = httpx.post(url, json=body, headers=headers, timeout=timeout, trust_env=False)
    if answer.is_error:
        raise httpx.HTTPError(f"the first request was answered with status {answer.status_code}: {answer.text[:200]}")


def _free_port() -> int:
    """A free port that the kernel never assigns by itself: vLLM takes it only some ten seconds later."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with suppress(ConfigError):
            _check_port(port)
            return port
    raise ConfigError(f"vllm: no port from {PORTS.start} to {PORTS.stop - 1} is free; name another with --port")


def _check_port(port: int) -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(
                f"vllm: port {port} cannot be used: {error.strerror}; choose another with --port"
            ) from error


def _describe_log(text: str, key: str) -> str:
    """The end of what the server wrote, and a file with all of it, both without its key."""
    return describe_output(Redaction({key: f"${{{KEY_VARIABLE}}}"}).text(show_output(text)), "vllm")
