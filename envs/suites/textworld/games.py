"""Games by TextWorld, and what solves them: made in a sandbox by its own code, and kept in gymcp's cache.

The packages are locked by their hashes and installed as wheels. Of TextWorld's closure what plays compiled games
(spaCy, a Z-machine) is left out: nothing here compiles one.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gymcp.atomic import write_atomically
from gymcp.cache import in_cache
from gymcp.envs.suites.textworld.solving import gold_calls, last_necessary
from gymcp.envs.suites.upstream.run_once import run_to_end
from gymcp.envs.suites.upstream.suite_files import fingerprint, sandbox_for
from gymcp.errors import UsageError
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.packages.install import INSIDE, ensure_verified, is_present
from gymcp.mcp_servers.packages.lockfile import LockedServer, read_locked_server
from gymcp.mcp_servers.sandbox import Limits, Mount, Sandbox
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.paths import gymcp_home
from gymcp.types import Json

PROGRAM = "gymcp.mcp_servers.programs.textworld.maker"
SERVER = "gymcp.mcp_servers.programs.textworld.server"
RULES = "gymcp.mcp_servers.programs.textworld.rules"
LOCK = Path(__file__).with_name("textworld.lock")
AT_ONCE = 25
"""Games of one run of the maker; what a run has made is kept, and there is something to report."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What decides a game: the same order, the same game."""

    challenge: str
    settings: tuple[tuple[str, Json], ...]
    seed: int

    @property
    def key(self) -> str:
        return hashlib.sha256(self.line().encode()).hexdigest()[:32]

    def line(self) -> str:
        """As the maker takes it."""
        return json.dumps({"challenge": self.challenge, "settings": dict(self.settings), "seed": self.seed})


def packages() -> LockedServer:
    """TextWorld and what making games needs, as they are locked."""
    return read_locked_server(LOCK, "textworld")


def is_installed() -> bool:
    """True where this machine has what makes games."""
    return is_present(packages())


def install_textworld() -> Path:
    """The folder with TextWorld as it is locked, installed where it is not yet. Raises UsageError, IntegrityError."""
    server = packages()
    if not is_present(server):
        log.warning("textworld: installing TextWorld %s and what it needs (some 30 MB), once", server.version)
    return ensure_verified(server, repair="gymcp suites install textworld")


@in_cache()
def make_games(
    orders: Sequence[Order], sandbox: Sandbox | None = None, ahead: Callable[[], Sequence[Order]] = lambda: ()
) -> list[Json]:
    """[N] -> [N]: ``{"game", "gold", "last_necessary"}``, or None where the order gives no game that can be won.

    Made in `sandbox`, else in bubblewrap, where they are not in the cache; then what `ahead` gives is made as well,
    since starting TextWorld takes as long as making some games. Raises SandboxUnavailable, UsageError.
    """
    folder = games_folder()
    missing = _missing(folder, orders)
    if missing:
        missing = _missing(folder, (*orders, *ahead()))
    for start in range(0, len(missing), AT_ONCE):
        some = missing[start : start + AT_ONCE]
        log.warning("textworld: making games %d to %d of %d, once", start + 1, start + len(some), len(missing))
        _make(folder, some, sandbox_for("textworld", "TextWorld's code makes the games", sandbox))
    return [json.loads(_path(folder, order).read_bytes()) for order in orders]


def _missing(folder: Path, orders: Sequence[Order]) -> list[Order]:
    return list({order.key: order for order in orders if not _path(folder, order).is_file()}.values())


def maker(program: str = PROGRAM, modules: Sequence[str] = ()) -> ServerSpec:
    """What runs a program over TextWorld's code; `modules`: of ours, which it imports."""
    folder = install_textworld()
    found = next(folder.glob("venv/lib/python*/site-packages"))
    inside = PurePosixPath(INSIDE) / found.relative_to(folder)
    return native_server(
        "textworld-maker",
        program,
        modules=modules,
        mounts=[Mount(source=folder, target=PurePosixPath(INSIDE))],
        python_path=[inside],
        limits=Limits(memory_mb=2048),
    )


def games_folder() -> Path:
    """Of the games of this version: another maker or another closure has others."""
    return gymcp_home() / "suites" / "textworld" / _fingerprint()


def _make(folder: Path, orders: Sequence[Order], sandbox: Sandbox) -> None:
    text = "".join(f"{order.line()}\n" for order in orders)
    lines = run_to_end(maker(), sandbox, text).splitlines()
    if len(lines) != len(orders):
        raise UsageError(f"textworld: making games ended after {len(lines)} of {len(orders)}")
    folder.mkdir(parents=True, exist_ok=True)
    for order, line in zip(orders, lines, strict=True):
        write_atomically(_path(folder, order), json.dumps(_solved(json.loads(line))).encode())


def _solved(made: Json) -> Json:
    """With calls for commands."""
    calls = gold_calls(made["game"], made["walkthrough"]) if made else None
    if calls is None:
        return None
    return {"game": made["game"], "gold": calls, "last_necessary": last_necessary(made["game"], calls)}


def _path(folder: Path, order: Order) -> Path:
    return folder / f"{order.key}.json"


def _fingerprint() -> str:
    """Of all that decides what a game's file holds."""
    modules = (PROGRAM, SERVER, RULES, "gymcp.envs.suites.textworld.solving")
    return fingerprint(LOCK.read_bytes(), *modules)
