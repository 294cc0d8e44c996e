"""Attempts on the kernel: mounts, namespaces, devices, settings, calls. Runs inside; standard library only.

What would change the machine as root unconfined happens in a mount namespace of the attempt's own, or stops at a file
opened for writing.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import stat
import struct

from inside import OPENED_AT_IMPORT, Given, Prevented, attempt, check_result, first_of, libc, number_of, syscall

GROUP = "kernel"
_NEW_NS, _NEW_USER, _NEW_NET = 0x20000, 0x10000000, 0x40000000
_REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
_TIOCSTI = 0x5412
_NULL = None


def _own_mounts() -> None:
    """So that root unconfined changes nothing but its own view; inside a sandbox it is refused, and that is that."""
    if libc.unshare(_NEW_NS) == 0:
        libc.mount(b"none", b"/", _NULL, _RECURSIVE | _PRIVATE, _NULL)


def _folder(given: Given) -> bytes:
    path = f"{given['name']}-mount"
    os.makedirs(path, exist_ok=True)
    return path.encode()


def _open_to_write(paths: list[str]) -> str:
    def open_it(path: str) -> str:
        os.close(os.open(path, os.O_WRONLY))
        return f"opened {path} for writing"

    return first_of(paths, open_it)


@attempt(GROUP, control="root")
def mount_a_file_system(given: Given) -> str:
    _own_mounts()
    check_result(libc.mount(b"tmpfs", _folder(given), b"tmpfs", 0, _NULL), "mount")
    return "mounted"


@attempt(GROUP, control="root")
def mount_by_the_new_calls(given: Given) -> str:
    return f"fsopen {syscall('fsopen', 430, b'tmpfs', 0)}"


@attempt(GROUP, control="root")
def bind_the_host(given: Given) -> str:
    _own_mounts()
    check_result(libc.mount(b"/", _folder(given), _NULL, _BIND | _RECURSIVE, _NULL), "mount --rbind")
    return "bound"


@attempt(GROUP, control="root")
def make_the_root_writable(given: Given) -> str:
    _own_mounts()
    check_result(libc.mount(b"none", b"/", _NULL, _REMOUNT | _BIND, _NULL), "remount")
    return "mounted anew"


@attempt(GROUP, control="root")
def uncover_what_is_masked(given: Given) -> str:
    _own_mounts()
    check_result(libc.umount2(b"/proc", 2), "umount")
    return "unmounted /proc"


@attempt(GROUP, control="root")
def change_the_root(given: Given) -> str:
    _own_mounts()
    folder = _folder(given)
    check_result(libc.mount(b"tmpfs", folder, b"tmpfs", 0, _NULL), "mount")
    os.mkdir(folder + b"/old")
    check_result(libc.pivot_root(folder, folder + b"/old"), "pivot_root")
    return "another root"


@attempt(GROUP)
def make_a_user_namespace(given: Given) -> str:
    check_result(libc.unshare(_NEW_USER), "unshare")
    return "unshared"


@attempt(GROUP)
def make_a_user_namespace_by_clone(given: Given) -> str:
    def by_clone() -> str:
        pid = syscall("clone", number_of(56, 220), _NEW_USER | 17, 0, 0, 0, 0)
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        return "cloned"

    def by_clone3() -> str:
        arguments = struct.pack("=QQQQQ", _NEW_USER, 0, 0, 0, 17) + bytes(24)
        pid = syscall("clone3", 435, ctypes.create_string_buffer(arguments, 64), 64)
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        return "cloned"

    return first_of((by_clone, by_clone3), lambda way: way())


@attempt(GROUP, control="root")
def make_a_mount_namespace(given: Given) -> str:
    check_result(libc.unshare(_NEW_NS), "unshare")
    return "unshared"


@attempt(GROUP, control="root")
def make_a_network_namespace(given: Given) -> str:
    check_result(libc.unshare(_NEW_NET), "unshare")
    return "unshared"


@attempt(GROUP, control="root")
def make_device_nodes(given: Given) -> str:
    path = f"{given['name']}-disk"
    os.mknod(path, 0o60600, os.makedev(8, 0))
    os.unlink(path)
    return "made"


@attempt(GROUP, control="root")
def open_devices_of_the_host(given: Given) -> str:
    def open_it(name: str) -> str:
        os.close(os.open(f"/dev/{name}", os.O_RDONLY | os.O_NONBLOCK))
        return f"opened /dev/{name}"

    names = ("kmsg", "mem", "port", "kvm", "vda", "sda", "nvme0n1", "loop-control", "fuse", "net/tun")
    return first_of(names, open_it)


@attempt(GROUP, control="root")
def change_modes_of_devices(given: Given) -> str:
    def change(path: str) -> str:
        os.chmod(path, os.stat(path).st_mode & 0o7777)  # to what it is: root unconfined changes nothing
        return f"set the mode of {path}"

    kinds = (stat.S_ISCHR, stat.S_ISBLK)
    paths = [f"/dev/{name}" for name in sorted(os.listdir("/dev"))]
    return first_of([path for path in paths if any(is_kind(os.lstat(path).st_mode) for is_kind in kinds)], change)


@attempt(GROUP, control="root")
def inject_into_the_harness_terminal(given: Given) -> str:
    terminal = os.open(given["terminal"], os.O_RDWR | os.O_NOCTTY)
    fcntl.ioctl(terminal, _TIOCSTI, b"x")
    return "typed into it"


@attempt(GROUP)
def write_to_the_harness_terminal(given: Given) -> str:
    with open(given["terminal"], "w") as terminal:
        terminal.write(".")
    return "wrote to it"


@attempt(GROUP, control="root")
def set_the_core_pattern(given: Given) -> str:
    return _open_to_write(["/proc/sys/kernel/core_pattern"])


@attempt(GROUP, control="root")
def change_settings_of_the_kernel(given: Given) -> str:
    return _open_to_write(["/proc/sysrq-trigger", "/proc/sys/kernel/hostname", "/proc/sys/vm/overcommit_memory"])


@attempt(GROUP, control="root")
def open_settings_from_an_import(given: Given) -> str:
    """Use a descriptor opened at import: in a forked server, by another process with other rights and /proc."""
    if not OPENED_AT_IMPORT:
        raise Prevented("none could be opened when this was imported")
    return f"opened {OPENED_AT_IMPORT[0]} for writing"


@attempt(GROUP, control="root")
def change_settings_of_devices(given: Given) -> str:
    return _open_to_write(
        ["/sys/kernel/mm/transparent_hugepage/enabled", "/sys/kernel/uevent_helper", "/sys/power/state"]
    )


@attempt(GROUP, control="root")
def leave_the_control_group(given: Given) -> str:
    own = "/sys/fs/cgroup"
    return _open_to_write([f"{own}/cgroup.procs", f"{own}/pids/cgroup.procs", f"{own}/memory/cgroup.procs"])


@attempt(GROUP, control="root")
def read_the_kernels_log(given: Given) -> str:
    buffer = ctypes.create_string_buffer(64)
    return f"{check_result(libc.klogctl(3, buffer, 64), 'syslog')} bytes"


@attempt(GROUP, control="root")
def read_the_kernels_memory(given: Given) -> str:
    def look(name: str) -> str:
        with open(f"/proc/{name}", "rb") as file:
            return f"{len(file.read(16))} bytes of {name}"

    return first_of(("kcore", "kpageflags", "vmallocinfo", "slabinfo"), look)


@attempt(GROUP, control="root")
def become_root(given: Given) -> str:
    os.setuid(0)
    return f"user {os.getuid()}"


@attempt(GROUP, control="root")
def rename_the_machine(given: Given) -> str:
    name = socket.gethostname().encode()
    check_result(libc.sethostname(name, len(name)), "sethostname")
    return "renamed"


@attempt(GROUP, control="root")
def watch_every_file(given: Given) -> str:
    return f"fanotify {syscall('fanotify_init', number_of(300, 262), 4, 0)}"


@attempt(GROUP, control="root")
def load_a_program_into_the_kernel(given: Given) -> str:
    wanted = struct.pack("=IIIII", 2, 4, 4, 1, 0) + bytes(100)  # an array map
    return f"bpf {syscall('bpf', number_of(321, 280), 0, ctypes.create_string_buffer(wanted, 120), 120)}"


@attempt(GROUP)
def queue_work_for_the_kernel(given: Given) -> str:
    return f"io_uring {syscall('io_uring_setup', 425, 1, ctypes.create_string_buffer(120))}"


@attempt(GROUP)
def hold_up_the_kernel_at_a_page(given: Given) -> str:
    return f"userfaultfd {syscall('userfaultfd', number_of(323, 282), 1)}"


@attempt(GROUP)
def count_events_of_the_machine(given: Given) -> str:
    software, task_clock, exclude = 1, 1, 0b1100000  # neither the kernel nor the hypervisor
    wanted = struct.pack("=IIQQQQQ", software, 112, task_clock, 0, 0, 0, exclude) + bytes(64)
    attributes = ctypes.create_string_buffer(wanted, 112)
    return f"perf {syscall('perf_event_open', number_of(298, 241), attributes, 0, -1, -1, 0)}"


@attempt(GROUP)
def turn_off_random_addresses(given: Given) -> str:
    check_result(libc.personality(0x0040000), "personality")
    return "turned off"


@attempt(GROUP)
def store_a_key_for_everyone(given: Given) -> str:
    """In the user's keyring, which all processes of the user share."""
    name = f"planted-{given['token']}".encode()
    key = syscall("add_key", number_of(248, 217), b"user", name, b"x", 1, -4)
    with contextlib.suppress(OSError):
        syscall("keyctl unlink", number_of(250, 219), 9, key, -4)
    return f"key {key}"


