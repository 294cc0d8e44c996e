"""The filter, run by the kernel inside a sandbox, and by a small interpreter for the other architecture."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import platform
import re
import signal
import struct
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gymcp.errors import SandboxUnavailable
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sandbox.seccomp import CHECKED, COMMANDS, DENIED, NAMESPACE_COMMANDS, docker_profile, program

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOWED, KILLED = "allowed", "killed"


def verdict(filter_: bytes, arch: int, number: int, *arguments: int) -> str:
    """Verdict of the kernel: runs classic BPF over one struct seccomp_data."""
    words = struct.pack("=iIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    accumulator = position = 0
    while True:
        code, true, false, constant = struct.unpack_from("=HBBI", filter_, 8 * position)
        position += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", words, constant)
        elif code == 0x06:
            action = {0x7FFF0000: ALLOWED, 0x80000000: KILLED}.get(constant)
            return action or errno.errorcode[constant & 0xFFFF]
        else:
            hit = {
                0x05: True,
                0x15: accumulator == constant,
                0x25: accumulator > constant,
                0x35: accumulator >= constant,
                0x45: bool(accumulator & constant),
            }[code]
            position += constant if code == 0x05 else true if hit else false


@pytest.fixture(params=list(MACHINES))
def call(request: pytest.FixtureRequest) -> Callable[..., str]:
    machine = request.param

    def run(name: str, *arguments: int, network: bool = False, hidden_memory: bool = False, **more: bool) -> str:
        filter_ = program(network=network, hidden_memory=hidden_memory, machine=machine, **more)
        return verdict(filter_, MACHINES[machine], CHECKED[machine][name], *arguments)

    return run


Call = Callable[..., str]


def test_new_namespaces_are_refused(call: Call) -> None:
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert call("clone", flag | 17) == "EPERM"
    assert call("clone", 17) == ALLOWED  # fork
    assert call("clone", 0x3D0F00) == ALLOWED  # a thread
    assert call("clone3") == "ENOSYS"


def test_socket_families(call: Call) -> None:
    unix, inet, inet6, netlink, packet, vsock = 1, 2, 10, 16, 17, 40
    offline = {family: call("socket", family) for family in (unix, inet, inet6, netlink, packet, vsock)}
    assert [family for family, answer in offline.items() if answer == ALLOWED] == [unix]
    online = {family: call("socket", family, network=True) for family in offline}
    assert [family for family, answer in online.items() if answer == ALLOWED] == [unix, inet, inet6, netlink]
    assert call("socket", netlink, 3, 0, network=True) == ALLOWED  # NETLINK_ROUTE
    assert call("socket", netlink, 3, 12, network=True) == "EAFNOSUPPORT"  # NETLINK_NETFILTER
    assert (call("socketpair", unix), call("socketpair", inet)) == (ALLOWED, "EAFNOSUPPORT")


def test_set_id_bits_are_refused_in_every_mode_argument(call: Call) -> None:
    assert [call("fchmod", 3, mode) for mode in (0o755, 0o4755, 0o2755, 0o1777)] == [ALLOWED, "EPERM", "EPERM", ALLOWED]
    assert [call("fchmodat2", 3, 0, mode) for mode in (0o755, 0o4755)] == [ALLOWED, "EPERM"]
    read, create, temporary = 0, 0o100, 0o20200000
    assert [call("openat", 3, 0, flags, 0o4755) for flags in (read, create, temporary)] == [ALLOWED, "EPERM", "EPERM"]
    assert call("openat2") == "ENOSYS"


def test_personality_is_the_usual_one(call: Call) -> None:
    assert [call("personality", value) for value in (0, 0xFFFFFFFF, 0x0040000)] == [ALLOWED, ALLOWED, "EPERM"]


UNKNOWN = {"fcntl": (1, "EINVAL"), "ioctl": (1, "ENOTTY"), "prctl": (0, "EINVAL"), "shmctl": (1, "EINVAL")}
"""Call -> which argument its command is, and the kernel's answer to an unknown one."""


@pytest.mark.parametrize("name", list(COMMANDS))
def test_commands_are_an_allow_list(call: Call, name: str) -> None:
    index, refused = UNKNOWN[name]
    allowed = set(COMMANDS[name].values())
    beside = {value + step & 0xFFFFFFFF for value in allowed for step in (-1, 1)} | {0, 0xFFFFFFFF, *range(1100)}
    for value in allowed | beside:
        for high in (0, 0xFFFFFFFF):  # the kernel reads the low word only
            arguments = [*[3] * index, high << 32 | value]
            assert call(name, *arguments) == (ALLOWED if value in allowed else refused), hex(value)


@pytest.mark.parametrize("machine", list(MACHINES))
@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_docker_profile_has_the_same_allow_list(machine: str, name: str) -> None:
    """Each rule refuses a block of commands: no block has an allowed one, and together they have all others."""
    rules = [rule for rule in json.loads(docker_profile(machine))["syscalls"] if rule["names"] == [name]]
    index, refused = UNKNOWN[name]
    assert {rule["errnoRet"] for rule in rules} == {getattr(errno, refused)}
    blocks = [(argument["value"], argument["valueTwo"]) for rule in rules for argument in rule["args"]]
    assert {argument["index"] for rule in rules for argument in rule["args"]} == {index}
    assert not [value for value in COMMANDS[name].values() for mask, block in blocks if value & mask == block]
    assert sum(2 ** (32 - mask.bit_count()) for mask, _ in blocks) == 2**32 - len(COMMANDS[name])


