"""Holds a user and mount namespace, and mounts overlays in it on request until standard input ends; run as a script.

Each line of standard input is a JSON list, ``["mount", lower, upper, work, merged]``, ``["unmount", merged]`` or
``["tree", merged, "rw" or "ro"]``. Each answer, on a packet socket that is standard output, is ``ok`` or an error
message. The answer to ``tree`` carries a descriptor of the mount, writable or not, that another namespace attaches with
``move_mount``. All mounts end with the process. No privilege is needed if the machine allows user namespaces.

With an argument, the number of a descriptor, the script enters that user namespace instead of creating one. It is that
of a root harness, in which root and the servers' id exist (`user_namespaces.py`): files of servers keep their owner in
an overlay.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import socket
import struct
import sys

_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_REC, _MS_PRIVATE, _MS_NODEV, _MS_NOSUID = 0x4000, 0x40000, 0x4, 0x2
_MNT_DETACH = 2
_SYS_OPEN_TREE, _AT_FDCWD, _TREE_CLONE_CLOEXEC = 428, -100, 0o2000001
_SYS_MOUNT_SETATTR, _AT_EMPTY_PATH = 442, 0x1000
_READ_ONLY = struct.pack("QQQQ", 1, 0, 0, 0)
"""A ``struct mount_attr``: attributes to set, attributes to clear, propagation, a user namespace."""


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def mount(source: str, target: str, kind: str | None, flags: int, options: str | None) -> None:
        encoded = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
        check(libc.mount(*encoded[:3], ctypes.c_ulong(flags), encoded[3]))

    def say(text: str, fds: tuple[int, ...] = ()) -> None:
        socket.send_fds(out, [text.encode(errors="replace")], list(fds))

    def answer(request: list[str]) -> None:
        try:
            if request[0] == "mount":
                lower, upper, work, merged = request[1:]
                options = f"lowerdir={lower},upperdir={upper},workdir={work},userxattr"
                mount("overlay", merged, "overlay", _MS_NODEV | _MS_NOSUID, options)
            elif request[0] == "tree":
                path = os.fsencode(request[1])
                tree = libc.syscall(_SYS_OPEN_TREE, _AT_FDCWD, path, ctypes.c_uint(_TREE_CLONE_CLOEXEC))
                check(tree)
                try:
                    if request[2] == "ro":
                        size = ctypes.c_size_t(len(_READ_ONLY))
                        check(libc.syscall(_SYS_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, _READ_ONLY, size))
                    say("ok", (tree,))
                finally:
                    os.close(tree)
                return
            else:
                check(libc.umount2(os.fsencode(request[1]), _MNT_DETACH))
        except OSError as error:
            say(str(error))
        else:
            say("ok")

    out = socket.socket(fileno=1)
    _raise_file_limit()
    uid, gid = os.getuid(), os.getgid()
    try:
        if len(sys.argv) > 1:
            check(libc.setns(int(sys.argv[1]), _CLONE_NEWUSER))
            os.close(int(sys.argv[1]))
            check(libc.unshare(_CLONE_NEWNS))
        else:
            check(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS))
            for name, content in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
                with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
                    file.write(content)
        mount("none", "/", None, _MS_REC | _MS_PRIVATE, None)
    except OSError as error:
        say(str(error))
        return
    say("ok")
    for line in sys.stdin:
        answer(json.loads(line))


def _raise_file_limit() -> None:
    """Raise the limit on open files: descriptors that servers keep in flight over sockets count against it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
