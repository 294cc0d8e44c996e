"""A seccomp filter for ``bwrap --seccomp``: all is allowed except what a tool server has no business calling.

The list follows Docker's default profile, plus the calls that came after it. A filter is classic BPF: a list of
``(code, jump if true, jump if false, constant)`` that runs on ``struct seccomp_data``: the number, the architecture,
the instruction pointer, and six arguments of 64 bits. Both supported architectures are little-endian, so the low word
of an argument comes first.

Source: linux/seccomp.h, linux/filter.h; numbers checked against libseccomp by the tests.
"""

from __future__ import annotations

import errno
import json
import platform
import struct
from collections.abc import Iterable, Mapping

from gymcp.errors import SandboxUnavailable

Instruction = tuple[int, int, int, int]

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

# name, number on x86_64, number on aarch64 (- where there is none)
_TABLE = """
acct 163 89, add_key 248 217, bpf 321 280, chroot 161 51, clock_adjtime 305 266, clock_settime 227 112,
create_module 174 -, delete_module 176 106, fanotify_init 300 262, finit_module 313 273, fsconfig 431 431,
fsmount 432 432, fsopen 430 430, fspick 433 433, get_kernel_syms 177 -, get_mempolicy 239 236, init_module 175 105,
io_uring_enter 426 426, io_uring_register 427 427, io_uring_setup 425 425, ioperm 173 -, iopl 172 -, kcmp 312 272,
kexec_file_load 320 294, kexec_load 246 104, keyctl 250 219, listmount 458 458, lookup_dcookie 212 18, mbind 237 235,
migrate_pages 256 238, mount 165 40, mount_setattr 442 442, move_mount 429 429, move_pages 279 239,
name_to_handle_at 303 264, nfsservctl 180 42, open_by_handle_at 304 265, open_tree 428 428, open_tree_attr 467 467,
perf_event_open 298 241, pidfd_getfd 438 438, pivot_root 155 41, process_madvise 440 440, process_vm_readv 310 270,
process_vm_writev 311 271, ptrace 101 117, query_module 178 -, quotactl 179 60, quotactl_fd 443 443, reboot 169 142,
request_key 249 218, set_mempolicy 238 237, set_mempolicy_home_node 450 450, setdomainname 171 162, sethostname 170 161,
setns 308 268, settimeofday 164 170, statmount 457 457, swapoff 168 225, swapon 167 224, _sysctl 156 -, syslog 103 116,
sysfs 139 -, umount2 166 39, unshare 272 97, uselib 134 -, userfaultfd 323 282, ustat 136 -, vhangup 153 58
"""
_CHECKED_TABLE = """
chmod 90 -, clone 56 220, clone3 435 435, creat 85 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, ioctl 16 29,
memfd_create 319 279, memfd_secret 447 447, mknod 133 -, mknodat 259 33, open 2 -, openat 257 56, openat2 437 437,
personality 135 92, shmget 29 194, socket 41 198, socketpair 53 199
"""


def _numbers(table: str) -> dict[str, dict[str, int]]:
    rows = [row.split() for row in table.replace("\n", " ").split(",")]
    return {
        machine: {row[0]: int(row[column]) for row in rows if row[column] != "-"}
        for column, machine in ((1, "x86_64"), (2, "aarch64"))
    }


DENIED = _numbers(_TABLE)
"""Always EPERM: machine -> name -> number."""
CHECKED = _numbers(_CHECKED_TABLE)
"""Depends on the arguments, or fails in a way that makes the C library fall back."""

_NEW_NAMESPACE = 0x7E020000  # CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET
_SET_ID_BITS = 0o6000
_CREATES_FILE = 0x400040  # O_CREAT | __O_TMPFILE: without them open's mode is garbage left in a register
_TERMINAL_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_PERSONALITIES = (0, 0xFFFFFFFF)  # PER_LINUX, and the query
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_FAMILIES = 64
"""More than any kernel has."""
_LOW_WORD = 0xFFFFFFFF
# A file with a set-id bit in a writable host folder would belong to the harness's user, who may be root.
_SET_ID_CALLS = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2}


