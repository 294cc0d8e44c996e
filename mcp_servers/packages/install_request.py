"""The request to lock a server, as a command line, an entry of a configuration file or a lock describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gymcp.mcp_servers.packages.lockfile import Runtime
from gymcp.mcp_servers.services import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Program in a folder of the user's own, which starts a server."""

    folder: str
    """Path of the folder, relative to `InstallRequest.base`; it begins with a dot or a slash."""
    kind: Literal["file", "object", "module", "script"]
    """file: a file below the folder. object: FILE or FILE:NAME, whose object is run, as ``mcp run`` does. module: as of
    ``python -m``. script: a console script of the folder's project."""
    name: str

    @property
    def file(self) -> str:
        """Path of the program's file below the folder; empty for a module or a script."""
        return self.name.partition(":")[0] if self.kind == "object" else self.name if self.kind == "file" else ""

    @property
    def path(self) -> str:
        """Path that people know the program by: the file's, or the folder's."""
        return f"{self.folder}/{self.file}" if self.file else self.folder


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRequest:
    """Server that is to be resolved, installed and locked."""

    name: str
    runtime: Runtime
    package: str
    """Name of the package. For an image: its name without tag and digest, or the path of a Dockerfile, which begins
    with a dot or a slash. For a source of the user's own: its path, which begins so, too."""
    version: str | None
    """None: the newest one, which the lock then pins. For an image: its tag, or its digest in a registry."""
    extras: tuple[str, ...] = ()
    program: str | None = None
    """Program of the package to start. None: the one with the package's own name, or the only one."""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    http: str = ""
    """PORT/PATH at which the server listens inside the sandbox. Empty: it speaks over standard input and output."""
    url: str = ""
    """URL of a remote server."""
    headers: Mapping[str, str] = field(default_factory=dict)
    requirements: tuple[str, ...] = ()
    """Packages of a native server, each as PACKAGE or PACKAGE==VERSION; `package` is the first of them."""
    build: tuple[str, ...] = ()
    """Packages, as ``NAME`` or ``NAME==VERSION``, that may be built in a sandbox if they have to be built."""
    added: tuple[str, ...] = ()
    """Python: requirements beside those of the package or the source (``--with``)."""
    constraints: tuple[str, ...] = ()
    """Python: requirements that limit the versions of packages which are needed anyway (``--constraint``)."""
    until: str = ""
    """Python: time after which the index got files that are left out. Empty: the newest packages are taken."""
    python: str = ""
    """Python: minor version of the interpreter, such as 3.12 (``--python``). Empty: the sandbox's own, if it fits."""
    services: tuple[Service, ...] = ()
    """Processes beside the server in its sandbox, with commands as `gymcp.mcp_servers.services` parses them."""
    own: Program | None = None
    """Program of the user's own; None: the server comes from a registry, an engine, or another machine."""
    include: tuple[str, ...] = ()
    """Files and folders below the own program's folder that it needs beside the code that it imports."""
    dev: bool = False
    """True: changes of the own source are accepted as they come."""
    base: Path = field(default=Path(), compare=False)
    """Folder that the paths of a Dockerfile and of an own program are relative to."""

    @property
    def dockerfile(self) -> Path | None:
        """Path of the Dockerfile; None if the server is not an image that is built here."""
        return self.base / self.package if self.runtime == "image" and self.package[0] in "./" else None

    def command(self, version: str) -> tuple[str, ...]:
        """Command line with which a person would start that version; for a remote server its URL."""
        if self.runtime == "remote":
            return (self.url,)
        if self.runtime == "native":
            return ("pip", "install", *self.requirements)
        if self.own is not None:
            return (*_own_words(self, self.own), *self.args)
        if self.runtime == "node":
            pinned = f"{self.package}@{version}"
            start = ["npx", "-y", pinned] if self.program is None else ["npx", "-y", "-p", pinned, self.program]
        elif self.runtime == "image":
            start = ["docker", "run", "-i", "--rm", image_reference(self, version)]
        else:
            pinned = f"{self.package}{'[' + ','.join(self.extras) + ']' if self.extras else ''}=={version}"
            more = [word for line in self.added for word in ("--with", line)]
            start = ["uvx", *more, *([pinned] if self.program is None else ["--from", pinned, self.program])]
        return (*start, *self.args)


def image_reference(request: InstallRequest, version: str) -> str:
    """Name of the image with its tag or digest; for a Dockerfile its path."""
    if request.dockerfile is not None:
        return request.package
    return f"{request.package}{'@' if version.startswith('sha256:') else ':'}{version}"


def _own_words(request: InstallRequest, program: Program) -> tuple[str, ...]:
    """Command line of an own program, with paths relative to the request's base."""
    if request.runtime == "node":
        return ("node", program.path)
    more = [word for line in request.added for word in ("--with", line)]
    if program.kind == "file" and "/" not in program.name:
        return ("uv", "run", *more, program.path) if more else ("python", program.path)
    before = {"module": ("python", "-m"), "object": ("mcp", "run")}.get(program.kind, ())
    start = (*before, program.name)
    return ("uv", "run", "--directory", program.folder, *more, *start)
