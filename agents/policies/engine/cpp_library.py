"""Compiles `slot_forward.cpp`, once per machine, into gymcp's cache folder, and checks its numbers there.

A library or the reason of a failure is kept under a name made from the source, the compiler's options, the version of
torch and the processor's abilities. Nothing here imports torch: the source needs none of its headers, and compiles in
two seconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from gymcp.atomic import write_atomically
from gymcp.paths import gymcp_home

FORWARD_VARIABLE = "GYMCP_ENGINE_FORWARD"
"""Environment variable that names the forward pass; unset or empty for the fastest that computes the model."""
FORWARD_PASSES = ("cpp", "torch", "transformers")
"""Names of the forward passes, the fastest first."""
SOURCE = Path(__file__).with_name("slot_forward.cpp")
OPTIONS = (
    *("-std=gnu++17", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno"),
    *("-fPIC", "-shared"),
)
BUILD_TIMEOUT_S = 120.0
"""Maximum seconds for the compiler, and again for the check; both take about two on an idle machine."""
log = logging.getLogger(__name__)
_CHECK = "gymcp.agents.policies.engine.cpp_check"


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Everything that decides which library is made."""

    folder: Path
    """Folder of libraries and failures."""
    source: bytes
    compiler: tuple[str, ...]
    """The compiler and its first arguments; empty if there is none."""
    sought: str = ""
    """Names of programs that were looked for."""
    timeout_s: float = BUILD_TIMEOUT_S

    @property
    def shared_object(self) -> Path:
        return self.folder / f"{self._key()}.so"

    @property
    def failure(self) -> Path:
        """File with the reason why this compiler made no library."""
        return self.folder / f"{self._key()}-{_digest(*_identify(self.compiler))}.failed"

    def _key(self) -> str:
        return _digest(self.source, *OPTIONS, _torch_version(), _read_processor())


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A library, or the reason why there is none."""

    path: Path | None
    detail: str
    """One line."""


def plan_build() -> Build:
    """The build of this machine: the compiler in $CXX, else the first in PATH."""
    named = os.environ.get("CXX", "").split()
    programs = named[:1] or ["g++", "clang++", "c++"]
    compiler = next((path for name in programs if (path := shutil.which(name))), None)
    return Build(
        folder=gymcp_home() / "engine",
        source=SOURCE.read_bytes(),
        compiler=(compiler, *named[1:]) if compiler else (),
        sought=", ".join(programs),
    )


def look_up(build: Build) -> Found | None:
    """The library of an earlier build or the reason why there is none; None if it can be built now."""
    try:
        if build.shared_object.is_file():
            return Found(path=build.shared_object, detail=f"compiled: {build.shared_object}")
        if not build.compiler:
            return Found(path=None, detail=f"no C++ compiler in PATH ({build.sought})")
        if build.failure.is_file():
            reason = build.failure.read_text(encoding="utf-8")
            return Found(path=None, detail=f"{reason}; to try again: rm {build.failure}")
    except OSError as error:
        return Found(path=None, detail=f"the cache {build.folder} cannot be read: {error.strerror}")
    return None


def find_library(build: Build) -> Found:
    """The library, built if it is missing. Other processes that ask at the same time wait for the one that builds."""
    if library := look_up(build):
        return library
    try:
        build.folder.mkdir(parents=True, exist_ok=True)
        with _hold_lock(build.shared_object.with_suffix(".lock"), 3 * build.timeout_s) as locked:
            if not locked:
                return Found(path=None, detail="another process has been compiling it for too long")
            return look_up(build) or _make(build)
    except OSError as error:
        return Found(path=None, detail=f"the cache {build.folder} cannot be written: {error.strerror}")


def _make(build: Build) -> Found:
    """Compile, check and keep the library, or keep the reason of the failure."""
    staged = build.shared_object.with_suffix(f".{os.getpid()}.so")
    source = staged.with_suffix(".cpp")
    log.info("compiling the engine's forward pass into %s", build.shared_object)
    for left in build.folder.glob(f"{build.shared_object.stem}.*.*"):  # by a process that was killed
        left.unlink()
    try:
        source.write_bytes(build.source)
        compiler = Path(build.compiler[0]).name
        failure = _run([*build.compiler, *OPTIONS, str(source), "-o", str(staged)], compiler, build.timeout_s)
        if not failure:
            failure = _run([sys.executable, "-m", _CHECK, str(staged)], "the check of its numbers", build.timeout_s)
        if not failure:
            staged.rename(build.shared_object)
    finally:
        for path in (source, staged):
            path.unlink(missing_ok=True)
    if failure:
        write_atomically(build.failure, failure.encode())
    library = look_up(build)
    assert library is not None
    return library


def _run(argv: Sequence[str], who: str, timeout_s: float) -> str:
    """Run a program to its end; the reason of its failure in one line, or nothing."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that the compiler's own processes can be ended with it
        )
    except OSError as error:
        return f"{who} cannot be run: {error.strerror}"
    with process:
        try:
            errors = process.communicate(timeout=timeout_s)[1].decode(errors="replace").split("\n")
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                return f"{who} has not ended within {timeout_s:g} s"
            raise
    if process.returncode == 0:
        return ""
    lines = [line.strip() for line in errors if line.strip()]
    line = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "")
    status = f"exit code {process.returncode}" if process.returncode > 0 else f"signal {-process.returncode}"
    return f"{who} failed: {line[:200] or status}"


@contextlib.contextmanager
def _hold_lock(path: Path, timeout_s: float) -> Iterator[bool]:
    """True if the lock is held; the kernel releases it when the process ends."""
    deadline = time.monotonic() + timeout_s
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    yield False
                    return
                time.sleep(0.05)
            else:
                yield True
                return


def _identify(compiler: tuple[str, ...]) -> tuple[str, ...]:
    """The compiler's own file and arguments: another version is another file."""
    if not compiler:
        return ()
    path = Path(compiler[0]).resolve()
    status = path.stat()
    return (str(path), str(status.st_size), str(status.st_mtime_ns), *compiler[1:])


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def _read_processor() -> str:
    """The machine's kind and what its processor can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
    except OSError:
        lines = []
    abilities = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {abilities}"


def _digest(*parts: str | bytes) -> str:
    joined = b"\0".join(part.encode() if isinstance(part, str) else part for part in parts)
    return hashlib.sha256(joined).hexdigest()[:16]
