"""Servers in images: images that the engine has or can pull, or that are built from a Dockerfile.

An image is locked by its id and, if it came from a registry, by its digest there; it is run by that id. A Dockerfile is
locked by the content of its folder. Files that the build downloads are not part of that content, and two builds of the
same folder have different ids.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gymcp.errors import ConfigError, EnvInfraError, IntegrityError, UsageError
from gymcp.mcp_servers.packages.commands import parse_command
from gymcp.mcp_servers.packages.install_request import InstallRequest, image_reference
from gymcp.mcp_servers.packages.lockfile import LockedPackage, LockedServer
from gymcp.mcp_servers.sandbox.docker.images import (
    build_dockerfile,
    context_digest,
    exists,
    inspect,
    name_of_build,
    pull,
    remove_image,
)

ID, DIGEST, CONTEXT = "id", "digest", "context"
_NOISE = ("Step ", "--->", "Removing intermediate container")


def resolve(request: InstallRequest) -> LockedServer:
    """Lock entry without tools. Raises ConfigError if the image does not exist and cannot be pulled or built."""
    who = f"server '{request.name}': resolve"
    if request.dockerfile is not None:
        files = {CONTEXT: f"sha256:{context_digest(request.dockerfile)}"}
        version = files[CONTEXT].removeprefix("sha256:")[:12]
        _build(who, request.dockerfile)
    else:
        version = request.version or "latest"
        image = _inspect_or_pull(who, image_reference(request, version))
        files = {ID: image["Id"]}
        if digests := _digests(image, request.package):
            files[DIGEST] = digests[0]
    return LockedServer(
        name=request.name,
        runtime="image",
        package=request.package,
        version=version,
        command=request.command(version),
        env=request.env,
        packages=(LockedPackage(name=request.package, version=version, files=files),),
        base=request.base,
    )


@contextlib.contextmanager
def remove_if_refused(request: InstallRequest) -> Iterator[None]:
    """If the body raises, remove the image again, provided that it was built or pulled in the meantime."""
    if request.dockerfile is not None:
        name = name_of_build(context_digest(request.dockerfile))
    else:
        name = image_reference(request, request.version or "latest")
    was_there = exists(name)
    try:
        yield
    except BaseException:
        if not was_there:
            with contextlib.suppress(EnvInfraError):  # the refusal is the error to report, not the removal
                remove_image(name)
        raise


def is_present(server: LockedServer) -> bool:
    """True if the engine has the locked image. Raises SandboxUnavailable if no engine can be reached."""
    return _inspect_locked(server) is not None


def ensure_present(server: LockedServer) -> Mapping[str, Any]:
    """The engine's description of the locked image, which is built or pulled if it is missing.

    Raises UsageError if it cannot be obtained, IntegrityError if only another image than the locked one is available.
    """
    if (image := _inspect_locked(server)) is not None:
        return image
    who = f"server '{server.name}': install"
    request = _request_of(server)
    if request.dockerfile is not None:
        _refuse_other_context(server, request.dockerfile)
        return _build(who, request.dockerfile)
    digest = _files(server).get(DIGEST)
    image = _inspect_or_pull(who, f"{server.package}@{digest}" if digest else image_reference(request, server.version))
    if not is_locked(server, image):
        raise _drift(server, image)
    return image


def verify(server: LockedServer) -> None:
    """Check that the name still stands for the locked image. Raises IntegrityError, naming both images."""
    request = _request_of(server)
    if request.dockerfile is not None:
        _refuse_other_context(server, request.dockerfile)
    elif (named := inspect(image_reference(request, server.version))) is not None and not is_locked(server, named):
        raise _drift(server, named)
    ensure_present(server)


def launch_words(server: LockedServer, args: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """(image, argv) with which ``docker run IMAGE ARGS`` starts it. An empty argv is the image's own command."""
    image = ensure_present(server)
    name = build_tag(server) or image["Id"]
    if not args:
        return name, ()
    return name, (*(image["Config"].get("Entrypoint") or ()), *args)


def _request_of(server: LockedServer) -> InstallRequest:
    return parse_command(server.command, name=server.name, base=server.base)


def _files(server: LockedServer) -> Mapping[str, str]:
    return server.packages[0].files if server.packages else {}


def build_tag(server: LockedServer) -> str | None:
    """Tag of an image that was built from a Dockerfile; None for any other server."""
    context = _files(server).get(CONTEXT) if server.runtime == "image" else None
    return None if context is None else name_of_build(context.removeprefix("sha256:"))


def _inspect_locked(server: LockedServer) -> dict[str, Any] | None:
    """The engine's description of the locked image; None if the engine does not have it.

    The image is looked up by names that cannot be moved to another image: its id, its digest, or for a Dockerfile the
    tag that is made from its content.
    """
    if (name := build_tag(server)) is not None:
        return inspect(name)
    files = _files(server)
    names = [files[ID], *([f"{server.package}@{files[DIGEST]}"] if DIGEST in files else [])]
    return next((image for name in names if (image := inspect(name)) is not None), None)


def is_locked(server: LockedServer, image: Mapping[str, Any]) -> bool:
    """True if the image has the locked id or the locked digest.

    One of them is enough: engines differ in how they compute an id, registries agree on digests.
    """
    files = _files(server)
    return image["Id"] == files[ID] or files.get(DIGEST) in _digests(image, server.package)


def _digests(image: Mapping[str, Any], package: str) -> list[str]:
    pairs = (digest.rpartition("@") for digest in image.get("RepoDigests") or ())
    return [digest for name, _, digest in pairs if name == package]


def _inspect_or_pull(who: str, reference: str) -> dict[str, Any]:
    if (image := inspect(reference)) is None:
        try:
            pull(reference)
        except EnvInfraError as error:
            raise ConfigError(
                f"{who}: no image '{reference}' on this machine, and it cannot be pulled: {error}; build it or load it "
                "(docker load), or name one that a registry has"
            ) from error
        if (image := inspect(reference)) is None:
            raise UsageError(f"{who}: image '{reference}' was pulled, but the engine does not have it; pull it again")
    return image


def _build(who: str, dockerfile: Path) -> dict[str, Any]:
    output: list[str] = []
    try:
        name = build_dockerfile(dockerfile, output.append)
    except EnvInfraError as error:
        last = [text for text in output if not text.startswith(_NOISE)][-1:]
        after = f"; its last words: {last[0]}" if last else ""
        raise ConfigError(f"{who}: Dockerfile '{dockerfile}' cannot be built: {error}{after}") from error
    if (image := inspect(name)) is None:
        raise UsageError(f"{who}: image '{name}' was built, but the engine does not have it; run it again")
    return image


def _refuse_other_context(server: LockedServer, dockerfile: Path) -> None:
    now, locked = f"sha256:{context_digest(dockerfile)}", _files(server)[CONTEXT]
    if now != locked:
        raise IntegrityError(
            f"server '{server.name}': the folder of '{dockerfile}' is now {now}, locked is {locked}; to accept that "
            f"run: {server.lock_command}"
        )


def _drift(server: LockedServer, image: Mapping[str, Any]) -> IntegrityError:
    reference = image_reference(_request_of(server), server.version)
    return IntegrityError(
        f"server '{server.name}': image '{reference}' is now {image['Id']}, locked is {_files(server)[ID]}; to accept "
        f"that run: {server.lock_command}"
    )