def test_commands_that_reach_beyond_the_process_are_refused(call: Call) -> None:
    refused = {
        "fcntl": {"F_SETOWN": 8, "F_SETSIG": 10, "F_SETOWN_EX": 15, "F_SETLEASE": 1024, "F_GETLEASE": 1025}
        | {"F_NOTIFY": 1026, "F_SETPIPE_SZ": 1031, "F_SET_FILE_RW_HINT": 1038, "F_SETDELEG": 1040},
        "ioctl": {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C, "TIOCSETD": 0x5423, "FIOASYNC": 0x5452, "FIOSETOWN": 0x8901}
        | {
            "SIOCUNIXFILE": 0x89E0,
            "FS_IOC_SETFLAGS": 0x40086602,
            "FS_IOC_FSSETXATTR": 0x401C5820,
            "FIFREEZE": 0xC0045877,
        }
        | {
            "FS_IOC_ENABLE_VERITY": 0x40806685,
            "FIDEDUPERANGE": 0xC0189436,
            "NS_GET_PARENT": 0xB702,
            "LOOP_SET_FD": 0x4C00,
        },
        "prctl": {
            **NAMESPACE_COMMANDS,
            "PR_SET_SECUREBITS": 28,
            "PR_SET_MM": 35,
            "PR_SET_SPECULATION_CTRL": 53,
        }
        | {"PR_SCHED_CORE": 62, "PR_SET_MEMORY_MERGE": 67, "PR_SET_PTRACER": 0x59616D61},
        "shmctl": {"SHM_LOCK": 11},
    }
    for name, commands in refused.items():
        index, code = UNKNOWN[name]
        assert {which: call(name, *[3] * index, value) for which, value in commands.items()} == dict.fromkeys(
            commands, code
        )


def test_processes_that_create_namespaces_may_drop_rights(call: Call) -> None:
    for more in ("forked_server", "makes_namespaces"):
        assert {call("prctl", command, **{more: True}) for command in NAMESPACE_COMMANDS.values()} == {ALLOWED}
        assert call("prctl", 35, **{more: True}) == "EINVAL"  # PR_SET_MM


def test_calls_that_use_up_shared_resources_do_not_exist(call: Call) -> None:
    assert {call(name) for name in ("inotify_init1", "io_setup", "mq_open")} == {"ENOSYS"}


def test_numbers_of_commands_match_the_c_library() -> None:
    """Compared with the numbers that Python knows, and with the kernel's headers if they are installed."""
    headers = [Path("/usr/include/linux", f"{name}.h") for name in ("prctl", "ipc", "shm")]
    text = "".join(header.read_text() for header in headers if header.exists())
    defined = {name: int(value, 0) for name, value in re.findall(r"#define\s+([A-Z]\w+)\s+(0x\w+|0|[1-9]\d*)\b", text)}
    told = {"fcntl": vars(fcntl), "ioctl": vars(termios), "prctl": defined, "shmctl": defined}
    known = {call: {name: told[call][name] for name in COMMANDS[call] if name in told[call]} for call in COMMANDS}
    assert known == {call: {name: COMMANDS[call][name] for name in known[call]} for call in COMMANDS}
    assert (len(known["fcntl"]) >= 14, len(known["ioctl"]) >= 15) == (True, True)


def test_memory_outside_resident_sets_needs_a_cgroup(call: Call) -> None:
    for name in ("memfd_create", "memfd_secret", "msgget", "semget", "shmget"):
        assert (call(name), call(name, hidden_memory=True)) == ("ENOSYS", ALLOWED)


def test_other_architectures_are_killed() -> None:
    filters = {machine: program(network=False, hidden_memory=True, machine=machine) for machine in MACHINES}
    assert verdict(filters["x86_64"], 0x40000003, 1) == KILLED  # i386
    assert verdict(filters["x86_64"], MACHINES["x86_64"], 0x40000000 | 1) == KILLED  # x32
    assert verdict(filters["aarch64"], MACHINES["x86_64"], 1) == KILLED
    assert verdict(filters["x86_64"], MACHINES["x86_64"], 1) == ALLOWED


def test_a_machine_without_a_filter_is_refused() -> None:
    with pytest.raises(SandboxUnavailable, match="no filter for machine 'riscv64'; have aarch64, x86_64"):
        program(network=False, hidden_memory=True, machine="riscv64")


@pytest.mark.parametrize("machine", list(MACHINES))
def test_numbers_match_libseccomp(machine: str) -> None:
    try:
        resolve = ctypes.CDLL("libseccomp.so.2").seccomp_syscall_resolve_name_arch
    except OSError:
        pytest.skip("libseccomp.so.2 is not installed")
    newer = {
        "fchmodat2",
        "file_getattr",
        "file_setattr",
        "listmount",
        "open_tree_attr",
        "statmount",
    }  # than libseccomp 2.5
    for name, number in {**DENIED[machine], **CHECKED[machine]}.items():
        if name not in newer:
            assert resolve(ctypes.c_uint32(MACHINES[machine]), name.encode()) == number, name


CALL_OTHER_WAYS = """
import ctypes, mmap
code = bytes.fromhex(CODE)
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
print("WORKED")
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="machine code of x86_64")
@pytest.mark.parametrize("code", ["b814000000cd80c3", "b8270000400f05c3"], ids=["i386 getpid", "x32 getpid"])
def test_other_ways_into_the_kernel_end_the_server(bwrap: Bubblewrap, to_end: Callable[..., Any], code: str) -> None:
    ended = to_end(bwrap, CALL_OTHER_WAYS.replace("CODE", repr(code)))
    assert (ended.out, ended.status) == ("", 128 + signal.SIGSYS), ended.err
