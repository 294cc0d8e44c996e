"""Figures of how the code reads, which can be compared with those of other projects; `house` prints them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prose import ROOT, list_statements, python_files

MAX_CLASS_LINES = 300
SHORT_FUNCTION_LINES = 3
VAGUE = ("found", "each", "made", "said", "wanted", "kept", "left", "told", "shown", "given", "taken", "seen", "drawn")
"""Names of local variables that do not say what the value is."""
_SUPPRESSION = re.compile(r"#\s*(?:noqa|type:\s*ignore)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    lines: int
    long_classes: tuple[str, ...]
    """Classes of more than `MAX_CLASS_LINES` lines, as ``PATH:LINE NAME (LINES)``."""
    broad_excepts: int
    """Handlers of Exception, of BaseException, or of everything."""
    suppressions: int
    """Comments that silence ruff or a type checker."""
    depth: int
    """Folders between one of the measured folders and the deepest file."""
    short_functions: float
    """Share of the functions whose body, without its docstring, has at most `SHORT_FUNCTION_LINES` lines."""
    used_once: float
    """Share of the private functions whose name is used at one place."""
    vague_locals: float
    """Share of `VAGUE` among the names that functions assign."""
    vague_names: Counter[str]
    documented: float
    """Share of the public functions and methods with a docstring."""
    imports: float
    """Imports per 1,000 lines."""


@dataclass(frozen=True, slots=True)
class _Function:
    node: ast.FunctionDef | ast.AsyncFunctionDef
    is_public: bool
    """True if neither its name nor that of a class around it is private, and it stands in no function."""

    @property
    def body_lines(self) -> int:
        body = self.node.body[1:] if ast.get_docstring(self.node) is not None else self.node.body
        return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def measure_figures(folders: Sequence[str]) -> Figures:
    """Figures of the Python files below the folders of the repository."""
    texts = {path: path.read_text(encoding="utf-8") for path in python_files(folders)}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    functions = [function for tree in trees.values() for function in _functions(tree)]
    lines = sum(len(text.splitlines()) for text in texts.values())
    uses = Counter(name for node in nodes if (name := _used_name(node)))
    private = [each.node.name for each in functions if re.match(r"_[^_]", each.node.name)]
    stores = Counter(name for each in functions for name in _list_assigned(each.node))
    vague = Counter({name: count for name, count in stores.items() if name in VAGUE})
    return Figures(
        lines=lines,
        long_classes=tuple(found for path, tree in trees.items() for found in _long_classes(path, tree)),
        broad_excepts=sum(map(_is_broad, nodes)),
        suppressions=sum(len(_SUPPRESSION.findall(text)) for text in texts.values()),
        depth=max((_depth(path, folders) for path in texts), default=0),
        short_functions=_share(sum(each.body_lines <= SHORT_FUNCTION_LINES for each in functions), len(functions)),
        used_once=_share(sum(uses[name] == 1 for name in private), len(private)),
        vague_locals=_share(vague.total(), stores.total()),
        vague_names=vague,
        documented=_share_documented(functions),
        imports=1000 * _share(sum(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes), lines),
    )


def measure_documented(folders: Sequence[str]) -> float:
    """Share of the public functions with a docstring."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in python_files(folders))
    return _share_documented([function for tree in trees for function in _functions(tree)])


def describe_figures(figures: Figures) -> Iterator[str]:
    kloc = max(figures.lines, 1) / 1000
    classes = ", ".join(figures.long_classes[:3])
    yield f"classes over {MAX_CLASS_LINES} lines: {len(figures.long_classes)} ({classes})"
    yield f"imports per 1,000 lines: {figures.imports:.1f}"
    yield f"broad excepts per 1,000 lines: {figures.broad_excepts / kloc:.2f}"
    yield f"noqa and type: ignore per 1,000 lines: {figures.suppressions / kloc:.2f}"
    yield f"most folders above a file: {figures.depth}"
    yield f"functions of at most {SHORT_FUNCTION_LINES} lines: {figures.short_functions:.0%}"
    yield f"private functions used once: {figures.used_once:.0%}"
    names = ", ".join(f"{name} {count}" for name, count in figures.vague_names.most_common(5))
    yield f"vague local names: {figures.vague_locals:.1%} ({names})"
    yield f"public functions with a docstring: {figures.documented:.0%}"


def _share_documented(functions: Sequence[_Function]) -> float:
    public = [each.node for each in functions if each.is_public]
    return _share(sum(ast.get_docstring(node, clean=False) is not None for node in public), len(public))


def _functions(tree: ast.AST, public: bool = True) -> Iterator[_Function]:
    for node in list_statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield _Function(node, public and not node.name.startswith("_"))
            yield from _functions(node, public=False)
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, public and not node.name.startswith("_"))
        else:
            yield from _functions(node, public)


def _list_assigned(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Names that the function's own body assigns, once for each place; a function inside has its own."""
    inner = {
        part for each in ast.walk(function) if each is not function and _is_function(each) for part in ast.walk(each)
    }
    for node in ast.walk(function):
        if node not in inner and isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _used_name(node: ast.AST) -> str:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _is_broad(node: ast.AST) -> bool:
    if not isinstance(node, ast.ExceptHandler):
        return False
    caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return any(
        each is None or (isinstance(each, ast.Name) and each.id in ("Exception", "BaseException")) for each in caught
    )


def _long_classes(path: Path, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and (lines := (node.end_lineno or 0) - node.lineno + 1) > MAX_CLASS_LINES:
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name} ({lines})"


def _depth(path: Path, folders: Sequence[str]) -> int:
    return next(len(path.relative_to(ROOT / at).parts) - 1 for at in folders if path.is_relative_to(ROOT / at))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