def _load_argument(index: int) -> Instruction:
    return (_LOAD, 0, 0, 16 + 8 * index)


def _return(verdict: int) -> Instruction:
    return (_RETURN, 0, 0, verdict)


def _fail(code: int) -> Instruction:
    return _return(_ERRNO | code)


def _when(number: int, body: list[Instruction]) -> list[Instruction]:
    """Runs the body, which must end in a return, for this system call only; the number stays loaded for the next."""
    return [(_JUMP_EQUAL, 0, len(body), number), *body]


def _only(index: int, allowed: tuple[int, ...], otherwise: int) -> list[Instruction]:
    tests = [(_JUMP_EQUAL, len(allowed) - position, 0, value) for position, value in enumerate(allowed)]
    return [_load_argument(index), *tests, _fail(otherwise), _return(_ALLOW)]


def _never(index: int, refused: tuple[int, ...]) -> list[Instruction]:
    tests = [(_JUMP_EQUAL, len(refused) - position, 0, value) for position, value in enumerate(refused)]
    return [_load_argument(index), *tests, _return(_ALLOW), _fail(errno.EPERM)]


def _no_bits(index: int, bits: int) -> list[Instruction]:
    return [_load_argument(index), (_JUMP_ANY_BIT, 0, 1, bits), _fail(errno.EPERM), _return(_ALLOW)]


def _no_bits_when_creating(flags: int, mode: int) -> list[Instruction]:
    return [_load_argument(flags), (_JUMP_ANY_BIT, 1, 0, _CREATES_FILE), _return(_ALLOW), *_no_bits(mode, _SET_ID_BITS)]


def _sockets(network: bool) -> list[Instruction]:
    if not network:
        return _only(0, (_AF_UNIX,), errno.EAFNOSUPPORT)
    # getaddrinfo and getifaddrs ask NETLINK_ROUTE (protocol 0) which addresses the machine has
    route_only = _only(2, (0,), errno.EAFNOSUPPORT)
    netlink: list[Instruction] = [(_JUMP_EQUAL, 0, len(route_only), _AF_NETLINK), *route_only]
    return [_load_argument(0), *netlink, *_only(0, (_AF_UNIX, _AF_INET, _AF_INET6), errno.EAFNOSUPPORT)]


def _checks(network: bool, hidden_memory: bool) -> dict[str, list[Instruction]]:
    checks = {name: _no_bits(index, _SET_ID_BITS) for name, index in _SET_ID_CALLS.items()}
    checks |= {
        "open": _no_bits_when_creating(1, 2),
        "openat": _no_bits_when_creating(2, 3),
        "openat2": [_fail(errno.ENOSYS)],  # its mode is behind a pointer
        "clone": _no_bits(0, _NEW_NAMESPACE),
        "clone3": [_fail(errno.ENOSYS)],  # its flags are behind a pointer; the C library falls back to clone
        "personality": _only(0, _PERSONALITIES, errno.EPERM),
        "ioctl": _never(1, _TERMINAL_INJECTION),
        "socket": _sockets(network),
        "socketpair": _only(0, (_AF_UNIX,), errno.EAFNOSUPPORT),
    }
    if not hidden_memory:
        checks |= {name: [_fail(errno.ENOSYS)] for name in ("memfd_create", "memfd_secret", "shmget")}
    return checks


