"""Markers that follow from what a test uses, so that a part of the suite can be chosen without naming its tests.

`sandbox`, `docker`, `network`, `browser`, `vllm`, `cli`: what the machine must have, or lend its time to. `fast`: none
of these and nothing else that takes long: `make test-fast`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

TESTS = Path(__file__).parent
HELPERS = (TESTS, TESTS.parent / "benchmarks", TESTS.parent / "examples")
"""Folders of modules that tests import and that are no part of gymcp."""
BY_FIXTURE = {
    "bwrap": "sandbox",
    "sandbox": "sandbox",
    "limited": "sandbox",
    "inside": "sandbox",
    "played": "sandbox",
    "attack": "sandbox",
    "engine": "docker",
    "docker": "docker",
    "node": "network",
    "ray": "sandbox",
    "harbor": "network",
    "smollm2": "network",
    "chromium": "browser",
    "vllm_is_installed": "vllm",
}
BY_MODULE = {
    "subprocess": "sandbox",
    "gymcp.mcp_servers.sandbox": "sandbox",
    "gymcp.mcp_servers.sessions.connect": "sandbox",
    "gymcp.mcp_servers.forkserver.warm_sandbox": "sandbox",
    "gymcp.envs.episodes.episode": "sandbox",
    "gymcp.agents.runner.rollout": "sandbox",
    "gymcp.agents.runner.run": "sandbox",
    "cli_runner": "cli",
    "gymcp.mcp_servers.sandbox.docker.engine_api": "docker",
    "gymcp.mcp_servers.packages.install": "network",
}
"""A test whose module, or a helper of it in tests/ or benchmarks/, imports this, is marked so."""
BY_PATH = {
    "adversarial": "sandbox",
    "chaos": "sandbox",
    "cli": "cli",
    "conformance": "network",
    "fuzz": "slow",
    "host_guard": "slow",
}
LONGEST = (
    "tests/agents/test_vllm",
    "tests/cli/test_pages.py::test_every_verb_works_as_in_its_example",
    "tests/cli/test_servers_cli.py::test_the_documentation",
    "tests/trainers/test_processes.py",
    "tests/trainers/test_resumed.py",
    "tests/conformance/",
    "tests/envs/test_clean_resets.py",
    "tests/cli/test_servers_cli.py",
    "tests/chaos/",
    "tests/adversarial/test_attempts.py",
    "tests/suites/test_textworld.py",
    "tests/suites/test_bfcl_parity.py",
    "tests/host_guard/",
    "tests/scale/test_ray_runs.py",
)
"""Begun first, in this order: what takes minutes would be waited for at the end, while all other workers are idle."""
SLOW = (
    "tests/agents/test_engine_build.py",
    "tests/agents/test_gateway_refusals.py::test_a_body_of_a_hundred_megabytes",
    "tests/agents/test_vllm_retries.py",
    "tests/cli/test_servers_cli.py::test_the_documentation",
    "tests/evaluators/test_judge_verdicts.py::test_the_interval_of_kappa_has_its_nominal_coverage",
    "tests/exchange/test_round_trips.py::test_memory_does_not_grow_with_the_run",
    "tests/mcp_servers/test_runtime_schemas.py::test_canonical_json_equals_the_output_of_the_json_module",
    "tests/mcp_servers/test_runtime_schemas.py::test_the_check_agrees_with_the_jsonschema_package",
    "tests/store/test_jsonl.py::test_a_line_is_the_whole_record",
    "tests/store/test_notes.py::test_people_who_write_at_once_lose_nothing",
    "tests/store/test_trajectory_store.py::test_a_loaded_episode_equals_the_appended_one",
    "tests/suites/test_rounds.py::test_the_teachers_win_as_often_as_the_laboratory_is_meant_for",
    "tests/trainers/test_bad_runs.py",
    "tests/trainers/test_curriculum_runs.py",
    "tests/trainers/test_every_preset.py",
    "tests/trainers/test_replay.py::test_a_run_",
    "tests/trainers/test_signals_training.py",
    "tests/trainers/test_training_wrappers.py",
    "tests/trainers/test_tree_training.py",
    "tests/trainers/test_warm_start.py",
)
"""Takes seconds or minutes, which no import and no fixture shows: it trains a policy, compiles, or tries many cases."""


def mark(items: list[pytest.Item]) -> None:
    """Also puts the longest first."""
    items.sort(key=_place)
    for item in items:
        assert isinstance(item, pytest.Function)
        found = {BY_FIXTURE[name] for name in item.fixturenames if name in BY_FIXTURE}
        found |= {BY_PATH[part] for part in item.path.relative_to(TESTS).parts if part in BY_PATH}
        found |= _needs_of(item.module)
        if any(group.args == ("vllm",) for group in item.iter_markers("xdist_group")):
            found.add("vllm")
        for name in sorted(found):
            item.add_marker(name)
        if item.nodeid.startswith(SLOW):
            item.add_marker("slow")
        if not found and item.get_closest_marker("slow") is None:
            item.add_marker("fast")


def _place(item: pytest.Item) -> int:
    return next((place for place, name in enumerate(LONGEST) if item.nodeid.startswith(name)), len(LONGEST))


@functools.cache
def _needs_of(module: ModuleType) -> frozenset[str]:
    """Markers that the module's imports stand for, with those of helpers that are no part of gymcp."""
    found = set()
    for name in _imports_of(module):
        if name in BY_MODULE:
            found.add(BY_MODULE[name])
        helper = sys.modules.get(name)
        if helper is not None and helper is not module and _is_helper(helper):
            found |= _needs_of(helper)
    return frozenset(found)


def _imports_of(module: ModuleType) -> Iterator[str]:
    for value in vars(module).values():
        if isinstance(value, ModuleType):
            yield value.__name__
        elif isinstance(name := getattr(value, "__module__", None), str):
            yield name


def _is_helper(module: ModuleType) -> bool:
    path = getattr(module, "__file__", None)
    return path is not None and any(Path(path).is_relative_to(folder) for folder in HELPERS)
