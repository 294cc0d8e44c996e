"""The folder that a server works in: made from a seed for one episode, saved for a snapshot, removed at the end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from gymcp.errors import EnvInfraError, SnapshotError
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.sandbox.users.ownership import give_to_servers, needs_new_owner
from gymcp.mcp_servers.workspaces.copying import copy_tree
from gymcp.mcp_servers.workspaces.overlay import OverlayNamespace, is_mountable, overlay_namespace, why_no_overlay
from gymcp.scratch import remove_tree, scratch_folder

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """The workspace of one episode, an overlay over the seed or a copy of it."""

    folder: Path
    """Folder mounted at /workspace; an overlay is visible only to commands run through `entry`."""
    upper_folder: Path
    """Folder on the host in which writes appear: an overlay's upper layer, else `folder`."""
    seed: Path
    entry: tuple[str, ...] = ()
    """Host command that enters the namespaces of the overlay; empty for a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedWorkspace:
    """A copy of a workspace's content, which outlives the workspace, until `discard`."""

    folder: Path
    seed: Path
    is_layer: bool
    """True if `folder` is an overlay's upper layer, to be mounted over the seed."""

    def discard(self) -> None:
        remove_tree(self.folder)


@contextlib.asynccontextmanager
async def open_workspace(seed: Path, sandbox: Sandbox, saved: SavedWorkspace | None = None) -> AsyncIterator[Workspace]:
    """A workspace with the content of the seed, or the saved content; changes in the workspace reach neither.

    It is an overlay if the sandbox and the kernel allow one, else a copy. Raises EnvInfraError.
    """
    namespace = _overlay_for(sandbox, seed) if saved is None or saved.is_layer else None
    if saved is not None and saved.is_layer and namespace is None:
        raise EnvInfraError("workspace: it was saved as an overlay's layer, and there are no overlays here")
    folder = scratch_folder() / f"world-{next(_numbers)}"
    try:
        if namespace is None:
            await _copy(saved.folder if saved else seed, folder, sandbox)
            yield Workspace(folder=folder, upper_folder=folder, seed=seed)
            return
        upper, work, merged = folder / "upper", folder / "work", folder / "merged"
        for path in (folder, work, merged):
            path.mkdir(mode=0o700)
        if needs_new_owner(seed):  # made by an earlier version, or while servers had another id
            await asyncio.to_thread(give_to_servers, seed)
        if saved is None:
            _make_upper_folder(seed, upper)
        else:
            await _copy(saved.folder, upper, sandbox)
        namespace.mount(seed, upper, work, merged)
        try:
            yield Workspace(folder=merged, upper_folder=upper, seed=seed, entry=namespace.entry)
        finally:
            namespace.unmount(merged)
            with contextlib.suppress(OSError):  # the kernel leaves it with mode 000, and only root can walk that
                (work / "work").rmdir()
    finally:
        await asyncio.shield(asyncio.to_thread(remove_tree, folder))


async def save_workspace(workspace: Workspace) -> SavedWorkspace:
    """A copy of the workspace, of the upper layer only if it is an overlay. Raises SnapshotError."""
    folder = scratch_folder() / f"saved-{next(_numbers)}"
    try:
        await _copy(workspace.upper_folder, folder, None)
    except EnvInfraError as error:
        await asyncio.to_thread(remove_tree, folder)
        raise SnapshotError(str(error)) from error
    return SavedWorkspace(folder=folder, seed=workspace.seed, is_layer=workspace.folder != workspace.upper_folder)


def describe_workspaces() -> str:
    """Sentence for `gymcp doctor` about the kind of workspaces on this machine."""
    reason = why_no_overlay()
    if reason:
        return f"copied from their seeds; overlays would be faster, but: {reason}"
    return "overlays in a user namespace over read-only seeds"


def _make_upper_folder(seed: Path, upper: Path) -> None:
    """Make the upper folder with the mode of the seed, because the overlay has the mode of its upper folder."""
    upper.mkdir()
    give_to_servers(upper)
    upper.chmod(seed.stat().st_mode & 0o7777)


async def _copy(source: Path, target: Path, sandbox: Sandbox | None) -> None:
    """Copy a folder; the copy belongs to the servers of `sandbox`, if given. Raises EnvInfraError."""

    def copy() -> None:
        copy_tree(source, target)
        _give(target, sandbox)

    try:
        await asyncio.to_thread(copy)
    except OSError as error:
        raise EnvInfraError(f"workspace: cannot be copied: {error}") from error


def _give(folder: Path, sandbox: Sandbox | None) -> None:
    if sandbox is not None and sandbox.has_server_user:  # containers change the owner themselves
        give_to_servers(folder)


def _overlay_for(sandbox: Sandbox, seed: Path) -> OverlayNamespace | None:
    return overlay_namespace() if sandbox.mounts_overlays and is_mountable(seed, scratch_folder()) else None
