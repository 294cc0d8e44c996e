"""A seccomp filter for ``bwrap --seccomp``: every system call is allowed except those that a tool server never needs.

The list follows Docker's default profile, plus newer calls, plus calls that use up resources that the kernel grants per
user or per machine. `fcntl`, `ioctl`, `prctl` and `shmctl` are many calls in one: the commands in `COMMANDS` are
allowed, and every other command, known or yet to come, fails like a command that the kernel does not know.

A filter is classic BPF: a list of ``(code, jump if true, jump if false, constant)`` that runs on ``struct
seccomp_data``: the call's number, the architecture, the instruction pointer, and six arguments of 64 bits. Both
supported architectures are little-endian, so the low word of an argument comes first.

Source: linux/seccomp.h, linux/filter.h, the headers of each command; numbers checked against libseccomp and the C
library by the tests.
"""

from __future__ import annotations

import errno
import json
import platform
import struct
from collections.abc import Iterable, Mapping

from gymcp.errors import SandboxUnavailable

Instruction = tuple[int, int, int, int]

_LOAD, _JUMP, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_AT_LEAST, _JUMP_ANY_BIT = 0x20, 0x05, 0x15, 0x25, 0x35, 0x45
_RETURN = 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

# name, number on x86_64, number on aarch64 (- if there is none)
_TABLE = """
acct 163 89, add_key 248 217, bpf 321 280, chroot 161 51, clock_adjtime 305 266, clock_settime 227 112,
create_module 174 -, delete_module 176 106, fanotify_init 300 262, file_getattr 468 468, file_setattr 469 469,
finit_module 313 273, fsconfig 431 431,
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
chmod 90 -, clone 56 220, clone3 435 435, creat 85 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, fcntl 72 25,
inotify_init 253 -, inotify_init1 294 26, io_setup 206 0, ioctl 16 29, memfd_create 319 279, memfd_secret 447 447,
mknod 133 -, mknodat 259 33, mq_open 240 180, msgget 68 186, open 2 -, openat 257 56, openat2 437 437,
personality 135 92, prctl 157 167, semget 64 190, shmctl 31 195, shmget 29 194, socket 41 198, socketpair 53 199
"""
_COMMAND_TABLE = {
    # duplicates, flags, record locks, sizes, seals. Not: leases and notifications, which delay and watch processes that
    # open the file; signals to a process of the caller's choice; larger pipes, which the kernel limits per user
    "fcntl": """
F_DUPFD 0, F_GETFD 1, F_SETFD 2, F_GETFL 3, F_SETFL 4, F_GETLK 5, F_SETLK 6, F_SETLKW 7, F_OFD_GETLK 36,
F_OFD_SETLK 37, F_OFD_SETLKW 38, F_DUPFD_QUERY 1027, F_DUPFD_CLOEXEC 1030, F_GETPIPE_SZ 1032, F_ADD_SEALS 1033,
F_GET_SEALS 1034
""",
    # terminals, close-on-exec and non-blocking, the list of network interfaces. Not: input that the terminal's owner
    # seems to have typed; line disciplines; attributes, projects and keys of files; namespaces of processes; devices
    "ioctl": """
TCGETS 0x5401, TCSETS 0x5402, TCSETSW 0x5403, TCSETSF 0x5404, TCSBRK 0x5409, TCXONC 0x540A, TCFLSH 0x540B,
TIOCSCTTY 0x540E, TIOCGPGRP 0x540F, TIOCSPGRP 0x5410, TIOCOUTQ 0x5411, TIOCGWINSZ 0x5413, TIOCSWINSZ 0x5414,
FIONREAD 0x541B, FIONBIO 0x5421, TIOCNOTTY 0x5422, TCSBRKP 0x5425, TIOCGSID 0x5429, TIOCGPTPEER 0x5441,
FIONCLEX 0x5450, FIOCLEX 0x5451, SIOCGIFNAME 0x8910, SIOCGIFCONF 0x8912, SIOCGIFFLAGS 0x8913, SIOCGIFADDR 0x8915,
SIOCGIFBRDADDR 0x8919, SIOCGIFNETMASK 0x891B, SIOCGIFMTU 0x8921, SIOCGIFHWADDR 0x8927, SIOCGIFINDEX 0x8933,
TIOCSPTLCK 0x40045431, TCSETS2 0x402C542B, TCSETSW2 0x402C542C,
TCSETSF2 0x402C542D, TIOCGPTN 0x80045430, TCGETS2 0x802C542A
""",
    # names, the parent's death, fewer capabilities, seccomp, huge pages, timer slack. Not: core scheduling; hiding the
    # process's files from the user's other processes; tracers and other rights of processes; merged memory; the layout
    # of memory
    "prctl": """
PR_SET_PDEATHSIG 1, PR_GET_PDEATHSIG 2, PR_GET_DUMPABLE 3, PR_GET_KEEPCAPS 7, PR_SET_KEEPCAPS 8, PR_SET_NAME 15,
PR_GET_NAME 16, PR_GET_SECCOMP 21, PR_SET_SECCOMP 22, PR_CAPBSET_READ 23, PR_CAPBSET_DROP 24,
PR_GET_SECUREBITS 27, PR_SET_TIMERSLACK 29, PR_GET_TIMERSLACK 30, PR_SET_CHILD_SUBREAPER 36, PR_GET_CHILD_SUBREAPER 37,
PR_SET_NO_NEW_PRIVS 38, PR_GET_NO_NEW_PRIVS 39, PR_SET_THP_DISABLE 41, PR_GET_THP_DISABLE 42, PR_CAP_AMBIENT 47,
PR_GET_TAGGED_ADDR_CTRL 56, PR_SET_VMA 0x53564D41
""",
    # removal, owner and mode, figures. Not: a lock in memory, of which the kernel gives each user some megabytes
    "shmctl": """
IPC_RMID 0, IPC_SET 1, IPC_STAT 2, IPC_INFO 3, SHM_UNLOCK 12, SHM_STAT 13, SHM_INFO 14, SHM_STAT_ANY 15
""",
}


