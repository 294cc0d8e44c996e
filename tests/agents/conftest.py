"""The engine's forward passes, and one real vLLM server for all tests that need one without drafts.

The server is started once, as a user does, with tied embeddings.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from equipment import lacking
from vllm_serving import Serving, nothing_is_left, serving

from gymcp.agents.policies.engine.cpp_forward import CppLibrary
from gymcp.agents.policies.engine.cpp_library import FORWARD_PASSES, FORWARD_VARIABLE, find_library, plan_build
from gymcp.agents.policies.tiny_model import make_tiny_model


@pytest.fixture(scope="session")
def cpp_library() -> CppLibrary:
    """The engine's forward pass in C++, compiled if this machine has not done so before."""
    found = find_library(plan_build())
    if found.path is None:
        lacking("compiler", found.detail)
    return CppLibrary(found.path)


@pytest.fixture(params=FORWARD_PASSES)
def forward_pass(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of the forward pass that every engine of the test has."""
    name: str = request.param
    if name == "cpp":
        request.getfixturevalue("cpp_library")
    monkeypatch.setenv(FORWARD_VARIABLE, name)
    return name


@pytest.fixture(scope="session")
def tied_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two sets of weights for one tokenizer, as `--policy tiny` has them: one tensor at the input and at the output."""
    made = tmp_path_factory.mktemp("models")
    return {version: make_tiny_model(made / f"tiny-{version}", seed=int(version)) for version in ("0", "1")}


@pytest.fixture(scope="session")
def vllm_spec(vllm_is_installed: None, tied_models: dict[str, Path]) -> Iterator[str]:
    """The policy spec that the server prints. At the end of all tests, Ctrl-C must end it and leave nothing behind."""
    with serving(tied_models["0"], "--lora-rank", "8", "--training") as running:
        spec = running.line("--policy ")
        yield spec
        check_stop(running, spec)


def check_stop(running: Serving, spec: str) -> None:
    assert len(running.processes()) >= 3
    assert running.end(signal.SIGINT) == 0
    assert nothing_is_left(running, spec.removeprefix("vllm:"))
