"""Reference outputs of the official functions, or of the cited formula if no code is public; see `vectors.json`.

They are printed to 6 decimals, so each is within half of 1e-6 of its true value; the other half is ours.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("vectors.json").read_text())
TOLERANCE = 1e-6


def near(expected: Any) -> Any:
    """Equal to numbers within the precision of the file, at any depth of lists."""
    if isinstance(expected, list) and expected and isinstance(expected[0], list):
        return [near(row) for row in expected]
    return pytest.approx(expected, abs=TOLERANCE)
