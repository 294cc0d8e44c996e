"""Data of an export: values as scripts that hand them over, packed, so that no text in them can be read as script."""

from __future__ import annotations

import base64
import gzip
from pathlib import Path

from gymcp.evaluators.viewer.pages import encode_json
from gymcp.types import Json


class DataFiles:
    """The files below ``data/`` of an export."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.written = 0
        """Number of files."""
        self.bytes = 0
        self._names: set[str] = set()

    def write(self, name: str, value: Json) -> None:
        """Write the value under a name of lower-case letters, digits and hyphens, with folders. Raises OSError."""
        packed = base64.b64encode(gzip.compress(encode_json(value).encode("ascii"), compresslevel=6, mtime=0))
        script = f'gymcpData("{name}","{packed.decode("ascii")}");\n'
        path = self._folder / f"{name}.js"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script, encoding="ascii")
        self._names.add(name)
        self.written += 1
        self.bytes += len(script)

    def write_once(self, name: str, value: Json) -> None:
        """Write the value, unless something was written under this name before. Raises OSError."""
        if name not in self._names:
            self.write(name, value)
