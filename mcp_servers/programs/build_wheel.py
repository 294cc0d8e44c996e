"""Builds a wheel of a source distribution inside the sandbox: one step per start, all in the working directory.

``unpack ARCHIVE`` makes ``source/`` and copies its pyproject.toml; ``requires`` writes the further requirements of the
build backend to ``requires.json``; ``wheel`` writes one file ``*.whl``.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

DEFAULT_BACKEND = "setuptools.build_meta:__legacy__"


def unpack(archive: str) -> None:
    folder = Path("unpacked")
    folder.mkdir()
    if archive.endswith(".zip"):
        with zipfile.ZipFile(archive) as members:
            members.extractall(folder)
    else:
        with tarfile.open(archive) as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extractall(folder, filter="data")
            else:
                tar.extractall(folder)
    tops = list(folder.iterdir())
    if len(tops) != 1:
        raise SystemExit(f"a source distribution has one folder, this one has {len(tops)}")
    settings = tops[0].rename("source") / "pyproject.toml"
    if settings.exists():
        shutil.copyfile(settings, "pyproject.toml")


def backend(settings: dict[str, Any]) -> Any:
    """The object with the build hooks, imported by PEP 517: from the source tree only if ``backend-path`` says so."""
    os.chdir("source")
    path = settings.get("backend-path") or []
    sys.path[:0] = [str(Path.cwd() / folder) for folder in path]
    module, _, inner = str(settings.get("build-backend") or DEFAULT_BACKEND).partition(":")
    hooks = importlib.import_module(module)
    for name in filter(None, inner.split(".")):
        hooks = getattr(hooks, name)
    return hooks


def main() -> None:
    step, argument = sys.argv[1], sys.argv[2]
    here = Path.cwd()
    if step == "unpack":
        unpack(argument)
        return
    hooks = backend(json.loads(argument))
    if step == "requires":
        get_requires = getattr(hooks, "get_requires_for_build_wheel", None)
        requires = list(get_requires({})) if get_requires is not None else []
        (here / "requires.json").write_text(json.dumps(requires), encoding="utf-8")
    else:
        hooks.build_wheel(str(here), {}, None)


if __name__ == "__main__":
    main()
