"""Copies of the driver's files for its nodes: each node is asked what it lacks, and gets that alone.

The contents travel as objects of Ray, a few megabytes at a time: nodes that lack the same files fetch the same object,
also from each other. Ray's own ``working_dir`` and ``py_modules`` were left aside. They take one folder with
everything in it, at most 500 MB, which goes through the memory of the head; they compare it neither with what lies at
the same path on the node nor, once unpacked, with its digest; and the copy ends with Ray's session, so it is not in the
cache when the cluster is started again.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from gymcp.errors import ConfigError, GymcpError
from gymcp.paths import gymcp_home
from gymcp.scale.copies.collect import collect_cache_entry
from gymcp.scale.copies.node_files import Piece, find_missing, find_placed, place, receive
from gymcp.scale.copies.records import CopiedEntry, FileSet, PlacedFiles

PACK_BYTES = 8 << 20
"""Bytes of content that are sent at a time: of several files, or of a part of one."""
COPY_S = 900.0
"""Seconds until a node has hashed, received or placed files."""


class CopyTarget(Protocol):
    """A node that files are copied to."""

    @property
    def name(self) -> str: ...

    async def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> Any:
        """The result of a function of a module, called on the node. Raises GymcpError as it does, NodeLost."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """Everything that a run needs of the driver's files."""

    files: FileSet
    cache_entries: tuple[str, ...] = ()
    """Entries of the cache, which a node may also have made itself."""
    contents: Mapping[str, bytes] = field(default_factory=dict)
    """Contents of some of the files, by key; the others are read when they are sent."""


@dataclass(slots=True, kw_only=True)
class CopiedAmount:
    """Amount that was sent to nodes."""

    files: int = 0
    bytes: int = 0

    def describe(self, node: str) -> str:
        """The amount in words for people; empty if nothing was sent."""
        if not self.files:
            return ""
        return f"copied {self.files} file{'s' * (self.files > 1)} ({self.bytes / 1e6:.1f} MB) to node {node}"


async def copy_files(
    targets: Sequence[CopyTarget],
    run: RunFiles,
    share: Callable[[Any], Any],
    say: Callable[[str], None] = lambda line: None,
) -> list[PlacedFiles | GymcpError]:
    """For each target the place of the run's files on it, or the error that keeps it from having them.

    `share`: turns an object into a reference that targets receive as the object. `say`: gets a line for each target
    that something was sent to.
    """
    placed: dict[str, PlacedFiles | GymcpError] = {}
    amounts = {target.name: CopiedAmount() for target in targets}
    sets: list[FileSet] = []
    for entry in run.cache_entries:
        lacking = await _ask_all(targets, find_placed, FileSet(cache_entry=entry))
        if None in lacking.values() and (collected := await asyncio.to_thread(collect_cache_entry, entry)) is not None:
            sets.append(collected)
    for files in (*sets, run.files):
        fit = [target for target in targets if not isinstance(placed.get(target.name), GymcpError)]
        read = partial(_read_packs, files, run.contents)
        placed |= await _copy_set(fit, files, read, share, amounts)
    for target in targets:
        if line := amounts[target.name].describe(target.name):
            say(line)
    return [placed[target.name] for target in targets]


async def _copy_set(
    targets: Sequence[CopyTarget],
    files: FileSet,
    read: Callable[[Sequence[CopiedEntry]], Iterator[list[Piece]]],
    share: Callable[[Any], Any],
    amounts: Mapping[str, CopiedAmount],
) -> dict[str, PlacedFiles | GymcpError]:
    found = await _ask_all(targets, find_placed, files)
    lacking = [target for target in targets if found[target.name] is None]
    missing = await _ask_all(lacking, find_missing, files)
    broken: dict[str, GymcpError] = {name: each for name, each in missing.items() if isinstance(each, GymcpError)}
    wanted = {name: frozenset(each) for name, each in missing.items() if not isinstance(each, GymcpError)}
    to_send = [entry for key, entry in files.keys.items() if any(key in keys for keys in wanted.values())]
    for pack in read(to_send):
        keys = {piece.key for piece in pack}
        to = [each for each in lacking if each.name not in broken and wanted.get(each.name, frozenset()) & keys]
        if not to:
            continue
        shared = share(pack)
        answers = await asyncio.gather(*(_ask(each, receive, tuple(wanted[each.name]), shared) for each in to))
        broken |= {each.name: error for each, error in zip(to, answers, strict=True) if isinstance(error, GymcpError)}
        for each in to:
            got = [piece for piece in pack if piece.key in wanted[each.name]]
            amounts[each.name].files += sum(piece.is_last for piece in got)
            amounts[each.name].bytes += sum(len(piece.content) for piece in got)
    whole = [target for target in lacking if target.name not in broken]
    return {**found, **broken, **await _ask_all(whole, place, files)}


async def _ask_all(targets: Sequence[CopyTarget], function: Callable[..., Any], files: FileSet) -> dict[str, Any]:
    """Name of each target -> its answer, or the error that it raised."""
    answers = await asyncio.gather(*(_ask(target, function, files) for target in targets))
    return {target.name: answer for target, answer in zip(targets, answers, strict=True)}


async def _ask(target: CopyTarget, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return await target.call(function, *arguments, timeout_s=COPY_S)
    except GymcpError as error:
        return error


def _read_packs(files: FileSet, contents: Mapping[str, bytes], entries: Sequence[CopiedEntry]) -> Iterator[list[Piece]]:
    """The contents of the files, in packs. Raises ConfigError if one cannot be read any more."""
    pack: list[Piece] = []
    size = 0
    top = gymcp_home() / files.cache_entry if files.cache_entry else ""
    for entry in entries:
        for piece in _read_pieces(entry, contents.get(entry.key), Path(f"{top}{entry.path}")):
            if pack and size + len(piece.content) > PACK_BYTES:
                yield pack
                pack, size = [], 0
            pack.append(piece)
            size += len(piece.content)
    if pack:
        yield pack


def _read_pieces(entry: CopiedEntry, kept: bytes | None, path: Path) -> Iterator[Piece]:
    """The content in pieces, the last of which ends at the size that the file had when it was hashed.

    `kept`: the content, if it was kept. Raises ConfigError.
    """
    try:
        with io.BytesIO(kept) if kept is not None else path.open("rb") as file:
            offset = 0
            while True:
                content = file.read(min(PACK_BYTES, entry.bytes - offset))
                is_last = offset + len(content) >= entry.bytes or not content
                yield Piece(key=entry.key, path=entry.path, offset=offset, content=content, is_last=is_last)
                if is_last:
                    return
                offset += len(content)
    except OSError as error:
        raise ConfigError(f"{entry.path}: cannot be read, to be copied: {error.strerror or error}") from error
