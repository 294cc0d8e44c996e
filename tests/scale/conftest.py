"""Clusters of Ray on this machine."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from equipment import lacking
from ray_nodes import RayCluster, run_cluster


@pytest.fixture(scope="session")
def ray() -> None:
    """Ray, in this virtualenv."""
    if importlib.util.find_spec("ray") is None:
        lacking("ray", "no Ray: pip install 'gymcp[scale]'")


@pytest.fixture(scope="module")
def two_nodes(ray: None) -> Iterator[RayCluster]:
    """A cluster of two nodes."""
    with run_cluster([{}, {}]) as cluster:
        yield cluster
