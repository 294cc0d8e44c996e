"""One real vLLM for all tests that ask one: started once, as a user does, with a model whose embeddings are tied."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from equipment import is_required
from vllm_serving import Serving, nothing_is_left, serving

from gymcp.agents.policies.tiny_model import make_tiny_model
from gymcp.agents.policies.vllm.install import CPU, ensure_vllm, vllm_python


@pytest.fixture(scope="session")
def vllm_is_installed() -> None:
    """It takes minutes and 3 GB where it is not, so that happens only where nothing may be skipped."""
    if vllm_python(CPU) is not None:
        return
    if not is_required("vllm"):
        pytest.skip("vLLM is not set up: gymcp serve MODEL --cpu")
    began = time.monotonic()
    print("installing vLLM for its tests: some minutes, 3 GB", file=sys.__stderr__, flush=True)
    ensure_vllm(CPU, lambda line: None)
    print(f"vLLM is installed after {time.monotonic() - began:.0f} s", file=sys.__stderr__, flush=True)


@pytest.fixture(scope="session")
def tied(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two sets of weights for one tokenizer, as `--policy tiny` has them: one tensor at the input and at the output."""
    made = tmp_path_factory.mktemp("models")
    return {version: make_tiny_model(made / f"tiny-{version}", seed=int(version)) for version in ("0", "1")}


@pytest.fixture(scope="session")
def served(vllm_is_installed: None, tied: dict[str, Path]) -> Iterator[str]:
    """The policy spec that it prints. Ctrl-C ends it, and nothing is left: that is claimed here, at the end of all."""
    with serving(tied["0"], "--lora-rank", "8", "--training") as running:
        spec = running.line("--policy ")
        yield spec
        check_stop(running, spec)


def check_stop(running: Serving, spec: str) -> None:
    assert len(running.processes()) >= 3
    assert running.ended(signal.SIGINT) == 0
    assert nothing_is_left(running, spec.removeprefix("vllm:"))
