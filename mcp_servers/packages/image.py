"""Servers in images: one that the engine has or can pull, or one built from a Dockerfile; run by their locked id.

An image is locked by its id and, where it came from a registry, its digest there. A Dockerfile is locked by the content
of its folder: what a build fetches is not part of it, and two builds of one folder have two ids.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gymcp.errors import ConfigError, EnvInfraError, IntegrityError, UsageError
from gymcp.mcp_servers.packages.commands import Wanted, image_reference, parse_command
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


def resolve(wanted: Wanted) -> LockedServer:
    """What to lock, still without tools. Raises ConfigError where there is no such image, and none can be made."""
    who = f"server '{wanted.name}': resolve"
    if wanted.dockerfile is not None:
        files = {CONTEXT: f"sha256:{context_digest(wanted.dockerfile)}"}
        version = files[CONTEXT].removeprefix("sha256:")[:12]
        _build(who, wanted.dockerfile)
    else:
        version = wanted.version or "latest"
        found = _fetched(who, image_reference(wanted, version))
        files = {ID: found["Id"]}
        if digests := _digests(found, wanted.package):
            files[DIGEST] = digests[0]
    return LockedServer(
        name=wanted.name,
        runtime="image",
        package=wanted.package,
        version=version,
        command=wanted.command(version),
        env=wanted.env,
        packages=(LockedPackage(name=wanted.package, version=version, files=files),),
        base=wanted.base,
    )


@contextlib.contextmanager
def removed_if_refused(wanted: Wanted) -> Iterator[None]:
    """Where what is done inside ends with an error, an image that was built or pulled for it is removed again."""
    if wanted.dockerfile is not None:
        name = name_of_build(context_digest(wanted.dockerfile))
    else:
        name = image_reference(wanted, wanted.version or "latest")
    was_there = exists(name)
    try:
        yield
    except BaseException:
        if not was_there:
            with contextlib.suppress(EnvInfraError):  # what was refused is told, not what came after
                remove_image(name)
        raise


def is_present(server: LockedServer) -> bool:
    """True where the engine has it as it is locked. Raises SandboxUnavailable where no engine can be reached."""
    return _locked(server) is not None


def ensure_present(server: LockedServer) -> Mapping[str, Any]:
    """The engine's account of the locked image, which is built or pulled where it is not there yet.

    Raises UsageError where it cannot be had, IntegrityError where there is only another than the locked one.
    """
    if (there := _locked(server)) is not None:
        return there
    who = f"server '{server.name}': install"
    wanted = _wanted(server)
    if wanted.dockerfile is not None:
        _refuse_other_context(server, wanted.dockerfile)
        return _build(who, wanted.dockerfile)
    digest = _files(server).get(DIGEST)
    found = _fetched(who, f"{server.package}@{digest}" if digest else image_reference(wanted, server.version))
    if not is_locked(server, found):
        raise _drift(server, found)
    return found


def verify(server: LockedServer) -> None:
    """That what the name stands for now is what was locked. Raises IntegrityError, naming both."""
    wanted = _wanted(server)
    if wanted.dockerfile is not None:
        _refuse_other_context(server, wanted.dockerfile)
    elif (named := inspect(image_reference(wanted, server.version))) is not None and not is_locked(server, named):
        raise _drift(server, named)
    ensure_present(server)


def launch_words(server: LockedServer, args: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """(image, argv): as ``docker run IMAGE ARGS`` starts it; an empty argv is the image's own command."""
    found = ensure_present(server)
    image = built_name(server) or found["Id"]
    if not args:
        return image, ()
    return image, (*(found["Config"].get("Entrypoint") or ()), *args)


def _wanted(server: LockedServer) -> Wanted:
    return parse_command(server.command, name=server.name, base=server.base)


def _files(server: LockedServer) -> Mapping[str, str]:
    return server.packages[0].files if server.packages else {}


def built_name(server: LockedServer) -> str | None:
    """Of the image that was locked with its Dockerfile; None for any other server."""
    context = _files(server).get(CONTEXT) if server.runtime == "image" else None
    return None if context is None else name_of_build(context.removeprefix("sha256:"))


def _locked(server: LockedServer) -> dict[str, Any] | None:
    """By what nobody can move to another image: its id, its digest; of a Dockerfile the name made from its content."""
    if (name := built_name(server)) is not None:
        return inspect(name)
    files = _files(server)
    names = [files[ID], *([f"{server.package}@{files[DIGEST]}"] if DIGEST in files else [])]
    return next((found for name in names if (found := inspect(name)) is not None), None)


def is_locked(server: LockedServer, found: Mapping[str, Any]) -> bool:
    """Engines differ in what an id is, registries do not in what a digest is: either will do."""
    files = _files(server)
    return found["Id"] == files[ID] or files.get(DIGEST) in _digests(found, server.package)


def _digests(found: Mapping[str, Any], package: str) -> list[str]:
    pairs = (digest.rpartition("@") for digest in found.get("RepoDigests") or ())
    return [digest for name, _, digest in pairs if name == package]


def _fetched(who: str, reference: str) -> dict[str, Any]:
    if (found := inspect(reference)) is None:
        try:
            pull(reference)
        except EnvInfraError as error:
            raise ConfigError(
                f"{who}: no image '{reference}' on this machine, and it cannot be pulled: {error}; build it or load it "
                "(docker load), or name one that a registry has"
            ) from error
        if (found := inspect(reference)) is None:
            raise UsageError(f"{who}: image '{reference}' was pulled, but the engine does not have it; pull it again")
    return found


def _build(who: str, dockerfile: Path) -> dict[str, Any]:
    said: list[str] = []
    try:
        name = build_dockerfile(dockerfile, said.append)
    except EnvInfraError as error:
        last = [text for text in said if not text.startswith(_NOISE)][-1:]
        after = f"; its last words: {last[0]}" if last else ""
        raise ConfigError(f"{who}: Dockerfile '{dockerfile}' cannot be built: {error}{after}") from error
    if (found := inspect(name)) is None:
        raise UsageError(f"{who}: image '{name}' was built, but the engine does not have it; run it again")
    return found


def _refuse_other_context(server: LockedServer, dockerfile: Path) -> None:
    now, locked = f"sha256:{context_digest(dockerfile)}", _files(server)[CONTEXT]
    if now != locked:
        raise IntegrityError(
            f"server '{server.name}': the folder of '{dockerfile}' is now {now}, locked is {locked}; to accept that "
            f"run: gymcp servers lock {server.name}"
        )


def _drift(server: LockedServer, found: Mapping[str, Any]) -> IntegrityError:
    reference = image_reference(_wanted(server), server.version)
    return IntegrityError(
        f"server '{server.name}': image '{reference}' is now {found['Id']}, locked is {_files(server)[ID]}; to accept "
        f"that run: gymcp servers lock {server.name}"
    )
