"""Rows of a file with separated values: ``[[text, ...], ...]``."""

from __future__ import annotations

import csv
import io
from typing import Any

from gymcp.mcp_servers.programs.digest.readers.source import Source, Unreadable


def read(source: Source) -> Any:
    """Rows of texts; a file that is named ``.tsv`` has tabs between values, any other one commas. Raises Unreadable."""
    try:
        text = source.content.decode("utf-8-sig")
        delimiter = "\t" if source.path.lower().endswith(".tsv") else ","
        return list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise Unreadable(f"it has no rows of separated values: {error}") from None
