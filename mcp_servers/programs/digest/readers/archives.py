"""Zip archives and XML from an untrusted server, read within limits: no bomb is unpacked and no entity is expanded."""

from __future__ import annotations

import contextlib
import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from gymcp.mcp_servers.programs.digest.readers.source import TooLarge, Unreadable

MAX_UNPACKED_BYTES = 64_000_000
"""Most bytes that are unpacked from one archive."""
MAX_MEMBERS = 10_000
_BOUNDED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Kinds of compression of which `zipfile` unpacks no more than is asked for; of others it unpacks whole blocks."""
MAX_ELEMENTS = 1_000_000
MAX_DEPTH = 200
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)
"""Exceptions with which `zipfile` answers an archive that is damaged, encrypted, or of an unknown kind."""


class Archive:
    """A zip archive of which at most `MAX_UNPACKED_BYTES` are unpacked, however often its members are read."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self.comment = archive.comment
        self.members = archive.infolist()
        self._archive = archive
        self._left = MAX_UNPACKED_BYTES

    def read(self, member: str | zipfile.ZipInfo) -> bytes:
        """Content of a member. Raises Unreadable if it is missing or damaged, TooLarge."""
        try:
            info = self._archive.getinfo(member) if isinstance(member, str) else member
            if info.compress_type not in _BOUNDED:
                raise Unreadable(f"{info.filename!r} is compressed in a way that is not read")
            with self._archive.open(info) as file:
                content = file.read(self._left + 1)
        except KeyError:
            raise Unreadable(f"the archive has no {member!r}") from None
        except _DAMAGE as error:
            raise Unreadable(f"the archive is damaged: {error}") from None
        self._left -= len(content)
        if self._left < 0:
            raise TooLarge(f"more than {MAX_UNPACKED_BYTES} bytes unpacked")
        return content


@contextlib.contextmanager
def open_archive(content: bytes) -> Iterator[Archive]:
    """The archive in `content`. Raises Unreadable if it is none, TooLarge for too many members."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
    except _DAMAGE as error:
        raise Unreadable(f"it is no zip archive: {error}") from None
    with archive:
        if len(archive.infolist()) > MAX_MEMBERS:
            raise TooLarge(f"more than {MAX_MEMBERS} members in the archive")
        yield Archive(archive)


def parse_xml(content: bytes) -> Element:
    """Root element; names have no namespaces. Raises Unreadable, also for any document type, TooLarge."""
    builder = TreeBuilder()
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    count = depth = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal count, depth
        count, depth = count + 1, depth + 1
        if count > MAX_ELEMENTS:
            raise TooLarge(f"more than {MAX_ELEMENTS} elements of XML")
        if depth > MAX_DEPTH:
            raise TooLarge(f"elements of XML are nested more than {MAX_DEPTH} deep")
        builder.start(_local(name), {_local(key): value for key, value in attributes.items()})

    def end(name: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(_local(name))

    def refuse(*_: object) -> None:
        raise Unreadable("its XML has a document type, whose entities could be of any size")

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = builder.data, refuse
    try:
        parser.Parse(content, True)
        return builder.close()
    except (expat.ExpatError, LookupError, ValueError) as error:
        raise Unreadable(f"its XML is not well formed: {error}") from None


def _local(name: str) -> str:
    return name.rpartition("}")[2]
