"""Things that episodes may leave behind: processes, sockets, mounts, cgroups, folders, containers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gymcp.mcp_servers.cleanup import cgroup_mountpoints
from gymcp.mcp_servers.sandbox.docker.engine_api import OWNER_LABEL, find_containers
from gymcp.mcp_servers.sandbox.proctree import find_by_environment
from gymcp.process_owner import OWNER_VARIABLE, owner
from gymcp.scratch import runtime_folder, scratch_folder


def count_resources(sandbox: str = "bwrap") -> dict[str, int]:
    """Number of resources of each kind that this process holds, while no episode runs.

    For Docker only folders: its pool of containers lives on for a while, and ends with the process.
    """
    folders = len(list(scratch_folder().iterdir()))
    if sandbox == "docker":
        return {"folders": folders}
    ours = find_by_environment(OWNER_VARIABLE, owner())  # some live as long as the harness, such as its mounter
    descriptors = _list_descriptors()
    return {
        "processes": len(ours),
        "descriptors": len(descriptors),
        "sockets": sum(target.startswith("socket:") for target in descriptors),
        "mounts": sum(len(mounts(Path(f"/proc/{pid}/mountinfo").read_text())) for pid in ("self", *ours)),
        "cgroups": len(_find_cgroups(owner())),
        "folders": folders,
    }


def how_many_more(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Number of resources of each kind that were not there before."""
    return {name: max(0, after[name] - count) for name, count in before.items()}


def find_marked(owner_tag: str, sandbox: str) -> list[str]:
    """Containers, processes, folders and cgroups with the mark of an owner."""
    folder = runtime_folder() / owner_tag
    containers = find_containers(f"{OWNER_LABEL}={owner_tag}") if sandbox == "docker" else []
    return [
        *(f"container {row['Id']}" for row in containers),
        *(f"process {pid}" for pid in find_by_environment(OWNER_VARIABLE, owner_tag)),
        *(f"folder {folder}" for _ in range(folder.exists())),
        *(f"cgroup {path}" for path in _find_cgroups(owner_tag)),
    ]


def mounts(mountinfo: str) -> list[str]:
    """Mount points of this machine, without those that come and go with the containers of other programs."""
    points = [line.split()[4] for line in mountinfo.splitlines()]
    return [point for point in points if not {"docker", "containers", "containerd"} & set(Path(point).parts)]


def _list_descriptors() -> list[str]:
    """Targets of the open descriptors of this process, without the one of the listing itself."""
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))  # noqa: PTH115
        except OSError:
            continue
    return found


def _find_cgroups(owner_tag: str) -> list[Path]:
    return [
        Path(folder, child)
        for mountpoint in cgroup_mountpoints()
        for folder, children, _ in os.walk(mountpoint)
        for child in children
        if child.startswith(f"gymcp-{owner_tag}-") and not child.endswith("-harness")
    ]
