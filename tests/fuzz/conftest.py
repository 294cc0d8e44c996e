"""Number of examples that a fuzz test tries: as many as everywhere in `make test`, more in `benchmarks/fuzz.py`.

A test here sets no `max_examples` of its own. A failure prints what reproduces it: the example goes into the test as
`@example(...)`.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "nightly",
    max_examples=1000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # says how busy the machine is
)
