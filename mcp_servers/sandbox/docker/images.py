"""Images that servers run from: the base image, made without any registry, and the images built from Dockerfiles."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
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
from gymcp.mcp_servers.sandbox.docker.engine_api import (
    BUILD_TIMEOUT_S,
    USER_LABEL,
    EngineError,
    check_progress,
    engine_info,
    open_engine,
    parse_progress,
)
from gymcp.mcp_servers.sandbox.spec import Image
from gymcp.paths import gymcp_home
from gymcp.process_owner import environment_with_owner, staging_folder

DEBIAN_SUITE = "bookworm"
PACKAGES = ("python3", "ca-certificates")
RECIPE_VERSION = 1
"""Version of the base image's recipe; raise it when code below that shapes the image changes."""
BASE_REPOSITORY = "gymcp-base"
BUILT_REPOSITORY = "gymcp-image"
_STRIPPED_FOLDERS = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
)
_CHUNK_BYTES = 1 << 20
_STEP = re.compile(r"---> ([0-9a-f]{12,64})")
DOCKERFILE_LABEL = "gymcp.dockerfile"
HOME_LABEL = "gymcp.home"
"""Label with the cache folder (``GYMCP_HOME``) that records the locks that may name the image."""

Say = Callable[[str], None]


def base_image() -> str:
    """Name of the base image. The tag is a digest of the recipe, so a changed recipe is another image."""
    recipe = repr((RECIPE_VERSION, DEBIAN_SUITE, PACKAGES, platform.machine(), _STRIPPED_FOLDERS))
    return f"{BASE_REPOSITORY}:{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def image_name(image: Image) -> str:
    """The engine's name of an image. Raises ConfigError for a Dockerfile that does not exist."""
    if image is None:
        return base_image()
    return _dockerfile_image_name(image.absolute()) if isinstance(image, Path) else image


@functools.cache  # a run keeps the image that it began with, even if files of its build are edited meanwhile
def _dockerfile_image_name(dockerfile: Path) -> str:
    return name_of_build(context_digest(dockerfile))


def context_digest(dockerfile: Path) -> str:
    """sha256 of the archive that the engine gets to build the image. Raises ConfigError if there is no Dockerfile."""
    return hashlib.sha256(_context(dockerfile)).hexdigest()


def name_of_build(context: str) -> str:
    """Name of the image that is built from a context with this digest."""
    return f"{BUILT_REPOSITORY}:{context[:12]}"


def require(image: Image) -> None:
    """Raise SandboxUnavailable, with the command to run, if the engine does not have the image."""
    if not exists(image_name(image)):
        raise SandboxUnavailable(missing_message(image))


def missing_message(image: Image) -> str:
    """Error message for an image that the engine does not have, with the command that gets it."""
    match image:
        case None:
            return f"docker: no base image {base_image()}: make it (a minute, as root) with: gymcp sandbox build"
        case Path():
            return f"docker: the image of {image} is not built: make it with: gymcp sandbox build {image}"
        case _:
            return f"docker: no image '{image}': fetch it with: docker pull {image}"


def exists(name: str) -> bool:
    """True if the engine has the image. Raises SandboxUnavailable if no engine can be reached."""
    return inspect(name) is not None


def inspect(name: str) -> dict[str, Any] | None:
    """The engine's description of an image; None if it has none of that name or id.

    Raises SandboxUnavailable if no engine can be reached.
    """
    engine_info()
    try:
        with open_engine() as client:
            image: dict[str, Any] = client.inspect_image(name)
    except EngineError as error:
        if error.status == 404:
            return None
        raise
    return image


def pull(reference: str) -> None:
    """Pull an image from its registry. Raises EngineError if the registry cannot be reached or lacks the image."""
    engine_info()
    with open_engine(BUILD_TIMEOUT_S) as client:
        for _ in check_progress(client.pull(reference, stream=True, decode=True)):
            pass


