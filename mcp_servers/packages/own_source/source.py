"""A source of the user's own: read, compared with the lock, and copied to the folder that its server sees.

The server sees a copy, so that an edit during a run changes nothing, and what was hashed is what runs.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.utils import canonicalize_name

from gymcp.atomic import cache_errors, make_once
from gymcp.errors import ConfigError, IntegrityError
from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.packages.install_folder import INSIDE, hash_files, hold_folder, servers_folder
from gymcp.mcp_servers.packages.install_request import InstallRequest, Program
from gymcp.mcp_servers.packages.lockfile import LockedServer, LockedSource
from gymcp.mcp_servers.packages.node import NODE
from gymcp.mcp_servers.packages.own_source.files import SKIPPED_FOLDERS, SourceFiles
from gymcp.mcp_servers.packages.own_source.metadata import Project, check_requirements, decode, read_json, read_project
from gymcp.mcp_servers.packages.own_source.node_imports import add_node_files
from gymcp.mcp_servers.packages.own_source.python_imports import add_python_files
from gymcp.mcp_servers.packages.own_source.typescript import START_FILE as TYPESCRIPT_START
from gymcp.mcp_servers.packages.own_source.typescript import find_compiler, start_files
from gymcp.mcp_servers.sandbox import Mount

SOURCE = PurePosixPath("/srv/source")
"""Path of the copy inside the sandbox."""
START_FILE = "gymcp_start.py"
"""File of the copy that starts a module or a script. With ``-m``, files of the working folder could come first."""
OBJECT_NAMES = ("mcp", "server", "app")
"""Names under which a file has its server, if the command line names none."""
REVISION = 1
"""Number that is raised whenever the same source would be copied differently than before."""
_START_MODULE = 'import runpy\n\nrunpy.run_module("{module}", run_name="__main__", alter_sys=True)\n'
_START_OBJECT = """\
import runpy

found = runpy.run_path({path!r}, run_name="source")
names = [name for name in {names!r} if name in found]
if not names:
    raise SystemExit("the file has none of these objects: " + ", ".join({names!r}))
found[names[0]].run()
"""
_START_SCRIPT = 'import sys\n\nfrom {module} import {top}\n\nif __name__ == "__main__":\n    sys.exit({function}())\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSource:
    """A source as it is on the disk now."""

    contents: Mapping[str, bytes]
    """Bytes by path below the folder."""
    requires: tuple[str, ...]
    """Requirements that its metadata names, beside those of the request."""
    python: str
    """Specifier of the Python versions that it supports. Empty: any."""
    start: str
    """File of the copy that is run."""
    extra: Mapping[str, str]
    """Files that the copy has beside those of the source, by path."""
    import_paths: tuple[str, ...] = ()
    """Folders of the copy to import from, beside that of `start`."""

    @property
    def files(self) -> dict[str, str]:
        """sha256 by path below the folder."""
        return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(self.contents.items())}

    @property
    def sha256(self) -> str:
        """One hash over all files."""
        return digest(self.files)


def read_source(request: InstallRequest) -> OwnSource:
    """The source of a request as it is now. Raises ConfigError, naming the file that is at fault."""
    program = request.own
    assert program is not None
    who = f"server '{request.name}': source '{program.path}'"
    folder = request.base / program.folder
    files = SourceFiles(who, folder, request.base)
    for name in request.include:
        path = folder / name
        if not path.exists():
            raise ConfigError(f"{who}: --include '{name}' is not there; it is relative to '{folder}'")
        if SKIPPED_FOLDERS & set(path.parts[len(folder.parts) :]):
            raise ConfigError(f"{who}: --include '{name}' is a folder of installed packages or a cache")
        if path.is_dir():
            files.add_folder(path)
        else:
            files.add_file(path)
    read = _read_node if request.runtime == "node" else _read_python
    return read(who, request, program, folder, files)


def check_dev(request: InstallRequest) -> None:
    """Raise ConfigError for ``--dev`` with a source elsewhere: a stranger's lock could then show files to a server."""
    if request.own is None or not request.dev:
        return
    folder, base = os.path.realpath(request.base / request.own.folder), os.path.realpath(request.base)
    if not Path(folder).is_relative_to(base):
        raise ConfigError(
            f"server '{request.name}': --dev: the source in '{request.own.folder}' is not below the lock's folder; "
            "put the lock above it, or lock the server without --dev"
        )


