"""The names that `__all__` of a package offers: they can be imported, are documented, and cost nothing until used."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from page_blocks import read_blocks

from gymcp.cli.servers.environment_file import write_text
from gymcp.cli.servers.scaffold import write_scaffold
from gymcp.cli.servers.state_kinds import StateChoice
from gymcp.cli.servers.trial import Trial
from gymcp.mcp_servers.packages.lockfile import LockedServer
from gymcp.mcp_servers.spec import FileState, StateSource
from gymcp.types import Tool, ToolCall

ROOT = Path(__file__).parents[1]
LAZY = ("gymcp", "gymcp.envs", "gymcp.mcp_servers", "gymcp.agents", "gymcp.evaluators", "gymcp.trainers")
PUBLIC = (*LAZY, "gymcp.evaluators.graders", "gymcp.store")
HEAVY = ("mcp", "torch", "transformers", "docker", "starlette", "matplotlib")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
CONSTANTS = ("gymcp.__version__",)


def source_of(package: str) -> Path:
    return Path(str(importlib.import_module(package).__file__))


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_can_be_imported_and_has_a_docstring(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        value = getattr(module, name)
        text = inspect.getdoc(value) or ""
        is_written = bool(text) and not text.startswith(f"{name}(")  # a dataclass without one shows its fields
        assert is_written or f"{package}.{name}" in CONSTANTS, f"{package}.{name} has no docstring"


@pytest.mark.parametrize("package", LAZY)
def test_type_checkers_see_the_names_that_the_package_offers(package: str) -> None:
    """The list in `__all__`, the imports for type checkers and the table of modules agree."""
    tree = ast.parse(source_of(package).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {
        (alias.name, node.module) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    table = next(node for node in ast.walk(tree) if isinstance(node, ast.Dict))
    offered = {
        (name, f"{package}.{module}") for module, names in ast.literal_eval(table).items() for name in names.split()
    }
    assert seen == offered
    module = importlib.import_module(package)
    own = {name for name in module.__all__ if name in ("__version__", "register_catalog")}
    assert set(module.__all__) == {name for name, _ in offered} | own


@pytest.mark.parametrize("package", LAZY)
def test_no_name_hides_a_module_of_its_package(package: str) -> None:
    module = importlib.import_module(package)
    assert {found.name for found in pkgutil.iter_modules(module.__path__)} & set(module.__all__) == set()


def test_importing_the_packages_imports_nothing_heavy() -> None:
    """`gymcp.envs` is left out: it registers the catalog with Gymnasium."""
    light = [package for package in LAZY if package != "gymcp.envs"]
    code = f"import json, sys, {', '.join(light)}; print(json.dumps(sorted(set({HEAVY!r}) & set(sys.modules))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def list_imported_names(texts: Iterable[str]) -> set[tuple[str, str]]:
    """(module of gymcp, name) of each import in these texts; the name is empty if the module itself is imported."""
    found = set()
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.ImportFrom):
            found |= {(node.module or "", alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names}
    return {(module, name) for module, name in found if module.split(".")[0] == "gymcp"}


def list_hidden_names(texts: Iterable[str]) -> list[str]:
    """Imports in these texts that are not of a public package, or of a name that its `__all__` does not offer."""
    imported = list_imported_names(texts)
    assert imported
    return [
        f"{module}:{name}"
        for module, name in sorted(imported - {("gymcp.envs.suites.tau2", "suite")})  # the example says so
        if module not in PUBLIC or (name and name not in importlib.import_module(module).__all__)
    ]


def test_every_name_that_a_page_or_an_example_imports_is_public() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    texts = [block.text for page in pages for block in read_blocks(page) if block.language == "python"]
    texts += [path.read_text(encoding="utf-8") for path in (ROOT / "examples").rglob("*.py")]
    assert list_hidden_names(texts) == []


def test_every_name_that_a_written_environment_imports_is_public(tmp_path: Path) -> None:
    write_scaffold("todo", tmp_path / "todo.py")
    assert list_hidden_names([(tmp_path / "todo.py").read_text(encoding="utf-8")]) == []


@pytest.mark.parametrize("state", ["opaque", FileState()], ids=["opaque", "files"])
def test_every_name_that_an_environment_over_a_server_imports_is_public(state: StateSource) -> None:
    entry = LockedServer(name="kv", runtime="python", package="kv", version="1", command=("uvx", "kv==1"))
    get = Tool(name="get", description="", input_schema={})
    trial = Trial(tools=(get,), call=ToolCall(id="call_1", name="get"), state=StateChoice(state=state, reason=""))
    text = write_text("kv", Path("kv.py"), entry, trial, "bwrap")
    assert list_hidden_names([text]) == []


def test_the_reference_has_a_page_for_each_public_package() -> None:
    tree = ast.parse((ROOT / "docs" / "site" / "hooks.py").read_text(encoding="utf-8"))
    (pages,) = [node.value for node in tree.body if isinstance(node, ast.Assign) and "PACKAGES" in ast.unparse(node)]
    assert set(ast.literal_eval(pages)) == set(PUBLIC)


def test_the_promise_of_stable_names_lists_the_public_packages() -> None:
    (row,) = re.findall(r"^\| names in `__all__` of the public packages \(([^)]+)\)", CHANGELOG, re.MULTILINE)
    assert set(re.findall(r"`([\w.]+)`", row)) == set(PUBLIC)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'gymcp\.agents' has no attribute 'nobody'"):
        importlib.import_module("gymcp.agents").nobody  # noqa: B018
