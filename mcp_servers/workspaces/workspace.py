"""The folder a server works in: made from a seed for one episode, saved for a snapshot, gone when the episode ends."""

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
from gymcp.mcp_servers.workspaces.overlay import OverlayNamespace, can_be_mounted, overlay_namespace, why_no_overlay
from gymcp.scratch import remove_tree, scratch_folder

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    folder: Path
    """What is mounted at /workspace; where there is an overlay, it can be seen through `entry` only."""
    upper_folder: Path
    """On the host: an overlay's upper layer, else `folder`."""
    seed: Path
    entry: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedWorkspace:
    """What a workspace held, on its own: it outlives the workspace, until `discard`."""

    folder: Path
    seed: Path
    is_layer: bool
    """True where `folder` is an overlay's upper layer, to be read over the seed."""

    def discard(self) -> None:
        remove_tree(self.folder)


@contextlib.asynccontextmanager
async def open_workspace(seed: Path, sandbox: Sandbox, saved: SavedWorkspace | None = None) -> AsyncIterator[Workspace]:
    """A workspace with what the seed holds, or what was saved; nothing that is done in it reaches either.

    An overlay where the sandbox and the kernel allow one, else a copy. Raises EnvInfraError.
    """
    namespace = _overlay_for(sandbox, seed) if saved is None or saved.is_layer else None
    if saved is not None and saved.is_layer and namespace is None:
        raise EnvInfraError("workspace: it was saved as an overlay's layer, and there are no overlays here")
    folder = scratch_folder() / f"world-{next(_numbers)}"
    try:
        if namespace is None:
            await _copied(saved.folder if saved else seed, folder, sandbox)
            yield Workspace(folder=folder, upper_folder=folder, seed=seed)
            return
        upper, work, merged = folder / "upper", folder / "work", folder / "merged"
        for path in (folder, work, merged):
            path.mkdir(mode=0o700)
        if needs_new_owner(seed):  # an earlier version's, or made where servers had another id
            await asyncio.to_thread(give_to_servers, seed)
        if saved is None:
            _make_like(seed, upper)
        else:
            await _copied(saved.folder, upper, sandbox)
        namespace.mount(seed, upper, work, merged)
        try:
            yield Workspace(folder=merged, upper_folder=upper, seed=seed, entry=namespace.entry)
        finally:
            namespace.unmount(merged)
            with contextlib.suppress(OSError):  # the kernel leaves it without any mode, which only root can walk
                (work / "work").rmdir()
    finally:
        await asyncio.shield(asyncio.to_thread(remove_tree, folder))


async def save_workspace(workspace: Workspace) -> SavedWorkspace:
    """A copy of what has been written: of the upper layer alone where there is an overlay. Raises SnapshotError."""
    folder = scratch_folder() / f"saved-{next(_numbers)}"
    try:
        await _copied(workspace.upper_folder, folder, None)
    except EnvInfraError as error:
        await asyncio.to_thread(remove_tree, folder)
        raise SnapshotError(str(error)) from error
    return SavedWorkspace(folder=folder, seed=workspace.seed, is_layer=workspace.folder != workspace.upper_folder)


def describe_workspaces() -> str:
    """How workspaces are made on this machine, for `gymcp doctor`."""
    reason = why_no_overlay()
    if reason:
        return f"copied from their seeds; overlays would be faster, but: {reason}"
    return "overlays in a user namespace over read-only seeds"


def _make_like(folder: Path, made: Path) -> None:
    """The upper folder's mode is what the merged one shows."""
    made.mkdir()
    give_to_servers(made)
    made.chmod(folder.stat().st_mode & 0o7777)


async def _copied(source: Path, target: Path, sandbox: Sandbox | None) -> None:
    """`sandbox`: whose servers are to own the copy, if any."""

    def copy() -> None:
        copy_tree(source, target)
        _give(target, sandbox)

    try:
        await asyncio.to_thread(copy)
    except OSError as error:
        raise EnvInfraError(f"workspace: cannot be copied: {error}") from error


def _give(folder: Path, sandbox: Sandbox | None) -> None:
    if sandbox is not None and sandbox.name == "bwrap":  # containers see to it themselves
        give_to_servers(folder)


def _overlay_for(sandbox: Sandbox, seed: Path) -> OverlayNamespace | None:
    return overlay_namespace() if sandbox.name == "bwrap" and can_be_mounted(seed, scratch_folder()) else None
