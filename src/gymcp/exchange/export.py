"""Write a run in another format while reading it, so that memory does not grow with the run."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO

from gymcp.atomic import open_new, replace_file, replace_folder
from gymcp.errors import ConfigError, StoreError
from gymcp.exchange.atif import file_name, to_atif
from gymcp.exchange.csv_table import write_csv
from gymcp.exchange.json_lines import to_line
from gymcp.exchange.source import Source
from gymcp.store.out_file import refuse_other_file

FORMATS = ("jsonl", "parquet", "atif", "csv")
Write = Callable[[Source, BinaryIO], int]
"""Function that writes the run's episodes into the file and returns the number of episodes or rows."""


def default_out(run: Path, format: str) -> Path:
    """Default path of an export, in the run folder: a folder of documents for ATIF, a file for the other formats."""
    return run / ("atif" if format == "atif" else f"export.{format}")


def export(source: Source, format: str, out: Path) -> int:
    """Write `out`, whole or not at all, and return the number of its episodes (parquet: rows).

    Raises ConfigError for an unknown format or a missing library, StoreError if `out` cannot be written.
    """
    if format not in FORMATS:
        raise ConfigError(f"export: no format '{format}'; have {', '.join(FORMATS)}")
    write: Write = _load_parquet_writer() if format == "parquet" else _write_csv if format == "csv" else _write_lines
    if out.is_dir() and (format != "atif" or any(out.iterdir())):
        raise StoreError(f"export: {out} is a folder{' that is not empty' if format == 'atif' else ''}: name another")
    refuse_other_file(out, (f".{format}",), "export")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if format == "atif":
            with replace_folder(out) as folder:
                return _write_documents(source, folder)
        with replace_file(out) as file:
            return write(source, file)
    except OSError as error:
        raise StoreError(f"export: {out} cannot be written: {error.strerror or error}") from error


def _write_lines(source: Source, file: BinaryIO) -> int:
    count = 0
    for episode in source.episodes():
        file.write(to_line(episode).encode("ascii") + b"\n")
        count += 1
    return count


def _write_documents(source: Source, folder: int) -> int:
    count = 0
    for episode in source.episodes():
        count += 1
        with open_new(file_name(episode.trajectory, count), folder) as file:
            file.write(json.dumps(to_atif(episode, source.run)).encode())
    return count


def _write_csv(source: Source, file: BinaryIO) -> int:
    text = TextIOWrapper(file, encoding="utf-8", newline="")
    count = write_csv(source.rows, text)
    text.detach()  # flushes; closing it would close the file, which is still to be synced
    return count


def _load_parquet_writer() -> Write:
    """The writer of parquet, imported on demand because pyarrow is an extra."""
    try:
        write_rows: Callable[..., int] = importlib.import_module("gymcp.exchange.parquet").write_parquet
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"export: parquet needs '{error.name}', which is not installed: pip install 'gymcp[export]'"
        ) from error
    return lambda source, file: write_rows(source.episodes(), file)
