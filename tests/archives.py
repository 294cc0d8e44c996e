"""Archives made in memory."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping


def make_tar(files: Mapping[str, str]) -> bytes:
    """A tar file, compressed with gzip, of these texts by path."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()
