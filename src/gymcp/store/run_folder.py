"""The folder of one run: ``run.json`` records how the run was started; a lock marks a run that a process works on."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from gymcp import __version__
from gymcp.atomic import is_leftover, write_atomically
from gymcp.errors import StoreError
from gymcp.store.database import newer_format
from gymcp.store.untrusted_files import open_foreign, read_foreign
from gymcp.types import Json

RUN_FILE = "run.json"
TRAINING_FILE = "training.json"
"""State of a training run, beside its other files."""
RUN_FORMAT = 1

_LOCK_FILE = ".lock"
_LOCKS = Path("/proc/locks")
"""The kernel's list of the locks that are held."""
_ABSENT = "nothing"
_KINDS = {dict: "an object", list: "a list", str: "a text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A resumption under which a run was given more episodes."""

    at: str
    """UTC, ISO 8601."""
    was: Mapping[str, Json]
    """The keys of the config that were raised, with their values before."""
    now: Mapping[str, Json]
    """The same keys with their new values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The record of a run in `RUN_FILE`: what was run, and with what."""

    folder: Path
    created: str
    """UTC, ISO 8601."""
    config: Mapping[str, Json]
    """Configuration of the run, after every default was filled in: the one it was started with, as it has grown."""
    seeds: tuple[int, ...]
    versions: Mapping[str, str]
    git: str | None
    """Revision of the working directory's repository, with ``-dirty`` if it had changes; None outside a repository."""
    growths: tuple[Growth, ...] = ()
    """Resumptions that raised a part of the config, oldest first."""
    starts: tuple[Mapping[str, Json], ...] = ()
    """For each start and resumption, oldest first, its time (``at``) and what it chose that scores do not depend on.
    Runs of an older gymcp have none."""


@contextmanager
def create_run(
    folder: Path,
    config: Mapping[str, Json],
    *,
    seeds: Sequence[int] = (),
    versions: Mapping[str, str] | None = None,
    resume: bool = False,
    growing: Set[str] = frozenset(),
    start: Mapping[str, Json] | None = None,
) -> Iterator[Run]:
    """The run in `folder`, locked while the context lasts: a new one, or with `resume` the one that is there, if any.

    `versions` are added to gymcp's and Python's. `growing`: keys of the config whose number may be higher than that of
    the run to resume; ``run.json`` then records both. 0 is more than any other number: it stands for all. `start`: what
    this start or resumption chose that scores do not depend on; nothing of it is compared.
    Raises StoreError if the folder holds a run (without `resume`), holds one of another config, holds something else,
    is in use by another process, or cannot be written.
    """
    where = f"run folder {folder}"
    plain_config = _to_json(config, where)
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _refuse_other_content(folder, resume=resume)
            stack.enter_context(lock_run(folder))
            _refuse_other_content(
                folder, resume=resume
            )  # another process may have changed the folder before the lock was taken
            if not (folder / RUN_FILE).exists():
                _write_record(folder, plain_config, seeds, versions or {})
        except OSError as error:
            raise StoreError(f"{where}: cannot be written: {error.strerror or error}") from error
        run = open_run(folder)
        if _list_differences(run.config, plain_config):
            run = _grow(run, plain_config, growing)
        yield run if start is None else append_start(run, start)


def append_start(run: Run, start: Mapping[str, Json]) -> Run:
    """The run with one more start or resumption, recorded. Raises StoreError if it cannot be written."""
    starts = (*run.starts, {"at": _now(), **start})
    _update_record(run, {"starts": list(starts)})
    return replace(run, starts=starts)


def record_start(
    folder: Path, config: Mapping[str, Json], *, seeds: Sequence[int] = (), versions: Mapping[str, str] | None = None
) -> None:
    """Write ``run.json`` into an existing folder, in place of an older one. Raises StoreError if that is impossible.

    For runs with files of their own beside the trajectories, such as training runs, which take `lock_run` themselves;
    `create_run` makes all others.
    """
    where = f"run folder {folder}"
    try:
        _write_record(folder, _to_json(config, where), seeds, versions or {})
    except OSError as error:
        raise StoreError(f"{where}: cannot be written: {error.strerror or error}") from error


def _write_record(
    folder: Path, plain_config: Mapping[str, Json], seeds: Sequence[int], versions: Mapping[str, str]
) -> None:
    record = {
        "format": RUN_FORMAT,
        "created": _now(),
        "config": plain_config,
        "seeds": list(seeds),
        "versions": {"gymcp": __version__, "python": platform.python_version(), **versions},
        "git": git_revision(Path.cwd()),
    }
    write_atomically(folder / RUN_FILE, json.dumps(record, indent=2).encode() + b"\n")


def _grow(run: Run, config: Mapping[str, Json], growing: Set[str]) -> Run:
    """The run with the larger config, recorded. Raises StoreError if anything else differs, or a number is lower."""
    where = f"run folder {run.folder}"
    different = _list_differences(run.config, config)
    changed = [key for key in growing if run.config.get(key) != config.get(key)]
    lowered = [key for key in changed if not _is_raised(run.config.get(key), config.get(key))]
    if lowered or _list_differences(run.config, {**config, **{key: run.config.get(key) for key in changed}}):
        why = "; a run can grow but not shrink: its episodes are kept" if lowered else ""
        raise StoreError(f"{where}: was started with another config: {'; '.join(different)}{why}")
    growth = Growth(
        at=_now(),
        was={key: run.config[key] for key in sorted(changed)},
        now={key: config[key] for key in sorted(changed)},
    )
    growths = (*run.growths, growth)
    _update_record(run, {"config": dict(config), "growths": [asdict(each) for each in growths]})
    return replace(run, config=config, growths=growths)


def _update_record(run: Run, entries: Mapping[str, Json]) -> None:
    record = {**json.loads(read_foreign(run.folder, RUN_FILE)), **entries}
    try:
        write_atomically(run.folder / RUN_FILE, json.dumps(record, indent=2).encode() + b"\n")
    except OSError as error:
        raise StoreError(f"run folder {run.folder}: cannot be written: {error.strerror or error}") from error


def _now() -> str:
    """UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _is_raised(old: Json, new: Json) -> bool:
    """True if both are numbers of something and `new` is more; 0 stands for all."""
    if type(old) is not int or type(new) is not int:
        return False
    return old != 0 and (new == 0 or new > old)


def open_run(folder: Path) -> Run:
    """The run in `folder`, to read. Raises StoreError if there is none, or if this gymcp cannot read it."""
    where = f"run folder {folder}"
    if not folder.is_dir():
        raise StoreError(f"{where}: no such folder")
    try:
        record = json.loads(read_foreign(folder, RUN_FILE))
    except FileNotFoundError:
        raise StoreError(f"{where}: holds no {RUN_FILE}") from None
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{where}: {RUN_FILE} is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise StoreError(
            f"{where}: {RUN_FILE} is not the record of a run: it is no object, but {json.dumps(record)[:60]}"
        )
    try:
        if record["format"] > RUN_FORMAT:
            raise newer_format(where, record["format"], RUN_FORMAT)
        for key, kind in (("config", dict), ("versions", dict), ("seeds", list), ("created", str)):
            if not isinstance(record[key], kind):
                raise StoreError(
                    f"{where}: {RUN_FILE}: '{key}' is not {_KINDS[kind]}, but {json.dumps(record[key])[:60]}"
                )
        if record["git"] is not None and not isinstance(record["git"], str):
            raise StoreError(f"{where}: {RUN_FILE}: 'git' is not a text, but {json.dumps(record['git'])[:60]}")
        return Run(
            folder=folder,
            created=record["created"],
            config=record["config"],
            seeds=tuple(record["seeds"]),
            versions=record["versions"],
            git=record["git"],
            growths=tuple(
                Growth(at=growth["at"], was=dict(growth["was"]), now=dict(growth["now"]))
                for growth in record.get("growths", ())
            ),
            starts=tuple(dict(start) for start in record.get("starts", ())),
        )
    except KeyError as error:
        raise StoreError(f"{where}: {RUN_FILE} is not the record of a run: it has no {error}") from error
    except (TypeError, ValueError) as error:
        raise StoreError(f"{where}: {RUN_FILE} is not the record of a run: {error!r}") from error


def is_in_use(folder: Path) -> bool:
    """True if a process holds the folder's lock. The lock is not touched: a run that starts now must not find it taken.

    False as well if the kernel does not list the lock, as for a process of another container.
    """
    try:
        owner = _read_owner(folder)
        inode = os.lstat(folder / _LOCK_FILE).st_ino
        held = _LOCKS.read_text(encoding="ascii", errors="replace").splitlines()
    except (OSError, StoreError):
        return False
    parts = (line.split() for line in held)
    return any(
        len(part) > 5 and part[1] == "FLOCK" and part[4] == owner and part[5].endswith(f":{inode}") for part in parts
    )


def refuse_run_in_use(folder: Path) -> None:
    """Raise StoreError if a process holds the folder's lock, which is not touched."""
    if is_in_use(folder):
        raise _make_in_use_error(folder, _read_owner(folder))


def _read_owner(folder: Path) -> str:
    """Id of the process that took the folder's lock last."""
    return read_foreign(folder, _LOCK_FILE, most_bytes=100).decode(errors="replace").strip()


def _make_in_use_error(folder: Path, owner: str) -> StoreError:
    return StoreError(f"run folder {folder}: in use by another gymcp (process {owner or 'unknown'})")


def git_revision(folder: Path) -> str | None:
    """The commit checked out in `folder`, with ``-dirty`` if tracked files differ; None outside a repository."""
    quiet = ("-c", "core.fsmonitor=false")  # a program that the repository's settings may name
    command = ["git", *quiet, "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return completed.stdout.strip() or None


def _refuse_other_content(folder: Path, *, resume: bool) -> None:
    names = {entry.name for entry in folder.iterdir()}
    if RUN_FILE in names:
        if not resume:
            raise StoreError(f"run folder {folder}: already holds a run; resume it, or choose another folder")
    elif foreign := sorted(name for name in names if name != _LOCK_FILE and not is_leftover(name)):
        raise StoreError(f"run folder {folder}: holds no run, but is not empty: {', '.join(foreign[:5])}")


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. The kernel releases it when the process ends, however it ends.

    Raises StoreError if another process holds it.
    """
    with os.fdopen(open_foreign(folder, _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND), "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise _make_in_use_error(folder, file.read().strip()) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _to_json(config: Mapping[str, Json], where: str) -> dict[str, Json]:
    """The config as ``run.json`` returns it, with lists in place of tuples."""
    try:
        plain: dict[str, Json] = json.loads(json.dumps(dict(config)))
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"{where}: the config is not JSON: {error}") from error
    return plain


def _list_differences(recorded: Mapping[str, Json], plain_config: Mapping[str, Json]) -> list[str]:
    old, new = dict(_iter_leaves(recorded)), dict(_iter_leaves(plain_config))
    return [
        f"{key} was {old.get(key, _ABSENT)}, is now {new.get(key, _ABSENT)}"
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key)
    ]


def _iter_leaves(config: Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, value as JSON) of each leaf: 1 and true differ in JSON, though not in Python."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from _iter_leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, json.dumps(value, sort_keys=True)
