"""A container for one server: described to the engine, made with the server already running, looked at."""

from __future__ import annotations

import functools
import os
import platform
import socket
import stat
import uuid
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from gymcp.errors import ConfigError, EnvInfraError, SandboxUnavailable
from gymcp.mcp_servers.sandbox import seccomp
from gymcp.mcp_servers.sandbox.bubblewrap import ENVIRONMENT, WORKSPACE
from gymcp.mcp_servers.sandbox.cgroup import Cgroup, find_hierarchy
from gymcp.mcp_servers.sandbox.docker.engine_api import (
    OWNER_LABEL,
    PIDS_LABEL,
    USER_LABEL,
    EngineError,
    attach,
    remove,
    request,
)
from gymcp.mcp_servers.sandbox.docker.images import image_name, missing
from gymcp.mcp_servers.sandbox.rootfs import NOBODY
from gymcp.mcp_servers.sandbox.spec import Launch, Limits, Mount
from gymcp.process_owner import owner, pid_namespace

RUN_LABEL = "gymcp.run"
_RUN = uuid.uuid4().hex
_MEGABYTE = 1_000_000
_CPU_SLACK_S = 5
"""The kernel's limit is per process and only a backstop: the watchdog holds the one of the tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """Started, and serving nobody yet."""

    id: str
    streams: socket.socket
    """Its standard streams; belongs to who holds the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    running: bool
    status: int
    """The exit status, once it has ended."""
    out_of_memory: bool
    pid: int
    """Of its first process, on the machine of the engine."""


def description(launch: Launch, *, init: bool) -> dict[str, Any]:
    """The engine's words for it. Nothing that the server can reach is shared with another container or the host.

    Raises ConfigError and EnvInfraError for mounts that cannot be.
    """
    limits = launch.limits
    size = limits.disk_mb * _MEGABYTE
    folders = {"/tmp": f"size={size},mode=1777,nosuid,nodev,exec"}
    binds = [_bind(mount) for mount in launch.mounts]
    if launch.workspace is None:
        folders[str(WORKSPACE)] = f"size={size},mode=0755,uid={NOBODY},gid={NOBODY},nosuid,nodev,exec"
    else:
        binds.append(_binding(Mount(source=launch.workspace, target=WORKSPACE, writable=not launch.read_only)))
    inherited = {} if launch.image is None else {"PATH", "LANG"}  # an image knows better where its programs are
    env = {name: value for name, value in ENVIRONMENT.items() if name not in inherited} | dict(launch.env)
    own_command = {} if not launch.argv else {"Entrypoint": [launch.argv[0]], "Cmd": list(launch.argv[1:])}
    return {
        "Image": image_name(launch.image),
        **own_command,
        "Env": [f"{name}={value}" for name, value in env.items()],
        "User": _user(launch),
        "WorkingDir": str(WORKSPACE),
        "Hostname": "sandbox",
        "OpenStdin": True,
        "StdinOnce": True,  # a harness that is gone is the end of standard input
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Labels": {
            OWNER_LABEL: owner(),
            USER_LABEL: str(os.getuid()),
            PIDS_LABEL: pid_namespace(),
            RUN_LABEL: _RUN,
        },
        "HostConfig": {
            "NetworkMode": "bridge" if launch.network else "none",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "CapAdd": ["DAC_READ_SEARCH"] if launch.reads_all else [],
            "SecurityOpt": ["no-new-privileges", *_filter()],
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "Init": init,
            "Memory": limits.memory_mb * _MEGABYTE,
            "MemorySwap": limits.memory_mb * _MEGABYTE,
            "PidsLimit": limits.processes + init,
            "ShmSize": min(size, 64 * _MEGABYTE),
            "Ulimits": _ulimits(limits),
            "Tmpfs": folders,
            "Mounts": binds,
            "LogConfig": {"Type": "none"},  # else the engine writes all output to a file
            "RestartPolicy": {"Name": "no"},
        },
    }


def _ulimits(limits: Limits) -> list[dict[str, Any]]:
    values = {
        "nofile": limits.open_files,
        "core": 0,
        "fsize": limits.disk_mb * _MEGABYTE,
        "cpu": int(limits.cpu_s) + _CPU_SLACK_S,
    }
    return [{"Name": name, "Soft": value, "Hard": value} for name, value in values.items()]