_ALONE_NUMBERS = _numbers("""
kill 62 129, pidfd_send_signal 424 424, prlimit64 302 261, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240,
tgkill 234 131, tkill 200 130
""")
_ALONE: dict[str, list[Instruction]] = {
    **dict.fromkeys(("kill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "tgkill", "tkill"), _only(0, (2,), errno.EPERM)),
    "prlimit64": _only(0, (0, 2), errno.EPERM),
    "pidfd_send_signal": [_fail(errno.EPERM)],
}


_MAKES_WALLS = ("mount", "move_mount", "unshare")
"""And `clone` with new namespaces: what making a cell takes."""


def program(
    *,
    network: bool,
    hidden_memory: bool,
    alone: bool = False,
    makes_walls: bool = False,
    machine: str | None = None,
) -> bytes:
    """The filter, an array of ``struct sock_filter``.

    ``hidden_memory`` allows memory that belongs to no process's resident set (memfd, System V segments): only where a
    cgroup counts it. ``alone`` is for a forked server: it signals nobody but process 2, itself, since copies of it live
    in its PID namespace; and it may enter namespaces, which takes a handle of one. ``makes_walls`` is for what imports
    a third-party program and forks it: it may make namespaces, and mount in those that it owns. Raises
    SandboxUnavailable on other machines than x86_64 and aarch64.
    """
    machine = platform.machine() if machine is None else machine
    if machine not in _AUDIT_ARCH:
        known = ", ".join(sorted(_AUDIT_ARCH))
        raise SandboxUnavailable(f"seccomp: no filter for machine {machine!r}; have {known}; or use --sandbox docker")
    out: list[Instruction] = [
        (_LOAD, 0, 0, 4),
        (_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        _return(_KILL_PROCESS),
        (_LOAD, 0, 0, 0),
    ]
    if machine == "x86_64":
        out += [(_JUMP_AT_LEAST, 0, 1, _X32_BIT), _return(_KILL_PROCESS)]
    for name, body in _checks(network, hidden_memory).items():
        if name in CHECKED[machine] and not (makes_walls and name == "clone"):
            out += _when(CHECKED[machine][name], body)
    if alone:
        for name, body in _ALONE.items():
            out += _when(_ALONE_NUMBERS[machine][name], body)
    for name, number in DENIED[machine].items():
        if not (alone and name == "setns") and not (makes_walls and name in _MAKES_WALLS):
            out += _when(number, [_fail(errno.EPERM)])
    out.append(_return(_ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in out)


def engine_profile(machine: str) -> str:
    """The same for a Docker engine, as its JSON: engines' own profiles differ, and older ones allow io_uring.

    Other than in `program`, families of sockets are those with a network (a container without one has its loopback),
    ``personality`` may not even be asked, and hidden memory is allowed, because an engine always counts it. Raises
    KeyError on other machines than x86_64 and aarch64.
    """
    rules = [_rule(DENIED[machine]), _rule(("openat2", "clone3"), code=errno.ENOSYS)]
    rules += [_rule(("clone",), {0: bit}) for bit in _bits(_NEW_NAMESPACE)]
    for bit in _bits(_SET_ID_BITS):
        rules += [_rule((name,), {index: bit}) for name, index in _SET_ID_CALLS.items()]
        for created in _bits(_CREATES_FILE):
            rules += [_rule(("open",), {1: created, 2: bit}), _rule(("openat",), {2: created, 3: bit})]
    rules += [_rule(("ioctl",), {1: (_LOW_WORD, request)}) for request in _TERMINAL_INJECTION]
    rules += [_rule(("personality",), {0: bit}) for bit in _bits(_LOW_WORD)]
    families = set(range(_FAMILIES)) - {_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK}
    for family in sorted(families):
        rules.append(_rule(("socket", "socketpair"), {0: (_LOW_WORD, family)}, code=errno.EAFNOSUPPORT))
    architecture = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}[machine]
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "architectures": [architecture], "syscalls": rules})


def _rule(
    names: Iterable[str], masks: Mapping[int, int | tuple[int, int]] | None = None, *, code: int = errno.EPERM
) -> dict[str, object]:
    """Refuses the calls where each argument, under its mask, has the value: by default all of the mask's bits."""
    arguments = []
    for index, mask in (masks or {}).items():
        bits, value = mask if isinstance(mask, tuple) else (mask, mask)
        arguments.append({"index": index, "value": bits, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"})
    return {"names": list(names), "action": "SCMP_ACT_ERRNO", "errnoRet": code, "args": arguments}


def _bits(mask: int) -> list[int]:
    return [1 << position for position in range(mask.bit_length()) if mask >> position & 1]
