"""Agreement of a node with the driver of a run: versions, code, and everything that scores depend on."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path

import gymcp
from gymcp.scale.records import NodeFacts
from gymcp.types import Json

_FACTS = {"gymcp": "version of gymcp", "python": "version of Python", "code": "code of gymcp (by its digest)"}
_SHORT_DIGEST = 12
"""Characters of a value that a message shows."""


def describe_machine() -> NodeFacts:
    """The facts of this process."""
    python = ".".join(platform.python_version_tuple()[:2])
    return NodeFacts(gymcp=gymcp.__version__, code=digest_code(), python=python)


@functools.cache
def digest_code() -> str:
    """SHA-256 of all Python files of the package; those of the site, which only a checkout has, are no part of it."""
    digest = hashlib.sha256()
    root = Path(gymcp.__file__).parent
    files = [Path(folder, name) for folder, _, names in os.walk(root, followlinks=True) for name in names]
    code = (path for path in files if path.suffix == ".py" and not path.is_relative_to(root / "docs"))
    for path in sorted(code):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def compare_facts(driver: NodeFacts, node: NodeFacts) -> list[str]:
    """Sentences about the differences; empty if there are none."""
    return [
        f"the {what} is {_shorten(getattr(node, name))}, and {_shorten(getattr(driver, name))} on the driver"
        for name, what in _FACTS.items()
        if getattr(driver, name) != getattr(node, name)
    ]


def compare_configs(driver: Mapping[str, Json], node: Mapping[str, Json]) -> list[str]:
    """Sentences about the differences between two contents of ``run.json``; empty if there are none."""
    return [
        f"{name} is {_shorten(node.get(name))}, and {_shorten(driver.get(name))} on the driver"
        for name in sorted({*driver, *node})
        if driver.get(name) != node.get(name)
    ]


def _shorten(value: Json) -> str:
    text = str(value)
    return text if len(text) <= 3 * _SHORT_DIGEST else f"{text[:_SHORT_DIGEST]}..."
