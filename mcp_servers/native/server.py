"""Servers on gymcp's own runtime: the sandbox gets one folder with the runtime and the program, and nothing else.

The folder is made once per content in gymcp's cache and byte-compiled by the sandbox's own interpreter, so that a
server starts in milliseconds.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import os
import subprocess
import symtable
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path, PurePosixPath
from typing import Literal

from gymcp.atomic import cache_errors, make_once
from gymcp.errors import ConfigError
from gymcp.mcp_servers.redaction import secrets_in
from gymcp.mcp_servers.sandbox import Forkable, Limits, Mount, interpreter
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.variables import substitute_variables
from gymcp.paths import find_page, gymcp_home

PROGRAM = PurePosixPath("/srv/program")
"""Mount point of the folder in the sandbox."""
PACKAGES = PurePosixPath("/srv/packages")
"""Mount point of the packages that a server declares."""
RUNTIME = "gymcp.mcp_servers.native.runtime"
ROOM, PASSED_ON = "gymcp.mcp_servers", frozenset({"ToolError"})
"""Package from which a class may import these names of the runtime, too."""
_IMPORT_NODES = (ast.Import, ast.ImportFrom)
_START_CODE = (
    "import sys\n"
    "sys.path[:] = {paths!r} + [p for p in sys.path if p]\n"  # without the working directory, which agents write to
    "from server_main import main\n"
    "main()\n"
)


def native_server(
    name: str,
    program: str | type,
    *,
    modules: Sequence[str] = (),
    mounts: Sequence[Mount] = (),
    python_path: Sequence[PurePosixPath] = (),
    packages: Path | None = None,
    env: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    start: Literal["exec", "fork"] = "exec",
) -> ServerSpec:
    """The spec of a server on the native runtime.

    `program` is the dotted name of a module with a ``main()``, whose file is copied and not imported, or a class. The
    public methods of the class, also static ones, become the tools (class methods and properties do not);
    ``cls(**initial_state)`` is the setup, and the public attributes are the declared state. Only the source of the
    class and the imports that it uses enter the sandbox, so one file can have tasks, gold calls and server.

    `modules` are the dotted names of further modules that the program imports. `packages` is the folder of the packages
    that it imports, from `locked_packages`. `start` may be "fork" only for a program that `ServerSpec.fork` allows,
    whose packages start no thread when they are imported. `env` is what the program finds in `os.environ`; ``${NAME}``
    in it takes the value of a variable of the harness, which is kept out of what is recorded (`ServerSpec.secrets`).
    Raises ConfigError if the source cannot be found, uses names or packages that do not enter the sandbox, or has async
    tools, and for a variable that is not set.
    """
    if isinstance(program, str):
        source = _module_source(program)
    else:
        has_own_paths = bool(modules or mounts or python_path)
        importable = None if has_own_paths else _importable(packages)
        source = _class_source(program, importable=importable, modules=modules)
    paths = [str(PROGRAM), *([str(PACKAGES)] if packages else []), *map(str, python_path)]
    try:
        values = {key: substitute_variables(text, os.environ) for key, text in (env or {}).items()}
    except KeyError as error:
        raise ConfigError(f"server '{name}': environment variable {error} is not set; its env refers to it") from error
    return ServerSpec(
        name=name,
        argv=("python3", "-s", "-S", "-B", "-c", _START_CODE.format(paths=paths)),
        env={"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", **values},
        secrets=secrets_in(f"server '{name}'", (env or {}).items()),
        mounts=(
            Mount(source=_bundle(source, {name: _module_source(name) for name in modules}), target=PROGRAM),
            *([Mount(source=packages, target=PACKAGES)] if packages else []),
            *mounts,
        ),
        limits=limits or Limits(),
        state="declared",
        fork=Forkable(path=tuple(paths), module="server_main") if start == "fork" else None,
        wire="2026-07-28",
    )


def is_native(server: ServerSpec) -> bool:
    """True if `native_server` made the spec: what its tools raise arrives as "TypeName: message"."""
    return any(mount.target == PROGRAM for mount in server.mounts)


def _module_source(name: str) -> str:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ConfigError(f"native server: no module '{name}'; give the dotted name of a file with a main()")
    return Path(spec.origin).read_text(encoding="utf-8")


def _importable(packages: Path | None) -> frozenset[str]:
    """Names of the modules that can be imported from a folder of packages."""
    return frozenset(path.name.partition(".")[0] for path in packages.iterdir()) if packages else frozenset()


def _class_source(cls: type, *, importable: frozenset[str] | None, modules: Sequence[str] = ()) -> str:
    """Program with the class.

    `importable`: modules beside the standard library's; None: not known, all are allowed. `modules`: further modules
    that enter the sandbox, by dotted names.
    """
    try:
        body = textwrap.dedent(inspect.getsource(cls))
        module = ast.parse(Path(inspect.getfile(cls)).read_text(encoding="utf-8"))
    except (OSError, TypeError) as error:
        raise ConfigError(f"native server: the source of class '{cls.__name__}' is not in a file: {error}") from error
    used = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    read = _global_reads(symtable.symtable(body, cls.__name__, "exec"))
    missing = sorted((read & _top_level_names(module) - {cls.__name__}) | _star_imports(cls, module, read))
    if missing:
        raise ConfigError(
            f"native server: class '{cls.__name__}' uses {', '.join(missing)} of its file, but only the class itself "
            "and the plain imports it uses at the top of the file enter the sandbox; move them into the class"
        )
    coroutines = [name for name, part in vars(cls).items() if _is_async(part) and not name.startswith("_")]
    if coroutines:
        raise ConfigError(
            f"native server: class '{cls.__name__}': async {', '.join(coroutines)}: tools run one at a time, "
            "without an event loop; make them plain methods"
        )
    imports, inner = list(_imports(module, used)), list(_inner_imports(ast.parse(body)))
    _refuse_gymcp(cls, inner, {RUNTIME, *modules})
    if importable is not None:
        _refuse_packages(cls, [*imports, *inner], importable)
    return "\n".join(
        [
            "from __future__ import annotations",
            *map(ast.unparse, imports),
            "from gymcp.mcp_servers.native.runtime import class_server",
            body,
            f"_gymcp_server = class_server({cls.__name__})",  # only once for a program that is forked for every episode
            "def main():",
            "    _gymcp_server.run()",
        ]
    )


def _is_async(part: object) -> bool:
    plain = part.__func__ if isinstance(part, staticmethod | classmethod) else part
    return inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain)


def _imports(module: ast.Module, used: set[str]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Top-level imports of the names in `used`. Raises ConfigError for a module of gymcp other than the runtime."""
    for node in module.body:
        if not isinstance(node, _IMPORT_NODES):
            continue
        names = [alias for alias in node.names if (alias.asname or alias.name).split(".")[0] in used]
        if not names:
            continue
        if isinstance(node, ast.ImportFrom) and node.module == ROOM and {alias.name for alias in names} <= PASSED_ON:
            node.module = RUNTIME  # the package itself does not enter the sandbox
        source = (node.module or "") if isinstance(node, ast.ImportFrom) else names[0].name
        if source.split(".")[0] == "gymcp" and source != RUNTIME:
            raise ConfigError(
                f"native server: '{names[0].name}' of {source} does not enter the sandbox; of {ROOM}, only"
                f" {', '.join(PASSED_ON)} does"
            )
        node.names = names
        yield node


