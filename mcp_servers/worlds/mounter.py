"""Run as a script: holds a user and mount namespace, and mounts overlays in it on request until standard input ends.

Each line in is a JSON list, ``["mount", lower, upper, work, merged]`` or ``["unmount", merged]``; each line out is
``ok`` or what went wrong. All mounts end with the process. No privilege is needed where user namespaces are allowed.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_REC, _MS_PRIVATE, _MS_NODEV, _MS_NOSUID = 0x4000, 0x40000, 0x4, 0x2
_MNT_DETACH = 2


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def mount(source: str, target: str, kind: str | None, flags: int, options: str | None) -> None:
        encoded = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
        check(libc.mount(*encoded[:3], ctypes.c_ulong(flags), encoded[3]))

    def answer(request: list[str]) -> str:
        try:
            if request[0] == "mount":
                lower, upper, work, merged = request[1:]
                options = f"lowerdir={lower},upperdir={upper},workdir={work},userxattr"
                mount("overlay", merged, "overlay", _MS_NODEV | _MS_NOSUID, options)
            else:
                check(libc.umount2(os.fsencode(request[1]), _MNT_DETACH))
        except OSError as error:
            return str(error)
        return "ok"

    uid, gid = os.getuid(), os.getgid()
    try:
        check(libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS))
        for name, content in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
                file.write(content)
        mount("none", "/", None, _MS_REC | _MS_PRIVATE, None)
    except OSError as error:
        print(error, flush=True)
        return
    print("ok", flush=True)
    for line in sys.stdin:
        print(answer(json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