def _numbers(table: str) -> dict[str, dict[str, int]]:
    rows = [row.split() for row in table.replace("\n", " ").split(",")]
    return {
        machine: {row[0]: int(row[column]) for row in rows if row[column] != "-"}
        for column, machine in ((1, "x86_64"), (2, "aarch64"))
    }


DENIED = _numbers(_TABLE)
"""Calls that always fail with EPERM: machine -> name -> number."""
CHECKED = _numbers(_CHECKED_TABLE)
"""Calls whose verdict depends on the arguments, or that fail in a way that makes programs fall back: as `DENIED`."""
COMMANDS = {
    call: {name: int(value, 0) for name, value in (row.split() for row in table.replace("\n", " ").split(","))}
    for call, table in _COMMAND_TABLE.items()
}
"""Call -> name -> value of a command that is allowed: the same on both machines."""
NAMESPACE_COMMANDS = {"PR_SET_DUMPABLE": 4}
"""Additional commands of `prctl` for creating the namespaces of a forked server, or moving into them."""
_COMMAND_CALLS = {
    "fcntl": (1, errno.EINVAL),
    "ioctl": (1, errno.ENOTTY),
    "prctl": (0, errno.EINVAL),
    "shmctl": (1, errno.EINVAL),
}
"""Call -> position of the command among the arguments, and the kernel's error for a command that it does not know."""
_UNKNOWN_CALLS = ("inotify_init", "inotify_init1", "io_setup", "mq_open")
"""Calls that fail with ENOSYS, as on kernels without them: programs such as `tail -f` then poll. By default a user has
128 inotify instances and 800 kB of message queues, and the machine 65,536 asynchronous operations: one server could
take them all. An inotify watch would also tell a server when the host uses a file that both see."""
_HIDDEN_MEMORY_CALLS = ("memfd_create", "memfd_secret", "msgget", "semget", "shmget")
"""Calls that give memory which belongs to no process's resident set: without a cgroup nothing would count it. A set of
semaphores takes 2 MB, and a sandbox may have 32,000 of them; message queues hold 500 MB."""

_NEW_NAMESPACE = 0x7E020000  # CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET
_SET_ID_BITS = 0o6000
_CREATES_FILE = 0x400040  # O_CREAT | __O_TMPFILE: without them open's mode is garbage left in a register
_PERSONALITIES = (0, 0xFFFFFFFF)  # PER_LINUX, and the query
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_LOW_WORD = 0xFFFFFFFF
# A file with a set-id bit in a writable host folder would belong to the harness's user, who may be root.
_SET_ID_CALLS = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2}


def _load_argument(index: int) -> Instruction:
    return (_LOAD, 0, 0, 16 + 8 * index)


def _return(verdict: int) -> Instruction:
    return (_RETURN, 0, 0, verdict)


def _fail(code: int) -> Instruction:
    return _return(_ERRNO | code)


def _on_call(number: int, body: list[Instruction]) -> list[Instruction]:
    """Run the body, which must end in a return, for this system call only; the number stays loaded for the next."""
    return [(_JUMP_EQUAL, 0, len(body), number), *body]