@attempt(GROUP)
def hold_up_who_opens_a_file(given: Given) -> str:
    """A lease: the kernel lets another process's open() wait for the holder, 45 s by default."""

    def lease(path: str) -> str:
        fd = os.open(path, os.O_RDONLY)
        try:
            return f"leased {path}: {fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)}"
        finally:
            os.close(fd)

    return first_of(("/usr/bin/zipdetails", *_program_files(), _own_file(given)), lease)


def _program_files() -> list[str]:
    folder = os.path.dirname(os.path.abspath(__file__))
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".py")]


def _own_file(given: Given) -> str:
    path = f"{os.environ['TMPDIR']}/{given['name']}-own"
    with open(path, "w") as file:
        file.write("x")
    return path


@attempt(GROUP)
def be_told_what_happens_in_a_folder(given: Given) -> str:
    def be_told(path: str) -> str:
        fd = os.open(path, os.O_RDONLY)
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        try:
            return f"told of {path}: {fcntl.fcntl(fd, fcntl.F_NOTIFY, fcntl.DN_ACCESS)}"
        finally:
            os.close(fd)

    return first_of(("/usr/bin", os.environ["TMPDIR"]), be_told)


@attempt(GROUP)
def watch_files_that_the_host_uses(given: Given) -> str:
    watch = syscall("inotify_init1", number_of(294, 26), 0)
    return f"watch {check_result(libc.inotify_add_watch(watch, b'/usr/bin', 0x20), 'inotify_add_watch')}"