def lock_source(source: OwnSource, request: InstallRequest) -> LockedSource:
    return LockedSource(files=source.files, requires=source.requires, include=request.include, dev=request.dev)


def compare_source(server: LockedServer, source: OwnSource) -> None:
    """Raise IntegrityError if the source is not the locked one; with ``--dev``, only if its dependencies differ."""
    locked = server.source
    assert locked is not None
    accept = f"to accept that run: {server.lock_command}"
    if tuple(source.requires) != tuple(locked.requires):
        raise IntegrityError(
            f"server '{server.name}': its dependencies were {_list(locked.requires)} when it was locked, and are now "
            f"{_list(source.requires)}; {accept}"
        )
    if locked.dev:
        return
    now, then = source.files, locked.files
    changed = [(name, "has changed") for name in sorted(then.keys() & now.keys()) if then[name] != now[name]]
    changed += [(name, "is gone") for name in sorted(then.keys() - now.keys())]
    changed += [(name, "is new") for name in sorted(now.keys() - then.keys())]
    if changed:
        name, what = changed[0]
        raise IntegrityError(f"server '{server.name}': source file '{name}' {what} since it was locked; {accept}")


def copy_source(server: LockedServer, source: OwnSource) -> Path:
    """Folder with a copy of the source, which is made if it is missing. Raises IntegrityError if it was changed."""
    expected = {**source.files, **{path: _sha256(text) for path, text in source.extra.items()}}

    def make(folder: Path) -> None:
        texts = {path: text.encode() for path, text in source.extra.items()}
        for path, content in {**source.contents, **texts}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        if source.start.endswith(".py"):
            return
        (folder / "node_modules").symlink_to(INSIDE / "node_modules")

    with cache_errors():
        folder = make_once(folder_of_copy(server, source.files), make)
        hold_folder(folder)
        hashes = {path: sha256 for path, sha256 in hash_files(folder).items() if path != "node_modules"}
    if hashes != expected:
        raise IntegrityError(
            f"server '{server.name}': the copy of its source in {folder} was changed; remove that folder"
        )
    return folder


def folder_of_copy(server: LockedServer, files: Mapping[str, str]) -> Path:
    """Folder in which this machine has, or would have, the copy of a source with these files."""
    key = digest([REVISION, dict(files), list(server.command)])
    return servers_folder() / f"{server.name}-source-{key[:16]}"


def mount_source(server: LockedServer, request: InstallRequest) -> tuple[OwnSource, Mount]:
    """(source as it is now, mount of its copy), after it was compared with the lock.

    Raises ConfigError, IntegrityError.
    """
    check_dev(request)
    source = read_source(request)
    compare_source(server, source)
    return source, Mount(source=copy_source(server, source), target=SOURCE)


def own_start_words(source: OwnSource) -> tuple[str, ...]:
    """Command that starts the copy inside the sandbox."""
    file = str(SOURCE / source.start)
    if not source.start.endswith(".py"):
        return (str(NODE), file)
    return (str(INSIDE / "venv" / "bin" / "python"), "-s", "-B", file)


def _read_python(who: str, request: InstallRequest, program: Program, folder: Path, files: SourceFiles) -> OwnSource:
    file = program.file or _find_module(folder, program)
    text = ""
    if file:
        name = files.add_file(folder / file)
        text = decode(who, name, files.contents[name])
    project = read_project(who, folder, text)
    if project.scripts is not None:
        files.add_file(folder / "pyproject.toml")
    start, extra, module = _start_file(who, program, project)
    imports = add_python_files(who, files, folder, program, module)
    added = check_requirements(f"{who}: --with", request.added)
    if imports.foreign and not project.named_in and not added:
        packages = ", ".join(imports.foreign)
        raise ConfigError(
            f"{who}: imports {packages}, and names no dependencies; name them in the file (PEP 723), in [project] of a "
            f"pyproject.toml or a requirements.txt beside it, or with --with {imports.foreign[0]}"
        )
    paths = tuple(str(SOURCE / root) for root in imports.roots)
    return OwnSource(
        contents=files.contents,
        requires=project.requires,
        python=project.python,
        start=start,
        extra={**extra, **_describe_project(project)},
        import_paths=paths if program.kind != "file" or len(paths) > 1 else (),
    )