def build_dockerfile(dockerfile: Path, say: Say) -> str:
    """Build the image of a Dockerfile and return its name. ``FROM gymcp-base`` is the base image.

    The context is the Dockerfile's whole folder, whatever ``.dockerignore`` says. Raises ConfigError, and EngineError
    if a step fails; then the images of the steps before it are removed.
    """
    name = image_name(dockerfile)
    engine_info()
    labels = {
        USER_LABEL: str(os.getuid()),
        HOME_LABEL: str(gymcp_home().absolute()),
        DOCKERFILE_LABEL: str(dockerfile.absolute()),
    }
    steps: list[str] = []
    try:
        for message in _build(dockerfile.absolute(), name, labels):
            if text := str(message.get("stream", "")).strip():
                steps += _STEP.findall(text)
                say(text)
    except EngineError:
        if steps and (last := inspect(steps[-1])) is not None and not last.get("RepoTags"):
            remove_image(steps[-1])  # the engine also removes its parents that have no name
        raise
    return name


def _build(dockerfile: Path, name: str, labels: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The engine's progress messages. Raises EngineError if a step fails."""
    context = io.BytesIO(_context(dockerfile))
    options = {"tag": name, "dockerfile": dockerfile.name, "labels": labels, "rm": True, "forcerm": True}
    with open_engine(BUILD_TIMEOUT_S) as client:
        yield from check_progress(client.build(fileobj=context, custom_context=True, decode=True, **options))


def remove_image(name: str) -> bool:
    """Remove an image; True if it is gone now, False if a container or another image uses it. Raises EngineError."""
    try:
        with open_engine() as client:
            client.remove_image(name)
    except EngineError as error:
        if error.status not in (404, 409):
            raise
        return error.status == 404
    return True


def list_built_images() -> list[dict[str, Any]]:
    """The engine's descriptions of the images that this user has built with this cache; empty if no engine answers."""
    labels = [f"{USER_LABEL}={os.getuid()}", f"{HOME_LABEL}={gymcp_home().absolute()}", DOCKERFILE_LABEL]
    with contextlib.suppress(EngineError, SandboxUnavailable), open_engine(10.0) as client:
        return list(client.images(filters={"label": labels}))
    return []


def _context(dockerfile: Path) -> bytes:
    """Tar archive of the Dockerfile's folder; the same content gives the same bytes."""
    if not dockerfile.is_file():
        raise ConfigError(f"docker: no Dockerfile at {dockerfile}")

    def normalize(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime = entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mode = 0o755 if entry.isdir() or entry.mode & stat.S_IXUSR else 0o644
        return entry

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(dockerfile.parent, arcname=".", filter=normalize)  # in order of names
    return buffer.getvalue()


def build_base(say: Say, *, mirror: str | None = None) -> str:
    """Build the base image with debootstrap and return its name. Raises SandboxUnavailable if that cannot work here."""
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
        label = f"LABEL {BASE_REPOSITORY}={tag}"
        with open_engine(BUILD_TIMEOUT_S) as client:
            text = client.import_image(_tar(folder), repository, tag, changes=[label], stream_src=True)
            list(check_progress(parse_progress(text)))
            client.tag(name, BASE_REPOSITORY, "latest")  # for FROM gymcp-base
    return name


def _debootstrap(folder: Path, mirror: str | None, say: Say) -> None:
    command = [
        "debootstrap",
        "--variant=minbase",
        f"--include={','.join(PACKAGES)}",
        DEBIAN_SUITE,
        str(folder),
        *([mirror] if mirror else []),
    ]
    lines: list[str] = []
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
            lines.append(line.strip())
            say(lines[-1].removeprefix("I: "))
    if process.returncode != 0:
        source = mirror or "its own mirror"
        raise SandboxUnavailable(f"sandbox build: debootstrap from {source} failed: {' / '.join(lines[-3:])}")


def _host_mirror() -> str | None:
    """Mirror from which this machine's apt fetches the suite; None if apt does not fetch it."""
    command = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", f"Codename: {DEBIAN_SUITE}"]
    if shutil.which(command[0]) is None:
        return None
    mirrors = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout.split()
    return mirrors[0] if mirrors else None


def _strip(root: Path) -> None:
    """Remove files that no server needs, and every set-id bit, so that no server can change its user."""
    for name in _STRIPPED_FOLDERS:
        shutil.rmtree(root / name, ignore_errors=True)
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
            path.chmod(mode & 0o777)


def _tar(folder: Path) -> Iterator[bytes]:
    command = ["tar", "-C", str(folder), "--numeric-owner", "--sort=name", "--exclude=./dev/*", "-c", "."]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while chunk := process.stdout.read(_CHUNK_BYTES):
            yield chunk
    if process.returncode != 0:
        raise SandboxUnavailable(f"sandbox build: tar ended with status {process.returncode}")
