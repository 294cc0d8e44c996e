"""Packages that a native server declares: locked to the byte, installed apart, imported inside the sandbox alone."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from cli_runner import gymcp
from local_wheels import write_index, write_wheel
from stderr_lines import errors

from gymcp.errors import ConfigError, IntegrityError, UsageError
from gymcp.mcp_servers.forkserver.process import ForkedProcess
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.packages.commands import parse_command
from gymcp.mcp_servers.packages.garbage_collection import find_unused_servers
from gymcp.mcp_servers.packages.install import ensure_installed, folder_of, resolve, with_tree
from gymcp.mcp_servers.packages.locked_server import check_server, lock_server, locked_server, to_install_request
from gymcp.mcp_servers.packages.lockfile import LockedServer, read_lock, write_lock
from gymcp.mcp_servers.packages.native_packages import locked_packages
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import ToolCall


class Crier:
    """Shouts with a package that only the sandbox has."""

    def __init__(self, text: str = "hear") -> None:
        self.text = text

    def shout(self) -> str:
        """Shout the text."""
        from loudly import shout  # type: ignore[import-not-found]  # noqa: PLC0415

        self.text = shout(self.text)
        return self.text


class Stranger:
    """Imports what nobody declared."""

    def count(self) -> str:
        """Count."""
        import numpy  # noqa: PLC0415

        return str(numpy.e)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only package index that uv searches, and a cache of the test's own."""
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "index"))
    return write_index(tmp_path / "index")


@pytest.fixture
def lock(index: Path, tmp_path: Path) -> Path:
    """A lock with the packages of the server `crier`."""
    return lock_packages(tmp_path / "servers.lock", "loudly==2.0")


def lock_packages(file: Path, *requirements: str) -> Path:
    write_lock(file, {"crier": with_tree(resolve(parse_command(("pip", "install", *requirements), name="crier")))})
    return file


def entry(lock: Path) -> LockedServer:
    return read_lock(lock)["crier"]


def ask_to_shout(spec: ServerSpec, sandbox: Sandbox) -> str:
    async def run() -> str:
        async with open_session(spec, sandbox, initial_state={"text": "Hear"}, seed=0) as session:
            result = await session.call_tool(ToolCall(id="c", name="shout", arguments={}), {}, timeout_s=20)
            assert not result.is_error, result.content
            return result.content

    return asyncio.run(run())


def test_a_class_imports_its_packages_inside_the_sandbox(lock: Path, bwrap: Sandbox) -> None:
    """Package loudly 2.0 needs softly, which is locked and installed with it; this process has neither."""
    server = native_server("crier", Crier, packages=locked_packages("crier", "loudly==2.0", lock=lock))
    assert ask_to_shout(server, bwrap) == "HEAR!!"
    assert [package.name for package in entry(lock).packages] == ["loudly", "softly"]
    with pytest.raises(ModuleNotFoundError):
        Crier().shout()


def test_a_server_with_packages_is_forked_like_any_native_server(lock: Path, bwrap: Sandbox) -> None:
    server = native_server("crier", Crier, packages=locked_packages("crier", "loudly==2.0", lock=lock), start="fork")

    async def run() -> tuple[bool, list[str]]:
        async with open_warm_sandbox(get_sandbox("bwrap")) as warm:
            said = []
            for _ in range(2):
                async with open_session(server, warm, initial_state={"text": "Hear"}, seed=0) as session:
                    result = await session.call_tool(ToolCall(id="c", name="shout", arguments={}), {}, timeout_s=20)
                    said.append(result.content)
                    forked = isinstance(session.process, ForkedProcess)
            return forked, said

    assert asyncio.run(run()) == (True, ["HEAR!!", "HEAR!!"])


def test_an_absent_lock_says_the_command_that_makes_it(index: Path, tmp_path: Path) -> None:
    lock = tmp_path / "my lock" / "servers.lock"
    with pytest.raises(ConfigError) as caught:
        locked_packages("crier", "Loudly==2.0", "softly==1.0", lock=lock)
    said = str(caught.value)
    assert said == (
        f"server 'crier': its packages are not in the lock '{lock}'; lock them with:"
        f" gymcp servers add 'pip install loudly==2.0 softly==1.0' --name crier --lock '{lock}'"
    )
    words = shlex.split(said.partition("lock them with: ")[2])
    lock.parent.mkdir()
    lock_packages(lock, *words[3].split()[2:])
    assert (locked_packages("crier", "loudly==2.0", "softly==1.0", lock=lock) / "softly.py").is_file()


