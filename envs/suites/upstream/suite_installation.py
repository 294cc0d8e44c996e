"""Installation and verification of third-party suites: a pinned wheel, the packages that its code imports, its tasks.

Nothing of upstream is in this repository. The wheel is fetched once and split: ``server/`` holds what may be mounted in
a server's sandbox, ``private/`` tasks and graders, for the sandbox of the judge program alone.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gymcp.atomic import cache_errors, write_atomically
from gymcp.envs.suites.upstream.file_layout import SuiteFiles, fingerprint
from gymcp.envs.suites.upstream.packages import install_packages, packages_folder
from gymcp.envs.suites.upstream.run_once import run_once
from gymcp.envs.suites.upstream.verified_cache import read_checked, verified_folder, write_checked
from gymcp.envs.suites.upstream.wheels import Wheel, fetch_wheel, unpack_wheel
from gymcp.errors import SandboxUnavailable
from gymcp.mcp_servers.native.server import native_server, precompile
from gymcp.mcp_servers.sandbox import Limits, Sandbox, get_sandbox
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.paths import gymcp_home
from gymcp.types import Json

LIBRARIES = PurePosixPath("/srv/libraries")
"""Folder in a sandbox at which the packages that upstream's code imports are mounted."""
JUDGE_MAIN = "gymcp.mcp_servers.programs.judge_main"
JUDGE_MEMORY_MB = 1024
"""Memory that a judge program may use."""

Member = Callable[[str], str | None]
"""A function from the name of a wheel's member to its place in a folder, or to None, which leaves it out."""


def _no_files(wheel: Path) -> Mapping[str, bytes]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSuite:
    """A third party's suite whose worlds and graders are upstream's code."""

    name: str
    wheel: Wheel
    lock: Path
    """Lock file of the packages that upstream's code imports."""
    server: str
    """Dotted name of the program that serves the tools."""
    judge: str
    """Dotted name of the program that writes the tasks and answers for upstream's graders."""
    folder_revision: int
    """Raised with every change of what the installed folder holds."""
    code: PurePosixPath
    """Folder in a sandbox at which upstream's code is mounted."""
    for_server: Member
    """Selection of the members that a server may read."""
    for_judge: Member
    """Selection of the members that only the judge program may read."""
    extra_files: Callable[[Path], Mapping[str, bytes]] = _no_files
    """A function that makes further files for both folders from the wheel: names and contents."""
    check_tasks: Callable[[Json], None]
    """A function that raises IntegrityError for tasks that are not those of the pinned version."""


@cache_errors()
def install(upstream: UpstreamSuite, home: Path | None = None, *, sandbox: Sandbox | None = None) -> SuiteFiles:
    """The suite's files in gymcp's cache, as they were installed. A complete installation needs no network.

    Upstream's code runs once over the gold, for the tasks: in `sandbox`, else in bubblewrap. Raises SandboxUnavailable
    if that sandbox cannot be used, IntegrityError for files with another hash or tasks that are not those of the
    pinned version, UsageError if a file cannot be downloaded.
    """
    home = home or gymcp_home()
    files = _files(upstream, home)
    confined = choose_install_sandbox(upstream.name, "upstream's code runs once, for the tasks", sandbox, files)
    if not files.root.is_dir():
        fetch_wheel(upstream.wheel, home / "wheels")  # first: if it cannot be had, nothing else is installed
    install_packages(upstream.name, upstream.lock, home)
    verified_folder(upstream.name, files.root, functools.partial(_fill, upstream, home / "wheels"))
    if not files.tasks.is_file():
        tasks = run_once(judge_server(upstream, files), confined, "", "--tasks")
        upstream.check_tasks(json.loads(tasks))
        write_checked(files.tasks, tasks.encode())
    return files


def is_installed(upstream: UpstreamSuite, home: Path | None = None) -> bool:
    """True if nothing is left to fetch or to compute."""
    return _files(upstream, home or gymcp_home()).are_complete


def read_tasks(upstream: UpstreamSuite) -> Json:
    """The tasks as the judge program wrote them; installs the suite if it is not installed."""
    return _parse_tasks(upstream.name, install(upstream).tasks)


def suite_server(upstream: UpstreamSuite, files: SuiteFiles) -> ServerSpec:
    """The server of the suite's episodes."""
    mounts = files.mounts(files.server, upstream.code, LIBRARIES)
    path = [upstream.code, LIBRARIES]
    return native_server(upstream.name, upstream.server, mounts=mounts, python_path=path, start="fork")


def judge_server(upstream: UpstreamSuite, files: SuiteFiles) -> ServerSpec:
    """The judge program: no server of an episode, but started like one."""
    return native_server(
        f"{upstream.name}-judge",
        upstream.judge,
        modules=(upstream.server, JUDGE_MAIN),
        mounts=files.mounts(files.private, upstream.code, LIBRARIES),
        python_path=[upstream.code, LIBRARIES],
        limits=Limits(memory_mb=JUDGE_MEMORY_MB),
    )


def choose_install_sandbox(
    suite: str,
    what: str,
    sandbox: Sandbox | None,
    files: SuiteFiles | None = None,
    *,
    runs_unconfined: bool = True,
) -> Sandbox:
    """`sandbox`, else bubblewrap, for the one run of upstream's code that an installation needs.

    `runs_unconfined`: ``--sandbox none`` can run the code. Raises SandboxUnavailable if the sandbox cannot be used,
    unless the `files` are complete, so that it will not be needed.
    """
    chosen = sandbox or get_sandbox("bwrap")
    if files is not None and files.are_complete:
        return chosen
    try:
        chosen.check()
    except SandboxUnavailable as error:
        none = ", or --sandbox none to run it unconfined" if runs_unconfined else "; --sandbox none cannot run it"
        raise SandboxUnavailable(
            f"{suite}: install: {what}, and not without a sandbox: {error}; to choose: "
            f"gymcp suites install {suite} --sandbox docker{none}"
        ) from error
    return chosen


def _fill(upstream: UpstreamSuite, wheels: Path, folder: Path) -> None:
    wheel = fetch_wheel(upstream.wheel, wheels)
    unpack_wheel(wheel, folder / "server", upstream.for_server)
    unpack_wheel(wheel, folder / "private", upstream.for_judge)
    for name, content in upstream.extra_files(wheel).items():
        for part in ("server", "private"):
            write_atomically(folder / part / name, content)
    precompile(folder / "server")


def _files(upstream: UpstreamSuite, home: Path) -> SuiteFiles:
    return SuiteFiles(
        root=home / "suites" / upstream.name / f"{upstream.wheel.version}-{upstream.folder_revision}",
        fingerprint=_fingerprint(upstream),
        libraries=packages_folder(upstream.lock, home),
    )


@functools.cache
def _fingerprint(upstream: UpstreamSuite) -> str:
    content = upstream.wheel.sha256.encode() + upstream.lock.read_bytes()
    return fingerprint(content, upstream.server, upstream.judge, JUDGE_MAIN)


@functools.cache
def _parse_tasks(suite: str, path: Path) -> Json:
    return json.loads(read_checked(suite, path))
