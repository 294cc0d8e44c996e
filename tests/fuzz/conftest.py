"""Number of examples that a fuzz test tries: few in `make test`, so all take a minute; more in `benchmarks/fuzz.py`.

A test here sets no `max_examples` of its own. A failure prints what reproduces it: the example goes into the test as
`@example(...)`.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

EXAMPLES = 25

settings.register_profile(
    "nightly",
    max_examples=1000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # says how busy the machine is
)
settings.register_profile("fuzz", settings.get_profile("gymcp"), max_examples=EXAMPLES)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Collect with fewer examples than elsewhere, unless a profile was asked for: collected tests take them from it."""
    if settings.get_current_profile_name() != "gymcp":
        return (yield)
    settings.load_profile("fuzz")
    try:
        return (yield)
    finally:
        settings.load_profile("gymcp")
