"""Attempts on processes: the harness, its sandboxes, other episodes' servers. Runs inside; standard library only."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket

from inside import WAIT_S, Given, Prevented, attempt, check_result, first_of, libc, number_of, syscall, token_in

GROUP = "processes"
_SEIZE = 0x4206
_HARMLESS = signal.SIGURG
"""Ignored unless asked for: what can be sent can be counted, and hurts nobody."""


def _target(pid: int, given: Given) -> int:
    """The number, if it is one of ours: inside, the same number may be a process of the sandbox's own."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        token_in(file.read(), given)
    return pid


def _targets(given: Given) -> list[int]:
    return [given["harness_pid"], given["other_pid"]]


@attempt(GROUP)
def see_processes_of_the_host(given: Given) -> str:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return first_of(pids, lambda pid: f"saw {_target(pid, given)}")


@attempt(GROUP)
def signal_the_harness(given: Given) -> str:
    os.kill(given["harness_pid"], 0)
    os.kill(_target(given["harness_pid"], given), _HARMLESS)
    return "signalled it"


@attempt(GROUP)
def signal_another_server(given: Given) -> str:
    os.kill(given["other_pid"], 0)
    os.kill(_target(given["other_pid"], given), _HARMLESS)
    return "signalled it"


@attempt(GROUP)
def signal_through_a_handle(given: Given) -> str:
    fd = os.pidfd_open(given["harness_pid"])
    _target(given["harness_pid"], given)
    signal.pidfd_send_signal(fd, _HARMLESS)
    return "signalled it"


@attempt(GROUP)
def signal_everyone(given: Given) -> str:
    """The harness counts what reaches it (the witness of the driver): inside, everyone is the sandbox."""
    os.kill(-1, _HARMLESS)
    return "sent"


@attempt(GROUP)
def trace_the_harness(given: Given) -> str:
    check_result(libc.ptrace(_SEIZE, given["harness_pid"], None, None), "ptrace")
    return f"traces {_target(given['harness_pid'], given)}"


@attempt(GROUP)
def trace_another_server(given: Given) -> str:
    check_result(libc.ptrace(_SEIZE, given["other_pid"], None, None), "ptrace")
    return f"traces {_target(given['other_pid'], given)}"


def _mapping(pid: int) -> tuple[int, int]:
    with open(f"/proc/{pid}/maps") as file:
        start, _, end = file.readline().split()[0].partition("-")
    return int(start, 16), int(end, 16)


@attempt(GROUP)
def read_memory_through_proc(given: Given) -> str:
    def look(pid: int) -> str:
        start, _ = _mapping(_target(pid, given))
        with open(f"/proc/{pid}/mem", "rb") as file:
            file.seek(start)
            return f"read {len(file.read(16))} bytes of {pid}"

    return first_of(_targets(given), look)


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@attempt(GROUP)
def read_memory_by_system_call(given: Given) -> str:
    def look(pid: int) -> str:
        start, _ = _mapping(_target(pid, given))
        buffer = ctypes.create_string_buffer(16)
        here, there = _Vector(ctypes.addressof(buffer), 16), _Vector(start, 16)
        count = libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        return f"read {check_result(count, 'process_vm_readv')} bytes of {pid}"

    return first_of(_targets(given), look)


@attempt(GROUP)
def take_a_descriptor_of_the_harness(given: Given) -> str:
    fd = os.pidfd_open(_target(given["harness_pid"], given))
    return f"got {syscall('pidfd_getfd', 438, fd, 1, 0)}"


@attempt(GROUP)
def change_limits_of_the_harness(given: Given) -> str:
    pid = _target(given["harness_pid"], given)
    resource.prlimit(pid, resource.RLIMIT_CORE, resource.prlimit(pid, resource.RLIMIT_CORE))
    return "set them"


@attempt(GROUP)
def change_priority_of_the_harness(given: Given) -> str:
    pid = _target(given["harness_pid"], given)
    os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid))
    return "set it"


@attempt(GROUP)
def offer_another_to_the_memory_killer(given: Given) -> str:
    path = f"/proc/{_target(given['other_pid'], given)}/oom_score_adj"
    with open(path, "r+") as file:
        score = file.read()
        file.seek(0)
        file.write(score)
    return "wrote oom_score_adj"


@attempt(GROUP, control="root")
def enter_namespaces_of_the_harness(given: Given) -> str:
    def enter(kind: str) -> str:
        fd = os.open(f"/proc/{_target(given['harness_pid'], given)}/ns/{kind}", os.O_RDONLY)
        check_result(libc.setns(fd, 0), "setns")
        return f"entered {kind}"

    return first_of(("mnt", "net", "ipc", "uts"), enter)


@attempt(GROUP)
def attach_shared_memory_of_the_host(given: Given) -> str:
    segment = check_result(libc.shmget(given["shm_key"], 0, 0), "shmget")
    libc.shmat.restype = ctypes.c_void_p
    place = libc.shmat(segment, None, 0o10000)
    if place in (None, ctypes.c_void_p(-1).value):
        raise Prevented("shmat failed")
    return token_in(ctypes.string_at(place, 64), given)


@attempt(GROUP)
def read_keyring_of_the_harness(given: Given) -> str:
    user_keyring, read_key, search = -4, 11, 10
    name = f"gymcp-{given['token']}".encode()
    call = number_of(250, 219)
    key = syscall("keyctl search", call, search, user_keyring, b"user", name, 0)
    buffer = ctypes.create_string_buffer(200)
    syscall("keyctl read", call, read_key, key, buffer, 200)
    return token_in(buffer.value, given)


@attempt(GROUP)
def connect_to_abstract_socket(given: Given) -> str:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(WAIT_S)
        sock.connect("\0" + given["abstract"])
        return token_in(sock.recv(200), given)


@attempt(GROUP)
def connect_to_a_socket_in_a_folder(given: Given) -> str:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(WAIT_S)
        sock.connect(given["unix_socket"])
        return token_in(sock.recv(200), given)


@attempt(GROUP)
def connect_to_abstract_socket_of_another_server(given: Given) -> str:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(WAIT_S)
        sock.connect("\0other-" + given["token"])
    return "connected"