@attempt(GROUP)
def have_a_file_signal_others(given: Given) -> str:
    reader, _ = os.pipe()
    return f"owner {fcntl.fcntl(reader, fcntl.F_SETOWN, os.getpid())}"


@attempt(GROUP)
def enlarge_pipes(given: Given) -> str:
    """A user has 64 MB of them, and small ones from then on."""
    reader, _ = os.pipe()
    return f"{fcntl.fcntl(reader, 1031, 1 << 20)} bytes"


@attempt(GROUP)
def change_the_line_discipline(given: Given) -> str:
    """Change that of an own terminal: an unlisted command of a listed call, which loads kernel modules."""
    _, terminal = os.openpty()
    fcntl.ioctl(terminal, 0x5423, struct.pack("=i", 0))
    return "set"


@attempt(GROUP)
def give_a_process_an_unlisted_right(given: Given) -> str:
    check_result(libc.prctl(31, 0, 0, 0, 0), "prctl")  # counters of performance off: allowed to every process
    return "given"


@attempt(GROUP)
def take_what_the_machine_queues(given: Given) -> str:
    context = ctypes.c_ulong(0)
    return f"queue {syscall('io_setup', number_of(206, 0), 128, ctypes.byref(context))}"


@attempt(GROUP)
def take_the_users_messages(given: Given) -> str:
    name = f"gymcp-{given['token'][:12]}".encode()
    queue = syscall("mq_open", number_of(240, 180), name, os.O_CREAT | os.O_RDWR, 0o600, _NULL)
    syscall("mq_unlink", number_of(241, 181), name)
    return f"queue {queue}"


@attempt(GROUP)
def lock_memory_of_the_user(given: Given) -> str:
    """A segment that is never swapped out: the kernel lets all processes of a user lock some megabytes together."""
    lock, remove = 11, 0
    segment = check_result(libc.shmget(0, 4096, 0o1600), "shmget")
    try:
        check_result(libc.shmctl(segment, lock, None), "shmctl")
    finally:
        libc.shmctl(segment, remove, None)
    return "locked"
