"""The tiers of the test suite, and the groups of tests that share what is dear to start."""

from __future__ import annotations

import os

import pytest


@pytest.mark.xdist_group("tiers")
def test_tests_of_a_group_run_in_one_process(request: pytest.FixtureRequest) -> None:
    """pytest-xdist names the group in the test's id; without it each process would start a vLLM of its own."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert request.node.nodeid.endswith("@tiers")
