"""Runs inside the sandbox, as the program of a spawner: a third-party Python server, imported once, run in every fork.

What is imported ahead is what the script's own import statements name, and what a first run of the server, in a cell
that is thrown away, was seen to import later. The script itself runs in the children only, so nothing that it or its
tools keep in memory can be there before an episode. Standard library only.
"""

from __future__ import annotations

import ast
import ctypes
import importlib
import importlib.util
import os
import sys
import types
from typing import NoReturn

_KEPT_FOLDERS = ("/tmp", "/workspace", "/dev/shm")
_code: types.CodeType | None = None
_module = types.ModuleType("__main__")


def preload() -> None:
    """Takes `sys.argv` as the script's: a file and its arguments, or -m, a module and its arguments.

    Raises SystemExit, saying why, where the imports leave something behind that children would share or lack.
    """
    global _code
    sys.path.remove(os.path.dirname(__file__))  # noqa: PTH120
    getattr(sys, "orig_argv", [])[-2:] = sys.argv  # in place of the spawner and its argument
    name, source = _script()
    tree = ast.parse(source, name)
    _code = compile(tree, name, "exec", dont_inherit=True)
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    scratch = {"__name__": "__preload__", "__file__": name, "__package__": _module.__package__}
    before, printed = _open_files(), os.memfd_create("printed")
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(printed, 1)
    try:
        exec(compile(ast.Module(imports, []), name, "exec", dont_inherit=True), scratch)  # noqa: S102
        sys.stdout.flush()
    finally:
        os.dup2(kept, 1)
        os.close(kept)
    if os.lseek(printed, 0, os.SEEK_END):
        _refuse("prints to standard output")
    os.close(printed)
    if _has_children():
        _refuse("leaves a process running")
    if opened := len(_open_files() - before):
        _refuse(f"keeps {opened} files open")
    if left := [folder for folder in _KEPT_FOLDERS if os.listdir(folder)]:
        _refuse(f"writes files to {left[0]}")


def main() -> NoReturn:
    """Runs the script as `python` would, and ends the process as `python` would."""
    status = 0
    try:
        sys.modules["__main__"] = _module
        assert _code is not None
        exec(_code, _module.__dict__)  # noqa: S102
    except SystemExit as error:
        if isinstance(error.code, int):
            status = error.code
        elif error.code is not None:
            print(error.code, file=sys.stderr)
            status = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    ctypes.pythonapi.Py_Exit(status)  # waits for threads, runs what was registered with atexit, flushes
    raise AssertionError("not reached")


def _script() -> tuple[str, bytes]:
    """The file and its text; `sys.argv`, `sys.orig_argv` and the main module become those of the script."""
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
    with open(name, "rb") as file:  # noqa: PTH123
        return name, file.read()


def _has_children() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _open_files() -> set[str]:
    return {name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}


def _refuse(what: str) -> NoReturn:
    raise SystemExit(f"{what} when it is imported, so it cannot be forked")