@functools.cache
def _filter() -> list[str]:
    """Ours; on a machine that it is not written for the engine's own, which `Docker.check` has seen."""
    machine = platform.machine()
    return [f"seccomp={seccomp.engine_profile(machine)}"] if machine in seccomp.DENIED else []


def _user(launch: Launch) -> str:
    """Nobody; where a harness that is not root has a workspace, which it cannot give to nobody, its own user.

    What is to read all is root, since an engine gives capabilities to nobody else, with that one alone.
    """
    if launch.reads_all:
        return "0:0"
    if launch.workspace is None or os.getuid() == 0:
        return f"{NOBODY}:{NOBODY}"
    return f"{os.getuid()}:{os.getgid()}"


def _bind(mount: Mount) -> dict[str, Any]:
    if not mount.target.is_absolute() or ".." in mount.target.parts or mount.target == PurePosixPath("/"):
        raise ConfigError(f"docker: mount target {mount.target}: must be an absolute path below / without '..'")
    binding = _binding(mount)
    mode = mount.source.stat().st_mode
    needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0) | (stat.S_IWOTH if mount.writable else 0)
    if mode & needed != needed:
        doing = "write" if mount.writable else "read"
        how = f"chmod o+r{'w' * mount.writable}X {mount.source}"
        raise ConfigError(
            f"docker: mount {mount.target}: cannot be {doing} by user {NOBODY}, whom servers run as: {how}"
        )
    return binding


def _binding(mount: Mount) -> dict[str, Any]:
    if not mount.source.exists():
        raise EnvInfraError(f"docker: mount {mount.target}: {mount.source}: no such file or folder")
    return {
        "Type": "bind",
        "Source": str(mount.source.absolute()),
        "Target": str(mount.target),
        "ReadOnly": not mount.writable,
        "BindOptions": {"Propagation": "rprivate"},
    }


def hand_over(workspace: Path) -> None:
    """Gives what is in the folder to the user that servers run as, which takes root; links are not followed."""
    if os.getuid() == 0:
        os.chown(workspace, NOBODY, NOBODY)
        for folder, folders, files in os.walk(workspace):
            for name in (*folders, *files):
                os.lchown(Path(folder, name), NOBODY, NOBODY)


def start(launch: Launch, *, init: bool) -> Container:
    """The server, running in a container of its own.

    Raises SandboxUnavailable without its image; ConfigError and EnvInfraError for a launch that cannot be.
    """
    if launch.workspace is not None and not launch.read_only and launch.workspace.exists():
        hand_over(launch.workspace)
    try:
        made: str = request("POST", "/containers/create", content=description(launch, init=init))["Id"]
    except EngineError as error:
        if error.status == 404:
            raise SandboxUnavailable(missing(launch.image)) from error
        raise
    streams: socket.socket | None = None
    try:
        streams = attach(made)
        request("POST", f"/containers/{made}/start")
    except BaseException:
        if streams is not None:
            streams.close()
        remove(made)
        raise
    return Container(id=made, streams=streams)


def discard(container: Container) -> None:
    """Ends the server and removes the container. Raises EngineError."""
    container.streams.close()
    remove(container.id)


def look(container_id: str) -> State:
    """Raises EngineError, also where it is gone."""
    found = request("GET", f"/containers/{container_id}/json")["State"]
    return State(running=found["Running"], status=found["ExitCode"], out_of_memory=found["OOMKilled"], pid=found["Pid"])


def cgroup_of(container_id: str, pid: int) -> Cgroup | None:
    """Where the kernel counts what it uses; None where that is out of sight, as with an engine in a virtual machine."""
    try:
        own = Path(f"/proc/{pid}/cgroup").read_text()
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return None
    found = own_cgroup(container_id, mounts, own)
    return found if found is not None and found.memory.is_dir() else None


def own_cgroup(container_id: str, mountinfo: str, process_cgroups: str) -> Cgroup | None:
    """The container's, and nobody else's, from the texts of /proc/self/mountinfo and of its process's /proc/PID/cgroup.

    A process that is ending is said to be in the root of each hierarchy of version 1, from one line to the next: what
    is counted there is the whole machine's.
    """
    found = find_hierarchy(mountinfo, process_cgroups)
    if found is None or not all(container_id in str(folder) for folder in (found.memory, found.pids)):
        return None
    cpu = found.cpu if container_id in str(found.cpu) else None
    return Cgroup(version=found.version, memory=found.memory, pids=found.pids, cpu=cpu)