def _allow_only(index: int, allowed: tuple[int, ...], otherwise: int) -> list[Instruction]:
    tests = [(_JUMP_EQUAL, len(allowed) - position, 0, value) for position, value in enumerate(allowed)]
    return [_load_argument(index), *tests, _fail(otherwise), _return(_ALLOW)]


def _allow_commands(call: str, more: Iterable[int] = ()) -> list[Instruction]:
    """Allow the commands of the call as ranges, smallest numbers first: the commands called most have small numbers."""
    index, code = _COMMAND_CALLS[call]
    ranges = _ranges([*COMMANDS[call].values(), *more])
    out = [_load_argument(index)]
    for position, (first, last) in enumerate(ranges):
        left = 2 * (len(ranges) - position - 1)
        out += [(_JUMP_AT_LEAST, 0, left + 1, first), (_JUMP_ABOVE, 0, left + 1, last)]
    return [*out, _fail(code), _return(_ALLOW)]


def _ranges(values: Iterable[int]) -> list[tuple[int, int]]:
    """(first, last) of each run of numbers without a gap, in ascending order."""
    ranges: list[tuple[int, int]] = []
    for value in sorted(values):
        first = ranges.pop()[0] if ranges and ranges[-1][1] == value - 1 else value
        ranges.append((first, value))
    return ranges


def _deny_bits(index: int, bits: int) -> list[Instruction]:
    return [_load_argument(index), (_JUMP_ANY_BIT, 0, 1, bits), _fail(errno.EPERM), _return(_ALLOW)]


def _deny_bits_when_creating(flags: int, mode: int) -> list[Instruction]:
    return [
        _load_argument(flags),
        (_JUMP_ANY_BIT, 1, 0, _CREATES_FILE),
        _return(_ALLOW),
        *_deny_bits(mode, _SET_ID_BITS),
    ]


def _check_socket_family(network: bool) -> list[Instruction]:
    if not network:
        return _allow_only(0, (_AF_UNIX,), errno.EAFNOSUPPORT)
    # getaddrinfo and getifaddrs ask NETLINK_ROUTE (protocol 0) which addresses the machine has
    route_only = _allow_only(2, (0,), errno.EAFNOSUPPORT)
    netlink: list[Instruction] = [(_JUMP_EQUAL, 0, len(route_only), _AF_NETLINK), *route_only]
    return [_load_argument(0), *netlink, *_allow_only(0, (_AF_UNIX, _AF_INET, _AF_INET6), errno.EAFNOSUPPORT)]


def _checks(network: bool, hidden_memory: bool) -> dict[str, list[Instruction]]:
    checks = {name: _deny_bits(index, _SET_ID_BITS) for name, index in _SET_ID_CALLS.items()}
    checks |= {
        "open": _deny_bits_when_creating(1, 2),
        "openat": _deny_bits_when_creating(2, 3),
        "openat2": [_fail(errno.ENOSYS)],  # its mode is behind a pointer
        "clone": _deny_bits(0, _NEW_NAMESPACE),
        "clone3": [_fail(errno.ENOSYS)],  # its flags are behind a pointer; the C library falls back to clone
        "personality": _allow_only(0, _PERSONALITIES, errno.EPERM),
        **{name: _allow_commands(name) for name in COMMANDS},
        **{name: [_fail(errno.ENOSYS)] for name in _UNKNOWN_CALLS},
        "socket": _check_socket_family(network),
        "socketpair": _allow_only(0, (_AF_UNIX,), errno.EAFNOSUPPORT),
    }
    if not hidden_memory:
        checks |= {name: [_fail(errno.ENOSYS)] for name in _HIDDEN_MEMORY_CALLS}
    return checks


