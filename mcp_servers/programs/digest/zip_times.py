"""Zip archives without the times at which they were written, so that equal contents are equal files."""

from __future__ import annotations

import io
import re
import struct
import zipfile

from gymcp.mcp_servers.programs.digest.readers.archives import open_archive
from gymcp.mcp_servers.programs.digest.readers.source import TooLarge, Unreadable

_DOCUMENT_TIMES = re.compile(rb"(<dcterms:(?:created|modified)\b[^<>]*>)[^<]*")
_DOCUMENT_PROPERTIES = "docProps/core.xml"
_UNIX = 3
"""Number of the system on which a zip archive was made."""


def hide_zip_times(content: bytes) -> bytes | None:
    """The archive with all members stored at one time, and without extra fields."""
    out = io.BytesIO()
    try:
        with open_archive(content) as archive, zipfile.ZipFile(out, "w") as new:
            new.comment = archive.comment
            for member in archive.members:
                plain = zipfile.ZipInfo(member.filename)
                plain.external_attr, plain.create_system = member.external_attr, _UNIX
                data = archive.read(member)
                if member.filename == _DOCUMENT_PROPERTIES:
                    data = _DOCUMENT_TIMES.sub(rb"\1", data)
                new.writestr(plain, data)
    except (Unreadable, TooLarge, ValueError, struct.error):  # struct.error: a name too long in UTF-8
        return None
    return out.getvalue()