def _inner_imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports inside the class and its methods; those in a ``try`` may fail."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _IMPORT_NODES):
            yield node
        elif not isinstance(node, ast.Try):
            yield from _inner_imports(node)


def _refuse_gymcp(cls: type, inner: Sequence[ast.Import | ast.ImportFrom], entering: Set[str]) -> None:
    """Raise ConfigError for an import inside the class of a part of gymcp that is not among the modules `entering`."""
    for node in inner:
        source = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        for name in (source + alias.name for alias in node.names):
            if name.split(".")[0] == "gymcp" and not {name, source[:-1]} & entering:
                raise ConfigError(
                    f"native server: class '{cls.__name__}' imports {name} inside the class, which does not enter the"
                    f" sandbox: import {', '.join(PASSED_ON)} at the top of the file; of other parts of gymcp, only"
                    f" {RUNTIME} can be imported"
                )


def _refuse_packages(cls: type, imports: Sequence[ast.Import | ast.ImportFrom], importable: frozenset[str]) -> None:
    """Raise ConfigError for an import of a package that the server does not have."""
    for node in imports:
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        for package in (name.split(".")[0] for name in modules):
            if package not in sys.stdlib_module_names | importable and package != "gymcp":
                raise ConfigError(
                    f"native server: class '{cls.__name__}' imports {package}, and a native server has only Python's "
                    "standard library and the packages that it declares; declare the package that has it:"
                    " native_server(..., packages=locked_packages(NAME, 'PACKAGE==VERSION', lock=LOCK))"
                    f" ({find_page('adding-a-server.md')})"
                )


