"""Each dependency is declared, is used, and says what it is for."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import packages_distributions

from house import FOLDERS
from prose import ROOT, python_files

TEXT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
PROJECT = tomllib.loads(TEXT)["project"]
EXTRAS = PROJECT["optional-dependencies"]


def names_of(requirements: Sequence[str]) -> set[str]:
    return {re.split(r"[^\w.-]", line)[0].lower().replace("_", "-") for line in requirements}


def list_imports(folders: Sequence[str]) -> Iterator[str]:
    """First parts of the names of all modules that the files import."""
    for path in python_files(folders):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            yield from (module.split(".")[0] for module in modules)


def test_every_dependency_has_its_reason() -> None:
    lists = TEXT[TEXT.index("\ndependencies = [") : TEXT.index("\n[project.scripts]")]
    lines = [line for line in lists.splitlines() if line.startswith('    "')]
    assert len(lines) >= len(PROJECT["dependencies"]) + len(EXTRAS["train"]) + len(EXTRAS["dev"])
    assert [line for line in lines if not re.search(r"  # \S", line)] == []


def test_the_code_imports_what_is_declared_or_what_a_declared_package_brings() -> None:
    declared = names_of([*PROJECT["dependencies"], *EXTRAS["train"], *EXTRAS["export"], *EXTRAS["scale"]])
    brought = {word for phrase in re.findall(r"brings ([^;\n]+)", TEXT) for word in re.findall(r"\w+", phrase)}
    distributions = packages_distributions()
    packages = set(list_imports(FOLDERS)) - sys.stdlib_module_names - {"gymcp", "_sha2"}
    assert len(packages) > 20
    missing = [
        package
        for package in sorted(packages - brought)
        if not names_of(distributions.get(package, [package])) & declared
    ]
    assert missing == []
