"""The root file system of a confined server, as bwrap arguments: an allow-list of host paths, all read-only.

It has the programs and shared libraries of /usr, the interpreter, an artificial /etc, and nothing else. Two folders
need care that bwrap does not take if the server's id on the host is root's, or another id that host files belong to
(`identity.py`). /proc must be read-only, or a server could write /proc/sys/kernel/core_pattern and run code as root.
/dev must have nodes of another owner, or a server could change the mode of the host's /dev/null. Both attacks were
tried, and worked.
"""

from __future__ import annotations

import functools
import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from gymcp.errors import SandboxUnavailable
from gymcp.mcp_servers.sandbox.interpreter import Interpreter, harness_paths, package_folders
from gymcp.mcp_servers.sandbox.users.identity import id_on_the_host
from gymcp.paths import gymcp_home

NOBODY = 65534
_TOP_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64")
_VISIBLE = ("/usr/bin", "/usr/lib32", "/usr/lib64", "/usr/libexec/git-core")
_VISIBLE_OF_SHARE = ("zoneinfo", "git-core", "nodejs")
_LIBRARY_PATTERNS = ("python3.*", "git-core", "locale", "ssl", "nodejs")
"""Folders below /usr/lib that are visible if shared libraries have a folder per architecture (Debian); on other systems
the whole of /usr/lib is visible."""
_FROM_ETC = ("ld.so.cache", "mime.types", "alternatives")
_FROM_ETC_ONLINE = ("resolv.conf", "ssl", "ca-certificates", "pki")
_HOST_FACTS = ("cmdline", "config.gz", "diskstats", "partitions", "sys/kernel/random/boot_id")
"""Files in /proc that identify this machine and its disks, and that no program needs."""
_NODES = ("null", "zero", "full", "random", "urandom", "tty")


def root_arguments(interpreter: Interpreter, scratch: Path, *, network: bool) -> list[str]:
    """Arguments for everything but the workspace, the caller's mounts and the environment, in the order bwrap needs."""
    visible = _visible_paths()
    arguments: list[str] = []
    for path in visible:
        arguments += ["--ro-bind", str(path), str(path)]
    for mount in interpreter.mounts:
        arguments += ["--ro-bind", str(mount.source), str(mount.target)]
    for link in map(Path, _TOP_LINKS):
        if link.is_symlink():
            arguments += ["--symlink", str(link.readlink()), str(link)]
        elif link.is_dir():
            arguments += ["--ro-bind", str(link), str(link)]
    sources = [*visible, *(mount.source for mount in interpreter.mounts)]
    masks = [*_package_folders(tuple(visible)), *map(Path, interpreter.masks), *_below(harness_paths(), sources)]
    arguments += _mask(masks, scratch)
    arguments += ["--ro-bind", str(_etc(scratch)), "/etc"]
    if network:
        for name in _FROM_ETC_ONLINE:
            arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        arguments += ["--ro-bind-try", "/usr/share/ca-certificates", "/usr/share/ca-certificates"]
    return [*arguments, *_proc(), *_dev(scratch)]


def _visible_paths() -> list[Path]:
    paths = [Path(name) for name in _VISIBLE] + [Path("/usr/share") / name for name in _VISIBLE_OF_SHARE]
    libraries = Path("/usr/lib")
    per_architecture = [path for path in sorted(libraries.glob("*-linux-gnu*")) if path.is_dir()]
    if per_architecture:
        paths += per_architecture + [path for pattern in _LIBRARY_PATTERNS for path in sorted(libraries.glob(pattern))]
    else:
        paths.append(libraries)
    return [path for path in paths if path.is_dir() and not path.is_symlink()]


