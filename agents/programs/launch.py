"""The command of a program as it runs in its sandbox, and what it may see there."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import gymcp
from gymcp.agents.programs.folder import RELAY_FOLDER, Offer, fill_placeholders, make_environment, write_files
from gymcp.agents.programs.gateway import SOCKET_NAME, Gateway
from gymcp.agents.programs.settings import ProgramSettings, names_path
from gymcp.envs.catalog import list_own_files
from gymcp.errors import ConfigError
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.programs import gateway_relay, stdio_relay
from gymcp.mcp_servers.sandbox import Launch, Mount
from gymcp.paths import gymcp_home
from gymcp.scratch import scratch_folder

SOCKET_FOLDER = PurePosixPath("/srv/gateway")
RELAY_PORT = 8642
"""Port of the gateway on the loopback of a sandbox."""
_PYTHON = re.compile(r"python[0-9.]*")
_INTERPRETER = re.compile(rf"{_PYTHON.pattern}|node|bash|sh")
_SCRIPT = re.compile(r".+\.(py|pyz|js|mjs|cjs|ts|sh)")
_WITH_VALUE = re.compile(r"-[WXrop]|--(import|require|with|python|project|extra|group)")
"""Options of interpreters and of ``uv run`` whose value is the next word."""
_WITHOUT_SCRIPT = re.compile(r"-[A-Za-z]*[cm]|--module|--directory|--eval|--print")
"""Options after which no script follows, or one that is in another folder."""
_SYSTEM = Path("/usr")
"""Prefix of the programs that every sandbox has."""
_MIN_PARTS = 3
"""Parts of the path of a folder that programs may see: ``/home/me``, but not ``/home``."""
BYTE_CODE = "__pycache__"
"""Folder beside modules, hidden with them: byte code holds the solutions that its module holds."""
_START = f"import sys; sys.path.insert(0, {str(RELAY_FOLDER)!r}); from server_main import main; main()"


def make_launch(settings: ProgramSettings, gateway: Gateway, token: str, workspace: Path, prompt: str) -> Launch:
    """The launch of a program in one episode; its files are written to the workspace. Raises ConfigError."""
    confined = settings.sandbox != "none"
    offer = Offer(
        address=f"http://127.0.0.1:{RELAY_PORT if confined else gateway.port}",
        token=token,
        model=gateway.model,
        folder="/workspace" if confined else str(workspace),
        confined=confined,
    )
    write_files(workspace, offer, prompt)
    program, mounts = find_program(settings)
    argv = tuple(fill_placeholders(word, offer, prompt) for word in program)
    if confined:
        relay = native_server("relay", gateway_relay.__name__, modules=(stdio_relay.__name__,)).mounts[0].source
        mounts = (
            *mounts,
            Mount(source=relay, target=RELAY_FOLDER),
            Mount(source=gateway.folder, target=SOCKET_FOLDER),
        )
        socket = str(SOCKET_FOLDER / SOCKET_NAME)
        argv = ("python3", "-I", "-S", "-B", "-c", _START, str(RELAY_PORT), socket, *argv)
    return Launch(
        argv=argv,
        env=make_environment(offer),
        secrets={token: "<key of the episode>"},
        mounts=mounts if confined else (),
        workspace=workspace,
        loopback=confined,
        limits=settings.limits,
    )


# --------------------------------------------------------------------------------------------------- what it may see


def find_program(settings: ProgramSettings) -> tuple[tuple[str, ...], tuple[Mount, ...]]:
    """The command with absolute paths, and the mounts that it needs: the program, its virtualenv, files that it names.

    gymcp itself, the environment's files and `ProgramSettings.hidden` are hidden, because they hold the solutions of
    tasks. Raises ConfigError.
    """
    first = settings.argv[0]
    found = shutil.which(first)
    if found is None:
        raise ConfigError(f"agent 'cmd:{first}': {_explain_absence(first)}")
    script = find_script(settings.argv)
    if script is not None and not names_path(script):
        raise ConfigError(f"agent 'cmd:{' '.join(settings.argv)}': no such file: {script} (in {Path.cwd()})")
    program, paths = _find_files(Path(found).absolute())
    argv = [str(program)]
    for word in settings.argv[1:]:
        if not word.startswith("-") and names_path(word):
            path = Path(word).absolute()
            argv.append(str(path))
            paths.append(path)
        else:
            argv.append(word)
    for path in settings.mounts:
        if not path.exists():
            raise ConfigError(f"agent 'cmd:{first}': it cannot be shown {path}: no such file or folder")
        paths.append(path.absolute())
    if settings.sandbox == "none":
        return tuple(argv), ()
    return tuple(argv), tuple(_mounts(paths, [*settings.hidden, *list_own_files(settings.env)]))


def _explain_absence(program: str) -> str:
    """Reason why the first word of a command is no program, and what to do."""
    if not names_path(program):
        return "no such program: give its path, or install it"
    if Path(program).is_dir():
        return "it is a folder: name the program in it"
    if "/" not in program:
        return f"no such program; to run the file of that name in this folder: cmd:./{program}"
    return f"it may not be executed: chmod +x {program}, or write its interpreter before it, as cmd:python3 {program}"


def find_script(argv: Sequence[str]) -> str | None:
    """The script that an interpreter, or ``uv run``, is to run; None if the command names none that can be told."""
    name, words = Path(argv[0]).name, list(argv[1:])
    if name == "uv" and words[:1] == ["run"]:
        words = words[1:]
    elif not _INTERPRETER.fullmatch(name):
        return None
    while words and words[0].startswith("-"):
        if _WITHOUT_SCRIPT.fullmatch(words[0]) or (name == "node" and words[0] in ("-e", "-p", "-pe")):
            return None
        words = words[2 if _WITH_VALUE.fullmatch(words[0]) else 1 :]
    if name == "uv" and words and _INTERPRETER.fullmatch(Path(words[0]).name):
        return find_script(words)
    if not words or not _SCRIPT.fullmatch(words[0]) or "{" in words[0] or "://" in words[0]:
        return None
    return words[0]


def _find_files(program: Path) -> tuple[Path, list[Path]]:
    """The program itself, and the files and folders that it consists of: its interpreter and packages, if known.

    Raises ConfigError for a Python that does not run.
    """
    python = program if _PYTHON.fullmatch(program.name) else _python_of(program)
    if python is not None:
        executable, *prefixes = _ask_python(python)
        paths = [path for path in map(Path, prefixes) if path != _SYSTEM]
        return (Path(executable) if python == program else program), paths
    target = program.resolve()
    paths = [path for path in (program, target) if not path.is_relative_to(_SYSTEM / "bin")]
    if "node_modules" in target.parts:
        paths.append(Path(*target.parts[: target.parts.index("node_modules") + 1]))
    return program, paths


def _python_of(program: Path) -> Path | None:
    """The Python of the virtualenv that holds the program; None if none does."""
    folder = next((folder for folder in program.parents if (folder / "pyvenv.cfg").is_file()), None)
    return None if folder is None else folder / "bin" / "python"


@functools.cache
def _ask_python(python: Path) -> tuple[str, ...]:
    """(executable, prefix, prefix of the installation behind a virtualenv). Raises ConfigError."""
    code = "import json, sys; print(json.dumps([sys.executable, sys.prefix, sys.base_prefix]))"
    try:
        done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, timeout=30, check=True)
        return tuple(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ConfigError(f"agent: {python} does not run: {error}") from error


def _mounts(paths: list[Path], hidden: Iterable[Path]) -> Iterator[Mount]:
    """Read-only mounts at the same paths, without what is below another one, then empty ones over what is hidden.

    Raises ConfigError for a folder that holds too much.
    """
    tops = sorted({path for path in paths if not any(path != other and path.is_relative_to(other) for other in paths)})
    for path in tops:
        if len(path.parts) < _MIN_PARTS or path == Path.home():
            raise ConfigError(f"agent: {path} is too much to show to a program: name a folder of its own")
        yield Mount(source=path, target=PurePosixPath(path))
    own = {path.resolve() for path in (Path(gymcp.__file__).parent, *_list_rooms(), gymcp_home(), *hidden)}
    own |= {path.parent / BYTE_CODE for path in own if path.suffix == ".py"}
    outermost = sorted(path for path in own if own.isdisjoint(path.parents))
    for top in tops:
        real = top.resolve()
        for path in outermost:
            if path.exists() and path.is_relative_to(real):
                yield Mount(source=_nothing(path), target=PurePosixPath(top / path.relative_to(real)))


def _list_rooms() -> Iterator[Path]:
    """The folders that gymcp's package links to, in a checkout."""
    for path in Path(gymcp.__file__).parent.iterdir():
        if path.is_symlink():
            yield path.resolve()


def _nothing(like: Path) -> Path:
    """An empty folder, or an empty file."""
    folder = scratch_folder() / "nothing"
    folder.mkdir(mode=0o755, exist_ok=True)
    folder.chmod(0o755)
    if like.is_dir():
        return folder
    file = scratch_folder() / "empty-file"
    file.touch(mode=0o644)
    file.chmod(0o644)
    return file
