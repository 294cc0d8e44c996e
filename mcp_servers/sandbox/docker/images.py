"""The images that servers run from: the base image, made without any registry, and those built from Dockerfiles."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gymcp.errors import ConfigError, SandboxUnavailable
from gymcp.mcp_servers.sandbox.docker.engine_api import USER_LABEL, EngineError, engine_info, request, stream
from gymcp.mcp_servers.sandbox.spec import Image
from gymcp.paths import gymcp_home
from gymcp.process_owner import environment_with_owner, staging_folder

SUITE = "bookworm"
"""Of Debian."""
PACKAGES = ("python3", "ca-certificates")
RECIPE = 1
"""Counted up when anything below that shapes the image changes."""
BASE = "gymcp-base"
BUILT = "gymcp-image"
_UNUSED = ("var/cache/apt", "var/lib/apt/lists", "var/log", "usr/share/doc", "usr/share/man", "usr/share/locale")
_CHUNK = 1 << 20
_STEP = re.compile(r"---> ([0-9a-f]{12,64})")
DOCKERFILE_LABEL = "gymcp.dockerfile"
HOME_LABEL = "gymcp.home"
"""Whose cache remembers the locks that may name the image."""

Say = Callable[[str], None]


def base_image() -> str:
    """The base image's name. The tag is a digest of how it is made, so a changed recipe is another image."""
    recipe = repr((RECIPE, SUITE, PACKAGES, platform.machine(), _UNUSED))
    return f"{BASE}:{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def image_name(image: Image) -> str:
    """What the engine knows it by. Raises ConfigError for a Dockerfile that is not there."""
    if image is None:
        return base_image()
    return _built_name(image.absolute()) if isinstance(image, Path) else image


@functools.cache  # a run keeps the image that it began with, whatever is edited meanwhile
def _built_name(dockerfile: Path) -> str:
    return name_of_build(context_digest(dockerfile))


def context_digest(dockerfile: Path) -> str:
    """sha256 of all that the engine is sent to build it. Raises ConfigError where it is not there."""
    return hashlib.sha256(_context(dockerfile)).hexdigest()


def name_of_build(context: str) -> str:
    """Of the image that is built from a context with this digest."""
    return f"{BUILT}:{context[:12]}"


def require(image: Image) -> None:
    """Raises SandboxUnavailable, saying what to run, where the engine does not have it."""
    if not exists(image_name(image)):
        raise SandboxUnavailable(missing(image))


def missing(image: Image) -> str:
    """What to tell the user."""
    match image:
        case None:
            return f"docker: no base image {base_image()}: make it (a minute, as root) with: gymcp sandbox build"
        case Path():
            return f"docker: the image of {image} is not built: make it with: gymcp sandbox build {image}"
        case _:
            return f"docker: no image '{image}': fetch it with: docker pull {image}"


def exists(name: str) -> bool:
    """Raises SandboxUnavailable where no engine can be reached."""
    return inspect(name) is not None


def inspect(name: str) -> dict[str, Any] | None:
    """The engine's account of an image; None where it has none of that name or id.

    Raises SandboxUnavailable where no engine can be reached.
    """
    engine_info()
    try:
        found: dict[str, Any] = request("GET", f"/images/{name}/json")
    except EngineError as error:
        if error.status == 404:
            return None
        raise
    return found


def pull(reference: str) -> None:
    """Fetches an image from its registry. Raises EngineError where that cannot be reached or does not have it."""
    engine_info()
    for _ in stream("/images/create", query={"fromImage": reference}, archive=()):
        pass


def build_dockerfile(dockerfile: Path, say: Say) -> str:
    """The name of the image that it describes, built with its folder as context. ``FROM gymcp-base`` is the base image.

    The whole folder is sent, whatever ``.dockerignore`` says. Raises ConfigError, and EngineError where a step fails,
    after which nothing of the steps before it is left.
    """
    name = image_name(dockerfile)
    engine_info()
    labels = {
        USER_LABEL: str(os.getuid()),
        HOME_LABEL: str(gymcp_home().absolute()),
        DOCKERFILE_LABEL: str(dockerfile.absolute()),
    }
    query: dict[str, str | int] = {"t": name, "dockerfile": dockerfile.name, "forcerm": 1, "labels": json.dumps(labels)}
    steps: list[str] = []
    try:
        for said in stream("/build", query=query, archive=iter([_context(dockerfile.absolute())])):
            if text := str(said.get("stream", "")).strip():
                steps += _STEP.findall(text)
                say(text)
    except EngineError:
        if steps and (last := inspect(steps[-1])) is not None and not last.get("RepoTags"):
            remove_image(steps[-1])  # and with it those that it is made of, as far as they have no name
        raise
    return name