@functools.cache
def _package_folders(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    return tuple(folder for path in paths for folder in package_folders(path))


def _below(paths: Iterable[Path], roots: list[Path]) -> list[Path]:
    return [path for path in paths if any(path.is_relative_to(root) for root in roots)]


def _mask(paths: list[Path], scratch: Path) -> list[str]:
    """Arguments that mount an empty folder or file over each path; a path below another one is covered already."""
    arguments: list[str] = []
    covered: list[Path] = []
    empty = scratch / "empty"
    empty.mkdir(exist_ok=True)
    empty.chmod(0o755)
    for path in sorted(set(paths)):
        if any(path.is_relative_to(other) for other in covered):
            continue
        covered.append(path)
        arguments += ["--ro-bind", str(empty) if path.is_dir() else "/dev/null", str(path)]
    return arguments


@functools.cache
def _etc(scratch: Path) -> Path:
    """An /etc that names one user and no host, with the dynamic loader's cache and the link targets of /usr/bin."""
    folder = Path(tempfile.mkdtemp(prefix="etc-", dir=scratch))
    files = {
        "passwd": f"user:x:{NOBODY}:{NOBODY}::/tmp:/bin/sh\n",
        "group": f"user:x:{NOBODY}:\n",
        "hosts": "127.0.0.1 localhost\n::1 localhost\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        "machine-id": "0" * 32 + "\n",
    }
    folder.chmod(0o755)
    for name, content in files.items():
        (folder / name).write_text(content)
        (folder / name).chmod(0o644)
    for name in _FROM_ETC_ONLINE:  # mount points: the folder is read-only inside
        _mount_point(Path("/etc") / name, folder / name)
    for name in _FROM_ETC:
        _copy(Path("/etc") / name, folder / name)
    return folder


def _mount_point(like: Path, path: Path) -> None:
    if like.is_dir():
        path.mkdir()
        path.chmod(0o755)
    elif like.exists():
        path.touch()


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        target.mkdir()
        target.chmod(0o755)
        visible = tuple(f"{path}/" for path in _visible_paths())
        for link in source.iterdir():
            # most of /etc/alternatives leads to manuals, which are not visible: copying them would cost 0.1 s
            if link.is_symlink() and (destination := str(link.readlink())).startswith(visible):
                (target / link.name).symlink_to(destination)
    elif source.exists():
        target.write_bytes(source.read_bytes())
        target.chmod(0o644)


def _proc() -> list[str]:
    arguments = ["--proc", "/proc"]
    for name in _HOST_FACTS:
        if Path("/proc", name).exists():
            arguments += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    if id_on_the_host() == 0:
        for path in sorted(path for path in Path("/proc").iterdir() if not path.name.isdigit()):
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode) and not mode & stat.S_IROTH:
                arguments += ["--ro-bind", "/dev/null", str(path)]
    return [*arguments, "--remount-ro", "/proc"]


def _dev(scratch: Path) -> list[str]:
    arguments = ["--dev", "/dev", "--size", str(64_000_000), "--perms", "1777", "--tmpfs", "/dev/shm"]
    server = id_on_the_host()
    if owned := [name for name in _NODES if Path("/dev", name).stat().st_uid == server]:
        nodes = _private_nodes(scratch, next(user for user in (NOBODY, 0) if user != server), owned)
        for name in _NODES:
            arguments += ["--dev-bind", str(nodes / name), f"/dev/{name}"]
    return [*arguments, "--remount-ro", "/dev"]


def _private_nodes(scratch: Path, owner: int, owned: list[str]) -> Path:
    """Folder with copies of the device nodes that belong to `owner`. Raises SandboxUnavailable if it cannot be made."""
    folders = (scratch / "dev", gymcp_home() / "dev")
    for folder in folders:
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            for name in _NODES:
                node = folder / name
                if not node.exists():
                    os.mknod(node, stat.S_IFCHR | 0o666, Path("/dev", name).stat().st_rdev)
                os.chown(node, owner, owner)
                node.chmod(0o666)
            (folder / "null").write_bytes(b"")  # EACCES on a file system mounted nodev
        except OSError:
            continue
        return folder
    raise SandboxUnavailable(
        f"bwrap: device nodes: {', '.join(f'/dev/{name}' for name in owned)} of this machine belong to user "
        f"{id_on_the_host()}, as servers do on it, who could change their modes, and no others can be made in "
        f"{' or '.join(map(str, folders))} (a file system that allows none, or no right to): give the nodes back to "
        "root (chown root: /dev/null), run gymcp as another user, or use --sandbox docker"
    )
