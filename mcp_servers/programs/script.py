"""Program of a spawner inside the sandbox: imports a third-party Python server once, and runs it in every fork.

It imports ahead the modules that the script's own import statements name, and those that a first run of the server, in
a sandbox that is thrown away, imported later. The script itself runs only in the children, so nothing that it or its
tools keep in memory exists before an episode. Standard library only.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import sys
import types
from collections.abc import Iterator
from typing import NoReturn

_SHARED_FOLDERS = ("/tmp", "/workspace", "/dev/shm")
_module = types.ModuleType("__main__")
_code: list[types.CodeType] = []
"""Compiled code of the script, set by `preload`."""


def preload() -> None:
    """Import what the script imports; `sys.argv` is a file and its arguments, or -m, a module and its arguments.

    Raises SystemExit, with the reason, if the imports leave something behind that children would share or lack.
    """
    sys.path.remove(os.path.dirname(__file__))
    getattr(sys, "orig_argv", [])[-2:] = sys.argv  # replaces the spawner and its argument
    name, source = _script()
    tree = ast.parse(source, name)
    _code.append(compile(tree, name, "exec", dont_inherit=True))
    imports: list[ast.stmt] = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    scratch = {"__name__": "__preload__", "__file__": name, "__package__": _module.__package__}
    with _check_side_effects():
        exec(compile(ast.Module(imports, []), name, "exec", dont_inherit=True), scratch)  # noqa: S102
        _warm_up_sdk()


def learn(names: list[str]) -> None:
    """Import modules that a run of the script imported late. Raises SystemExit like `preload`."""
    with _check_side_effects():
        for name in names:
            if name not in sys.modules:
                with contextlib.suppress(Exception):
                    importlib.import_module(name)


def main(*, tell_imports: bool = False) -> NoReturn:
    """Run the script as `python` would, and end the process as `python` would.

    With `tell_imports`, the last line on standard output lists the modules imported since the fork.
    """
    status = 0
    if tell_imports:
        atexit.register(_tell_imports, set(sys.modules))
    try:
        sys.modules["__main__"] = _module
        exec(_code[0], _module.__dict__)  # noqa: S102
    except SystemExit as error:
        if isinstance(error.code, int):
            status = error.code
        elif error.code is not None:
            print(error.code, file=sys.stderr)
            status = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    ctypes.pythonapi.Py_Exit(status)  # waits for threads, runs the atexit handlers, flushes
    raise AssertionError("not reached")


def _script() -> tuple[str, bytes]:
    """(file name, source text) of the script; `sys.argv`, `sys.orig_argv` and the main module become the script's."""
    if sys.argv[0] != "-m":
        name = sys.argv[0]
    else:
        spec = importlib.util.find_spec(sys.argv[1])
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{sys.argv[1]}.__main__")
        if spec is None or spec.origin is None:
            raise SystemExit(f"no module named {sys.argv[1]}")
        name = spec.origin
        sys.argv[:2] = [name]
        _module.__package__, _module.__spec__, _module.__loader__ = spec.parent, spec, spec.loader
    _module.__file__ = name
    _module.__dict__["__builtins__"] = __builtins__
    with open(name, "rb") as file:
        return name, file.read()


def _warm_up_sdk() -> None:
    """Run one session with a dummy server, so that the SDK's lazy initialisation is done before the fork.

    It uses only modules that are imported already.
    """
    mcp, server = sys.modules.get("mcp"), sys.modules.get("mcp.server.mcpserver")
    asyncio, logging = sys.modules.get("asyncio"), sys.modules.get("logging")
    if not (mcp and server and asyncio and logging and hasattr(mcp, "Client")):
        return
    root, dummy = logging.getLogger(), server.MCPServer("warm")
    before = root.level, list(root.handlers)

    def echo(number: int, text: str = "") -> str:
        return f"{number}{text}"

    async def talk() -> None:
        async with mcp.Client(dummy, mode="legacy") as client:
            await client.list_tools()

    with contextlib.suppress(Exception):
        dummy.add_tool(echo)
        asyncio.run(talk())
    root.level, root.handlers[:] = before


def _tell_imports(before: set[str]) -> None:
    sys.stdout.flush()
    names = [name for name in sys.modules if name not in before and not name.startswith("__")]
    os.write(1, b"\n" + json.dumps({"imports": names}).encode() + b"\n")


@contextlib.contextmanager
def _check_side_effects() -> Iterator[None]:
    """Raise SystemExit if the block leaves something behind that all children would share."""
    before = _open_files()
    output = os.open("/tmp", os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC)  # memfd_create is not always allowed
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(output, 1)
    try:
        yield
        sys.stdout.flush()
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
    size = os.lseek(output, 0, os.SEEK_END)
    os.close(output)
    if size:
        _refuse("prints to standard output")
    if count := len(_open_files() - before):
        _refuse(f"keeps {count} files open")
    if changed := [folder for folder in _SHARED_FOLDERS if os.listdir(folder)]:
        _refuse(f"writes files to {changed[0]}")


def _open_files() -> set[str]:
    return {name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}


def _refuse(what: str) -> NoReturn:
    raise SystemExit(f"{sys.argv[0]} {what} when it is imported, so it cannot be forked")
