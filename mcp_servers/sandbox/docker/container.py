"""Containers, each for one server: their configuration, their start with the server already running, their state."""

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
    open_engine,
    record_use,
    remove,
)
from gymcp.mcp_servers.sandbox.docker.images import image_name, missing_message
from gymcp.mcp_servers.sandbox.docker.root_home import mount_root_home
from gymcp.mcp_servers.sandbox.rootfs import NOBODY
from gymcp.mcp_servers.sandbox.spec import Launch, Limits, Mount
from gymcp.mcp_servers.sandbox.users.ownership import change_owner
from gymcp.process_owner import owner, pid_namespace

RUN_LABEL = "gymcp.run"
_RUN = uuid.uuid4().hex
_MEGABYTE = 1_000_000
_CPU_SLACK_S = 5
"""Seconds added to the kernel's CPU limit, which is per process and a backstop: the watchdog limits the whole tree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A running container that is not in use yet."""

    id: str
    streams: socket.socket
    """Connection to its standard streams, which the owner of this record closes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    running: bool
    status: int
    """Exit status, valid once the container has ended."""
    out_of_memory: bool
    pid: int
    """Process id of its first process on the engine's machine."""


def container_config(launch: Launch, *, init: bool) -> dict[str, Any]:
    """Configuration of the container for the engine. The server reaches nothing that others or the host share.

    Raises ConfigError and EnvInfraError for invalid mounts.
    """
    limits = launch.limits
    size = limits.disk_mb * _MEGABYTE
    folders = {"/tmp": f"size={size},mode=1777,nosuid,nodev,exec"}
    home = mount_root_home(launch.mounts) if launch.image is None else []
    binds = [_bind(mount) for mount in (*home, *launch.mounts)]
    if launch.workspace is None:
        folders[str(WORKSPACE)] = f"size={size},mode=0755,uid={NOBODY},gid={NOBODY},nosuid,nodev,exec"
    else:
        binds.append(_binding(Mount(source=launch.workspace, target=WORKSPACE, writable=not launch.read_only)))
    from_image = {} if launch.image is None else {"PATH", "LANG"}  # an image knows better where its programs are
    env = {name: value for name, value in ENVIRONMENT.items() if name not in from_image} | dict(launch.env)
    own_command = {} if not launch.argv else {"Entrypoint": [launch.argv[0]], "Cmd": list(launch.argv[1:])}
    return {
        "Image": image_name(launch.image),
        **own_command,
        "Env": [f"{name}={value}" for name, value in env.items()],
        "User": _user(launch),
        "WorkingDir": str(WORKSPACE),
        "Hostname": "sandbox",
        "OpenStdin": True,
        "StdinOnce": True,  # standard input ends when the harness is gone
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
    """Security option with gymcp's filter; on a machine without one the engine's own, which `Docker.check` requires."""
    machine = platform.machine()
    return [f"seccomp={seccomp.docker_profile(machine)}"] if machine in seccomp.DENIED else []


def _user(launch: Launch) -> str:
    """User and group of the server.

    The user is 65534, except that a harness that is not root cannot give a workspace to that user: then it is the
    harness's own user. `reads_all` runs as root with CAP_DAC_READ_SEARCH only, because Docker grants added capabilities
    to root only.
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


def start(launch: Launch, *, init: bool) -> Container:
    """Start the server in a new container.

    Raises SandboxUnavailable if its image is missing; ConfigError and EnvInfraError for an invalid launch.
    """
    if os.getuid() == 0 and launch.workspace is not None and not launch.read_only and launch.workspace.exists():
        change_owner(launch.workspace, NOBODY)
    record_use()
    try:
        with open_engine() as client:
            container: str = client.create_container_from_config(container_config(launch, init=init))["Id"]
    except EngineError as error:
        if error.status == 404:
            raise SandboxUnavailable(missing_message(launch.image)) from error
        raise
    streams: socket.socket | None = None
    try:
        with open_engine() as client:
            streams = attach(client, container)
            client.start(container)
    except BaseException:
        if streams is not None:
            streams.close()
        remove(container)
        raise
    return Container(id=container, streams=streams)


def discard(container: Container) -> None:
    """End the server and remove the container. Raises EngineError."""
    container.streams.close()
    remove(container.id)


def inspect_container(container_id: str) -> State:
    """State of a container. Raises EngineError, also if the container is gone."""
    with open_engine() as client:
        state = client.inspect_container(container_id)["State"]
    return State(running=state["Running"], status=state["ExitCode"], out_of_memory=state["OOMKilled"], pid=state["Pid"])


def cgroup_of(container_id: str, pid: int) -> Cgroup | None:
    """The container's cgroup; None if it is not visible here, as with an engine in a virtual machine."""
    try:
        process_cgroups = Path(f"/proc/{pid}/cgroup").read_text()
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return None
    cgroup = parse_own_cgroup(container_id, mounts, process_cgroups)
    return cgroup if cgroup is not None and cgroup.memory.is_dir() else None


def parse_own_cgroup(container_id: str, mountinfo: str, process_cgroups: str) -> Cgroup | None:
    """The container's own cgroup from the texts of /proc/self/mountinfo and of its process's /proc/PID/cgroup.

    None if the folders are not the container's: for a process that is ending, version 1 names the root of each
    hierarchy, even from one line to the next, and a root counts the whole machine.
    """
    folders = find_hierarchy(mountinfo, process_cgroups)
    if folders is None or not all(container_id in str(folder) for folder in (folders.memory, folders.pids)):
        return None
    cpu = folders.cpu if container_id in str(folders.cpu) else None
    return Cgroup(version=folders.version, memory=folders.memory, pids=folders.pids, cpu=cpu)