_SIGNAL_NUMBERS = _numbers("""
kill 62 129, pidfd_send_signal 424 424, prlimit64 302 261, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240,
tgkill 234 131, tkill 200 130
""")
_FORKED_SERVER_RULES: dict[str, list[Instruction]] = {
    **dict.fromkeys(
        ("kill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "tgkill", "tkill"), _allow_only(0, (2,), errno.EPERM)
    ),
    "prlimit64": _allow_only(0, (0, 2), errno.EPERM),
    "pidfd_send_signal": [_fail(errno.EPERM)],
}


def _dispatch(cases: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """Run the body of the loaded call, or allow a call without a body.

    A binary search by number, because the filter runs at every system call.
    """
    if len(cases) <= _LINEAR_CASES:
        return [*(step for number, body in cases for step in _on_call(number, body)), _return(_ALLOW)]
    half = len(cases) // 2
    below, above = _dispatch(cases[:half]), _dispatch(cases[half:])
    return [(_JUMP_AT_LEAST, 0, 1, cases[half][0]), (_JUMP, 0, 0, len(below)), *below, *above]


_LINEAR_CASES = 4
_NAMESPACE_CALLS = ("mount", "move_mount", "unshare")
"""Calls that creating the namespaces of a forked server takes, beside `clone` with new namespaces."""


def program(
    *,
    network: bool,
    hidden_memory: bool,
    forked_server: bool = False,
    makes_namespaces: bool = False,
    machine: str | None = None,
) -> bytes:
    """The filter, an array of ``struct sock_filter``.

    ``hidden_memory`` allows memory that belongs to no process's resident set (`_HIDDEN_MEMORY_CALLS`); it is safe only
    if a cgroup counts that memory. ``forked_server`` is for a server forked by the fork server: it may signal only
    process 2, which is itself, because copies of it live in its PID namespace; and it may enter namespaces, which takes
    a descriptor of one. ``makes_namespaces`` is for the process that imports a third-party program and forks it: it may
    create namespaces, and mount in those that it owns. Raises SandboxUnavailable on other machines than x86_64 and
    aarch64.
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
    bodies = {
        CHECKED[machine][name]: body
        for name, body in _checks(network, hidden_memory).items()
        if name in CHECKED[machine] and not (makes_namespaces and name == "clone")
    }
    if forked_server or makes_namespaces:
        bodies[CHECKED[machine]["prctl"]] = _allow_commands("prctl", NAMESPACE_COMMANDS.values())
    if forked_server:
        bodies |= {_SIGNAL_NUMBERS[machine][name]: body for name, body in _FORKED_SERVER_RULES.items()}
    for name, number in DENIED[machine].items():
        if not (forked_server and name == "setns") and not (makes_namespaces and name in _NAMESPACE_CALLS):
            bodies[number] = [_fail(errno.EPERM)]
    out += _dispatch(sorted(bodies.items()))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in out)


def docker_profile(machine: str) -> str:
    """The same filter as JSON for a Docker engine: the engines' own profiles differ, and older ones allow io_uring.

    There are three differences from `program`: the socket families are always those of a server with network, since a
    container without one still has its loopback; ``personality`` cannot even be queried; and hidden memory is allowed,
    because an engine always counts it. Raises KeyError on other machines than x86_64 and aarch64.
    """
    rules = [_rule(DENIED[machine]), _rule(("openat2", "clone3"), code=errno.ENOSYS)]
    rules += [_rule(("clone",), {0: bit}) for bit in _bits(_NEW_NAMESPACE)]
    for bit in _bits(_SET_ID_BITS):
        rules += [_rule((name,), {index: bit}) for name, index in _SET_ID_CALLS.items()]
        for created in _bits(_CREATES_FILE):
            rules += [_rule(("open",), {1: created, 2: bit}), _rule(("openat",), {2: created, 3: bit})]
    rules.append(_rule(_UNKNOWN_CALLS, code=errno.ENOSYS))
    for call, (index, code) in _COMMAND_CALLS.items():
        rules += [_rule((call,), {index: block}, code=code) for block in _blocks_without(COMMANDS[call].values())]
    rules += [_rule(("personality",), {0: bit}) for bit in _bits(_LOW_WORD)]
    for block in _blocks_without((_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK)):
        rules.append(_rule(("socket", "socketpair"), {0: block}, code=errno.EAFNOSUPPORT))
    architecture = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}[machine]
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "architectures": [architecture], "syscalls": rules})


def _rule(
    names: Iterable[str], masks: Mapping[int, int | tuple[int, int]] | None = None, *, code: int = errno.EPERM
) -> dict[str, object]:
    """Refuse the calls if each argument, under its mask, has the value, by default all bits of the mask."""
    arguments = []
    for index, mask in (masks or {}).items():
        bits, value = mask if isinstance(mask, tuple) else (mask, mask)
        arguments.append({"index": index, "value": bits, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"})
    return {"names": list(names), "action": "SCMP_ACT_ERRNO", "errnoRet": code, "args": arguments}


def _blocks_without(values: Iterable[int]) -> list[tuple[int, int]]:
    """All other 32-bit numbers as blocks (mask, value): an engine's rule compares an argument once, without ranges."""
    blocks: list[tuple[int, int]] = []

    def split(first: int, bits: int, inside: list[int]) -> None:
        if not inside:
            blocks.append((_LOW_WORD & _LOW_WORD << bits, first))
        elif len(inside) < 1 << bits:
            middle = first + (1 << bits - 1)
            split(first, bits - 1, [value for value in inside if value < middle])
            split(middle, bits - 1, [value for value in inside if value >= middle])

    split(0, 32, sorted(values))
    return blocks


def _bits(mask: int) -> list[int]:
    return [1 << position for position in range(mask.bit_length()) if mask >> position & 1]
