"""TextWorld's games and their solutions: made in a sandbox by its own code, and stored in gymcp's cache.

gymcp brings the games of its suite in `PRECOMPUTED`, so that TextWorld makes training games only.

The packages are locked by their hashes and installed as wheels. TextWorld's dependencies for playing compiled games
(spaCy, a Z-machine) are left out: nothing here compiles a game.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gymcp.atomic import cache_errors, write_atomically
from gymcp.envs.suites.textworld.solutions import gold_calls, last_necessary
from gymcp.envs.suites.upstream.file_layout import fingerprint
from gymcp.envs.suites.upstream.precomputed import read_precomputed
from gymcp.envs.suites.upstream.run_once import run_once
from gymcp.envs.suites.upstream.suite_installation import choose_install_sandbox
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
PRECOMPUTED = Path(__file__).with_name("games.jsonl")
GAMES_PER_RUN = 25
"""Games that one run of the maker makes: what a run has made is stored, and progress can be reported between runs."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Everything that decides a game: the same order makes the same game."""

    challenge: str
    settings: tuple[tuple[str, Json], ...]
    seed: int

    @property
    def key(self) -> str:
        return hashlib.sha256(self.line().encode()).hexdigest()[:32]

    def line(self) -> str:
        """The order as a line of the maker's input."""
        return json.dumps({"challenge": self.challenge, "settings": dict(self.settings), "seed": self.seed})


def packages() -> LockedServer:
    """TextWorld and the packages that it needs to make games, as they are locked."""
    return read_locked_server(LOCK, "textworld")


def is_installed() -> bool:
    """True if TextWorld is installed on this machine."""
    return is_present(packages())


def install_textworld() -> Path:
    """The folder with TextWorld as it is locked; installs it if it is missing. Raises UsageError, IntegrityError."""
    server = packages()
    if not is_present(server):
        log.warning("textworld: installing TextWorld %s and what it needs (some 30 MB), once", server.version)
    return ensure_verified(server, repair="gymcp suites install textworld")


@cache_errors()
def make_games(
    orders: Sequence[Order], sandbox: Sandbox | None = None, ahead: Callable[[], Sequence[Order]] = lambda: ()
) -> list[Json]:
    """[N] -> [N]: ``{"game", "gold", "last_necessary"}``, or None if the order gives no game that can be won.

    Games that gymcp does not bring and that are not in the cache are made in `sandbox`, else in bubblewrap; then the
    orders that `ahead` gives are made as well, since starting TextWorld takes as long as making some games. Raises
    SandboxUnavailable, UsageError.
    """
    missing = _missing(orders)
    if missing:
        missing = _missing((*orders, *ahead()))
    for start in range(0, len(missing), GAMES_PER_RUN):
        part = missing[start : start + GAMES_PER_RUN]
        log.warning("textworld: making games %d to %d of %d, once", start + 1, start + len(part), len(missing))
        games = ask_games(part, choose_install_sandbox("textworld", "TextWorld's code makes the games", sandbox))
        _folder().mkdir(parents=True, exist_ok=True)
        for order, game in zip(part, games, strict=True):
            write_atomically(_path(order), json.dumps(game).encode())
    return [_read(order) for order in orders]


def is_made(order: Order) -> bool:
    """True if TextWorld need not be asked for the order's game."""
    return order.key in _bring() or _path(order).is_file()


def ask_games(orders: Sequence[Order], sandbox: Sandbox) -> list[Json]:
    """[N] -> [N]: the same as `make_games`, from TextWorld itself, in one run."""
    lines = run_once(maker(), sandbox, "".join(f"{order.line()}\n" for order in orders)).splitlines()
    if len(lines) != len(orders):
        raise UsageError(f"textworld: making games ended after {len(lines)} of {len(orders)}")
    return [add_gold(json.loads(line)) for line in lines]


def add_gold(made: Json) -> Json:
    """A game with gold calls instead of the walkthrough's commands, or None if there is no game that can be won."""
    calls = gold_calls(made["game"], made["walkthrough"]) if made else None
    if calls is None:
        return None
    return {"game": made["game"], "gold": calls, "last_necessary": last_necessary(made["game"], calls)}


@functools.cache
def games_fingerprint() -> str:
    """Hash of everything that decides what a game's file holds."""
    modules = (PROGRAM, SERVER, RULES, "gymcp.envs.suites.textworld.solutions")
    return fingerprint(LOCK.read_bytes(), *modules)


def _missing(orders: Sequence[Order]) -> list[Order]:
    return list({order.key: order for order in orders if not is_made(order)}.values())


def _read(order: Order) -> Json:
    brought = _bring()
    return copy.deepcopy(brought[order.key]) if order.key in brought else json.loads(_path(order).read_bytes())


def _bring() -> Mapping[str, Json]:
    return read_precomputed(PRECOMPUTED, games_fingerprint())


def maker(program: str = PROGRAM, modules: Sequence[str] = ()) -> ServerSpec:
    """The spec of a program that imports TextWorld; `modules`: modules of gymcp that it imports as well."""
    folder = install_textworld()
    site_packages = next(folder.glob("venv/lib/python*/site-packages"))
    inside = PurePosixPath(INSIDE) / site_packages.relative_to(folder)
    return native_server(
        "textworld-maker",
        program,
        modules=modules,
        mounts=[Mount(source=folder, target=PurePosixPath(INSIDE))],
        python_path=[inside],
        limits=Limits(memory_mb=2048),
    )


def _folder() -> Path:
    """Folder of the games that this maker makes with these packages."""
    return gymcp_home() / "suites" / "textworld" / games_fingerprint()


def _path(order: Order) -> Path:
    return _folder() / f"{order.key}.json"