def _find_module(folder: Path, program: Program) -> str:
    """File of a module of the folder that ``python -m`` runs; empty for a package, whose metadata is the project's."""
    return f"{program.name}.py" if program.kind == "module" and (folder / f"{program.name}.py").is_file() else ""


def _read_node(who: str, request: InstallRequest, program: Program, folder: Path, files: SourceFiles) -> OwnSource:
    if request.added or request.constraints:
        raise ConfigError(f"{who}: --with and --constraint are for Python; name the dependencies in package.json")
    add_node_files(who, files, folder, program)
    has_package = (folder / "package.json").is_file()
    content = read_json(who, folder / "package.json") if has_package else {}
    requires, start, extra = node_requires(who, content), program.name, dict[str, str]()
    if compiler := find_compiler(who, program.name, content):
        requires = tuple(dict.fromkeys((*requires, *(f"{name}@{version}" for name, version in compiler.items()))))
        start, extra = TYPESCRIPT_START, start_files(program.name)
    return OwnSource(contents=files.contents, requires=requires, python="", start=start, extra=extra)


def node_requires(who: str, content: Mapping[str, object]) -> tuple[str, ...]:
    """``NAME@VERSION`` of the dependencies in a package.json, without those for development only."""
    requires = []
    for kind in ("dependencies", "optionalDependencies"):
        table = content.get(kind, {})
        if not isinstance(table, dict) or not all(isinstance(version, str) for version in table.values()):
            raise ConfigError(f"{who}: package.json: {kind} must map names to versions")
        requires += [f"{name}@{version}" for name, version in sorted(table.items())]
    return tuple(requires)


def _start_file(who: str, program: Program, project: Project) -> tuple[str, dict[str, str], str]:
    """(file to run, its text by its name if it is made here, module that it imports)."""
    if program.kind == "file":
        return program.name, {}, ""
    if program.kind == "object":
        return START_FILE, {START_FILE: _start_object(program)}, ""
    if program.kind == "module":
        _check_dotted(who, program.name)
        return START_FILE, {START_FILE: _START_MODULE.format(module=program.name)}, program.name
    scripts = project.scripts or {}
    if program.name not in scripts:
        have = ", ".join(scripts) or "none"
        raise ConfigError(f"{who}: no program '{program.name}' in [project.scripts] of pyproject.toml; have {have}")
    module, _, function = scripts[program.name].partition("[")[0].replace(" ", "").partition(":")
    _check_dotted(who, module, function)
    text = _START_SCRIPT.format(module=module, top=function.split(".")[0], function=function)
    return START_FILE, {START_FILE: text}, module


def _start_object(program: Program) -> str:
    """Text of a file that runs an object of the program's file: the one that it names, or a usual one."""
    name = program.name.partition(":")[2]
    return _START_OBJECT.format(path=str(SOURCE / program.file), names=(name,) if name else OBJECT_NAMES)


def _check_dotted(who: str, *names: str) -> None:
    """Raise ConfigError for a text that is not a dotted name, and so would be other code in the start file."""
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(f"{who}: '{name}' is not the name of a module or a function")


def _describe_project(project: Project) -> dict[str, str]:
    """Files that tell `importlib.metadata` the project's name and version, as an installation would."""
    if not project.name or not project.version:
        return {}
    name = canonicalize_name(project.name).replace("-", "_")
    if not name.isidentifier() or not re.fullmatch(r"[\w.+!-]+", project.version):
        return {}
    text = f"Metadata-Version: 2.1\nName: {project.name}\nVersion: {project.version}\n"
    return {f"{name}-{project.version}.dist-info/METADATA": text}


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _list(words: Sequence[str]) -> str:
    return ", ".join(words) or "none"