def test_packages_that_are_not_the_declared_ones_are_refused(lock: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        locked_packages("crier", "loudly==1.0", lock=lock)
    assert str(caught.value) == (
        "server 'crier': declares loudly==1.0, but locked are loudly==2.0; run:"
        f" gymcp servers add 'pip install loudly==1.0' --name crier --lock {lock}"
    )


def test_a_package_that_was_published_again_is_refused(
    lock: Path, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock has the hash of each file, so another file of the same name and version is not installed."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "empty"))
    write_wheel(index, "softly", "1.0", {"softly.py": "def whisper(text):\n    return 'evil'\n"})
    shutil.rmtree(folder_of(entry(lock)))
    with pytest.raises(IntegrityError, match="the index has other files than the lock"):
        ensure_installed(entry(lock))


def test_an_installed_file_that_changed_stops_the_server(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymcp.mcp_servers.packages.install._verified", set())
    (file,) = ensure_installed(entry(lock)).glob("venv/lib/*/site-packages/softly.py")
    file.chmod(0o644)
    file.write_text("def whisper(text):\n    return 'evil'\n")
    with pytest.raises(IntegrityError, match=r"installed file '.*softly\.py' has changed; run: gymcp servers sync"):
        locked_packages("crier", "loudly==2.0", lock=lock)


def test_locking_again_gives_the_same_entry(lock: Path, bwrap: Sandbox) -> None:
    before = entry(lock)
    assert lock_server(to_install_request(before), bwrap) == before
    assert check_server(before, bwrap) == ()
    assert before.command == ("pip", "install", "loudly==2.0")


def test_an_open_version_is_locked_as_the_newest(index: Path) -> None:
    found = resolve(parse_command("pip install loudly", name="crier"))
    assert found.command == ("pip", "install", "loudly==2.0")


def test_clean_keeps_packages_that_a_lock_names(lock: Path) -> None:
    folder = folder_of(entry(lock))
    assert find_unused_servers([lock]) == []
    lock.write_text("format = 1\n")
    assert [unused.folder for unused in find_unused_servers([lock])] == [folder]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("pip install gymcp-nobody-has-this==1.0", "server 'crier': resolve: .*gymcp-nobody-has-this"),
        ("pip install sourced==1.0", "to build it in a sandbox add --build sourced"),
        ("pip install loudly==2.0 clash==1.0", "server 'crier': resolve: .*(conflict|unsatisfiable|incompatible)"),
        ("pip install loudly==9.9", "server 'crier': resolve: .*loudly"),
    ],
)
def test_unavailable_packages_are_one_line(command: str, said: str, index: Path) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(parse_command(command, name="crier"))
    assert re.search(said, str(caught.value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("pip install loudly>=2", "'loudly>=2' is not PACKAGE==VERSION of a package index"),
        ("pip install loudly==2.*", "is not PACKAGE==VERSION of a package index"),
        ("pip install ./loudly", "'./loudly' is not PACKAGE==VERSION: "),
        ("pip install 'loudly @ https://h.example/l.whl'", "is not PACKAGE==VERSION of a package index"),
        ("pip install 'loudly==2.0; python_version > \"3\"'", "is not PACKAGE==VERSION of a package index"),
        ("pip install -r all.txt", "pip option '-r' is not understood"),
        ("pip install", "of pip only 'pip install PACKAGE==VERSION ...' can be locked"),
        ("pip uninstall loudly", "of pip only 'pip install PACKAGE==VERSION ...' can be locked"),
    ],
)
def test_an_inexact_package_is_refused_before_anything_is_fetched(command: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_command(command, name="crier")
    assert said in str(caught.value)


def test_packages_need_the_name_of_their_server() -> None:
    with pytest.raises(ConfigError, match="for which native server"):
        parse_command("pip install loudly==2.0")
    with pytest.raises(ConfigError, match="packages take no env and no http"):
        parse_command("pip install loudly==2.0", name="crier", http="3000")


@pytest.mark.parametrize(
    ("requirements", "said"),
    [
        ((), "declares no package"),
        (("loudly",), "'loudly' is not PACKAGE==VERSION"),
        (("loudly==2.0", "=="), "'==' is not PACKAGE==VERSION"),
    ],
)
def test_declarations_are_exact(requirements: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        locked_packages("crier", *requirements, lock=tmp_path / "servers.lock")
    assert said in str(caught.value)


def test_a_class_may_import_only_what_it_declares(lock: Path) -> None:
    packages = locked_packages("crier", "loudly==2.0", lock=lock)
    with pytest.raises(ConfigError, match=r"class 'Stranger' imports numpy, .*declare the package that has it"):
        native_server("crier", Stranger, packages=packages)
    with pytest.raises(ConfigError, match="class 'Crier' imports loudly, "):
        native_server("crier", Crier)


def test_packages_are_no_server_by_themselves(lock: Path) -> None:
    with pytest.raises(ConfigError, match=r"locked are the packages of a native server: write native_server\('crier'"):
        locked_server("crier", lock=lock)


def test_a_server_is_not_the_packages_of_another(lock: Path) -> None:
    write_lock(lock, {"crier": replace(entry(lock), runtime="python", command=("uvx", "loudly==2.0"))})
    with pytest.raises(ConfigError, match=r"has another server under this name: uvx loudly==2\.0"):
        locked_packages("crier", "loudly==2.0", lock=lock)


ENVIRONMENT = """
from pathlib import Path
from gymcp.envs import EnvSpec
from gymcp.evaluators.graders import final_state_equals
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.packages.native_packages import locked_packages
from gymcp.types import GoldTurn, Suite, Task, ToolCall

LOCK = Path(__file__).with_name("servers.lock")

class Crier:
    def __init__(self, text: str) -> None:
        self.text = text

    def shout(self) -> str:
        import loudly
        self.text = loudly.shout(self.text)
        return self.text

CALL = ToolCall(id="c", name="shout", arguments={})
TASK = Task(id="t", prompts=("Shout.",), initial_state={"text": "Hear"}, target={"text": "HEAR!!"},
            gold=(GoldTurn(calls=(CALL,), final_text="Done."),), last_necessary=(0, 0))
ENV = EnvSpec(
    name="crier",
    servers=lambda: (native_server("crier", Crier, packages=locked_packages("crier", "loudly==2.0", lock=LOCK)),),
    suite=Suite(name="crier", version="1", tasks=(TASK,)),
    grade=final_state_equals(),
)
"""


def test_an_environment_with_packages_passes_its_checks_once_they_are_locked(index: Path, tmp_path: Path) -> None:
    """The first error is one line, and says the command after which everything works."""
    file = tmp_path / "crier.py"
    file.write_text(ENVIRONMENT)
    missing = gymcp("check", "crier.py", cwd=tmp_path)
    assert (missing.returncode, len(errors(missing.stderr))) == (2, 1), missing.stderr
    command = shlex.split(missing.stderr.partition("lock them with: ")[2].partition("; gymcp --debug")[0])
    assert command[:3] == ["gymcp", "servers", "add"]
    added = gymcp(*command[1:], cwd=tmp_path)
    assert (added.returncode, added.stdout) == (
        0,
        "crier: locked loudly 2.0, 2 packages of a native server: loudly==2.0; start: as declared\n",
    ), added.stderr
    passed = gymcp("check", "crier.py", cwd=tmp_path)
    assert (passed.returncode, passed.stdout.count("pass")) == (0, 9), passed.stdout
    checked = gymcp("servers", "check", cwd=tmp_path)
    assert checked.stdout.endswith("loudly==2.0: files and version are as locked\n")
    for verb in ("lock", "sync", "list"):
        assert gymcp("servers", verb, cwd=tmp_path).returncode == 0, verb
    file.write_text(ENVIRONMENT.replace("loudly==2.0", "loudly==1.0"))
    drifted = gymcp("check", "crier.py", cwd=tmp_path)
    assert (drifted.returncode, len(errors(drifted.stderr))) == (2, 1), drifted.stderr
    assert "declares loudly==1.0, but locked are loudly==2.0; run: gymcp servers add" in drifted.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pip install loudly==2.0",), "for which native server? give the name it has there with --name"),
        (("pip install gymcp-nobody-has-this==1.0", "--name", "crier"), "gymcp-nobody-has-this"),
        (("pip install sourced==1.0", "--name", "crier"), "to build it in a sandbox add --build sourced"),
        (("pip install loudly==2.0 clash==1.0", "--name", "crier"), "server 'crier': resolve: "),
        (("pip install loudly==2.0", "--name", "../crier"), "server name '../crier': letters"),
        (("pip install loudly==2.0", "--name", "crier", "--http", "3000"), "packages take no env and no http"),
    ],
)
def test_an_unlockable_package_is_one_line_and_leaves_no_lock(
    words: tuple[str, ...], said: str, index: Path, tmp_path: Path
) -> None:
    done = gymcp("servers", "add", *words, cwd=tmp_path)
    assert (done.returncode, len(errors(done.stderr))) == (2, 1), done.stderr
    assert said in done.stderr
    assert not (tmp_path / "servers.lock").exists()
