"""Measures of the structure: `python tests/house.py [FOLDER...]` prints them, and what is over a bound."""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from house_figures import describe_figures, measure_figures
from prose import ROOT, python_files, walk_statements

FOLDERS = ("mcp_servers", "envs", "agents", "evaluators", "trainers", "src/gymcp")
MAX_FILES, MAX_LINES, MAX_FUNCTION_LINES, MAX_INNER_IMPORTS = 16, 400, 60, 3
CATALOG = "envs/catalog"
"""One file per environment: it may grow."""
PROGRAMS = "mcp_servers/programs/"
"""Programs in the sandbox, most of which import upstream's code by name: no type checker has it."""
MOUNTED_ALONE = ("mcp_servers/native/runtime.py", "mcp_servers/forkserver/spawner.py")
"""Files that are copied into a sandbox by themselves, so that they cannot be split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    lines: dict[str, int]
    """Lines of each file, by its path."""
    functions: dict[str, int]
    """Lines of each function, by ``PATH:LINE NAME``."""
    inner_imports: tuple[str, ...]
    """Places of imports inside functions."""
    lazy_imports: tuple[str, ...]
    """Places where a module is imported by its name, with `importlib.import_module`, when it is needed."""
    cycles: tuple[tuple[str, ...], ...]
    """Modules that import each other in a circle, when they are imported."""

    def files_in(self) -> Counter[str]:
        """Number of Python files by folder."""
        return Counter(str(Path(path).parent) for path in self.lines)


def measure_house(folders: Sequence[str] = FOLDERS) -> House:
    lines: dict[str, int] = {}
    functions: dict[str, int] = {}
    inner: list[str] = []
    lazy: list[str] = []
    graph: dict[str, set[str]] = {}
    modules = {module_name(path): path for path in python_files(folders)}
    for module, path in modules.items():
        name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        lines[name] = len(text.splitlines())
        for node in walk_statements(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions[f"{name}:{node.lineno} {node.name}"] = (node.end_lineno or 0) - node.lineno + 1
                imports = (part for part in walk_statements(node) if isinstance(part, ast.Import | ast.ImportFrom))
                inner += [f"{name}:{part.lineno}" for part in imports]
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        lazy += [f"{name}:{call.lineno}" for call in calls if ast.unparse(call.func) == "importlib.import_module"]
        graph[module] = set(_imports_of(tree, modules))
    return House(
        lines=lines,
        functions=functions,
        inner_imports=tuple(dict.fromkeys(inner)),
        lazy_imports=tuple(lazy),
        cycles=_cycles(graph),
    )


def module_name(path: Path) -> str:
    """Dotted name under which gymcp imports the file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else ("gymcp", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports_of(tree: ast.Module, modules: dict[str, Path]) -> Iterator[str]:
    """Modules of gymcp that the file imports at its top level."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in modules or node.module in modules:
                    yield full if full in modules else node.module


def _cycles(graph: dict[str, set[str]]) -> tuple[tuple[str, ...], ...]:
    """Strongly connected components of more than one module, found by peeling off what has no arrow in or out."""
    left = {name: set(to) for name, to in graph.items()}
    while True:
        aims = set().union(*left.values())
        ends = {name for name, to in left.items() if not to & left.keys() or name not in aims}
        if not ends:
            return (tuple(sorted(left)),) if left else ()
        left = {name: to - ends for name, to in left.items() if name not in ends}


def over_bounds(house: House) -> list[str]:
    """Sentences about what is over a bound; empty if nothing is."""
    crowded = [f"{at}: {n} files" for at, n in house.files_in().items() if n > MAX_FILES and at != CATALOG]
    long = [f"{at}: {n} lines" for at, n in house.lines.items() if n > MAX_LINES and at not in MOUNTED_ALONE]
    long += [f"{at}: {n} lines" for at, n in house.functions.items() if n > MAX_FUNCTION_LINES]
    inner = list(house.inner_imports) if len(house.inner_imports) > MAX_INNER_IMPORTS else []
    return [*crowded, *long, *(f"{at}: import in a function" for at in inner), *map(" <-> ".join, house.cycles)]


def main() -> None:
    folders = sys.argv[1:] or FOLDERS
    house = measure_house(folders)
    files, lengths = house.lines.values(), sorted(house.functions.values())
    print(f"files {len(files)}, lines {sum(files)}, median file {statistics.median(files)}")
    print(f"files over {MAX_LINES} lines: {sum(n > MAX_LINES for n in files)}")
    p95 = lengths[int(0.95 * len(lengths))]
    print(f"functions: median {statistics.median(lengths)}, p95 {p95}, longest {lengths[-1]}")
    print(f"functions over {MAX_FUNCTION_LINES} lines: {sum(n > MAX_FUNCTION_LINES for n in lengths)}")
    print(f"most files in a folder: {house.files_in().most_common(3)}")
    print(f"imports in functions: {len(house.inner_imports)}; import cycles: {len(house.cycles)}")
    own = [place for place in house.lazy_imports if not place.startswith(PROGRAMS)]
    print(f"modules imported by name when needed: {len(house.lazy_imports)}, {len(own)} of them outside {PROGRAMS}")
    for sentence in describe_figures(measure_figures(folders)):
        print(sentence)
    for sentence in over_bounds(house):
        print(f"over a bound: {sentence}")


if __name__ == "__main__":
    main()