def remove_image(name: str) -> bool:
    """False where a container or another image uses it; True, too, where it is gone. Raises EngineError."""
    try:
        request("DELETE", f"/images/{name}")
    except EngineError as error:
        if error.status not in (404, 409):
            raise
        return error.status == 404
    return True


def built_images() -> list[dict[str, Any]]:
    """The engine's account of what this user has built with this cache; empty where no engine answers."""
    labels = [f"{USER_LABEL}={os.getuid()}", f"{HOME_LABEL}={gymcp_home().absolute()}", DOCKERFILE_LABEL]
    with contextlib.suppress(EngineError, SandboxUnavailable):
        return list(request("GET", "/images/json", query={"filters": json.dumps({"label": labels})}, timeout_s=10.0))
    return []


def _context(dockerfile: Path) -> bytes:
    """A tar archive of the folder, the same for the same content."""
    if not dockerfile.is_file():
        raise ConfigError(f"docker: no Dockerfile at {dockerfile}")

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime = entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mode = 0o755 if entry.isdir() or entry.mode & stat.S_IXUSR else 0o644
        return entry

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(dockerfile.parent, arcname=".", filter=plain)  # in order of names
    return buffer.getvalue()


def build_base(say: Say, *, mirror: str | None = None) -> str:
    """The base image's name, made with debootstrap. Raises SandboxUnavailable where that cannot work here."""
    engine_info()
    if shutil.which("debootstrap") is None:
        raise SandboxUnavailable("sandbox build: debootstrap is missing: apt-get install debootstrap")
    if os.getuid() != 0:
        raise SandboxUnavailable(
            f"sandbox build: debootstrap needs root: sudo GYMCP_HOME={gymcp_home()} gymcp sandbox build"
        )
    with staging_folder(gymcp_home() / "images" / "base") as folder:
        _debootstrap(folder, mirror or _host_mirror(), say)
        _strip(folder)
        say("importing the image")
        name = base_image()
        repository, tag = name.split(":")
        changes = {"changes": f"LABEL {BASE}={tag}", "fromSrc": "-", "repo": repository, "tag": tag}
        for _ in stream("/images/create", query=changes, archive=_tar(folder)):
            pass
        request("POST", f"/images/{name}/tag", query={"repo": BASE, "tag": "latest"})  # for FROM gymcp-base
    return name


def _debootstrap(folder: Path, mirror: str | None, say: Say) -> None:
    command = [
        "debootstrap",
        "--variant=minbase",
        f"--include={','.join(PACKAGES)}",
        SUITE,
        str(folder),
        *([mirror] if mirror else []),
    ]
    said: list[str] = []
    with subprocess.Popen(
        command,
        env=environment_with_owner(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line.strip())
            say(said[-1].removeprefix("I: "))
    if process.returncode != 0:
        where = mirror or "its own mirror"
        raise SandboxUnavailable(f"sandbox build: debootstrap from {where} failed: {' / '.join(said[-3:])}")


def _host_mirror() -> str | None:
    """Where this machine's apt fetches the suite from; Debian's own where it does not."""
    command = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", f"Codename: {SUITE}"]
    if shutil.which(command[0]) is None:
        return None
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout.split()
    return found[0] if found else None


def _strip(root: Path) -> None:
    """Takes away what no server needs, and every set-id bit: who is inside stays who he is."""
    for name in _UNUSED:
        shutil.rmtree(root / name, ignore_errors=True)
    for path in root.rglob("*"):
        found = path.lstat()
        if stat.S_ISREG(found.st_mode) and found.st_mode & (stat.S_ISUID | stat.S_ISGID):
            path.chmod(found.st_mode & 0o777)


def _tar(folder: Path) -> Iterator[bytes]:
    command = ["tar", "-C", str(folder), "--numeric-owner", "--sort=name", "--exclude=./dev/*", "-c", "."]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while chunk := process.stdout.read(_CHUNK):
            yield chunk
    if process.returncode != 0:
        raise SandboxUnavailable(f"sandbox build: tar ended with status {process.returncode}")