def _top_level_names(module: ast.Module) -> set[str]:
    """Names that the file binds at its top level, also in ``if``, ``try``, ``for`` or ``with``.

    An import counts only under a condition, because the sandbox may decide the condition in another way.
    """
    names: set[str] = set()
    pending: list[ast.AST] = list(module.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            continue
        if isinstance(node, _IMPORT_NODES):
            if node not in module.body:
                names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif not isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            pending += ast.iter_child_nodes(node)
    return names


def _star_imports(cls: type, module: ast.Module, used: set[str]) -> set[str]:
    """Names in `used` that the file gets from an ``import *``."""
    if not any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in module.body):
        return set()
    plain = {(a.asname or a.name).split(".")[0] for n in module.body if isinstance(n, _IMPORT_NODES) for a in n.names}
    return (used & vars(sys.modules[cls.__module__]).keys()) - plain - {cls.__name__}


def _global_reads(table: symtable.SymbolTable) -> set[str]:
    """Names that the source reads and does not bind itself."""
    at_top = table.get_type() == "module"
    names = {s.get_name() for s in table.get_symbols() if s.is_referenced() and (at_top or s.is_global())}
    return names.union(*map(_global_reads, table.get_children()))


def precompile(folder: Path) -> None:
    """Write byte code beside the sources, for the sandbox's interpreter only; it is never compared with them again."""
    argv = [str(interpreter().path), "-I", "-S", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    done = subprocess.run(
        [*argv, "-s", str(folder), str(folder)], capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode != 0:
        raise ConfigError(f"native server: {folder.name} does not compile: {(done.stdout or done.stderr).strip()}")


def _bundle(source: str, modules: Mapping[str, str]) -> Path:
    """The folder for one program, created if it does not exist yet; `modules` maps dotted names to source texts."""
    runtime = Path(__file__).with_name("runtime.py").read_bytes()
    texts = [source, repr(interpreter().version), *(f"{name}\0{text}" for name, text in modules.items())]
    key = hashlib.sha256(b"\0".join([runtime, *map(str.encode, texts)])).hexdigest()

    def make(folder: Path) -> None:
        package = folder / "gymcp" / "mcp_servers" / "native"  # no __init__.py: only the runtime can be imported
        package.mkdir(parents=True)
        (package / "runtime.py").write_bytes(runtime)
        (folder / "server_main.py").write_text(source, encoding="utf-8")
        for name, text in modules.items():
            path = folder / f"{name.replace('.', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        precompile(folder)

    with cache_errors():
        return make_once(gymcp_home() / "programs" / key[:24], make)
