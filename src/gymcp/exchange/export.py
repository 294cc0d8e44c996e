"""A run in a format of others, written as it is read: memory does not grow with the run."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO

from gymcp.atomic import open_new, replacing, replacing_folder
from gymcp.errors import ConfigError, StoreError
from gymcp.exchange.atif import name_of, to_atif
from gymcp.exchange.lines import to_line
from gymcp.exchange.source import Source
from gymcp.exchange.table import write_csv

FORMATS = ("jsonl", "parquet", "atif", "csv")
Write = Callable[[Source, BinaryIO], int]
"""Fills the file with the run's episodes; gives how many episodes or rows those are."""


def default_out(run: Path, format: str) -> Path:
    """Where an export lies beside its run: a folder of documents for ATIF, a file for the others."""
    return run / ("atif" if format == "atif" else f"export.{format}")


def export(source: Source, format: str, out: Path) -> int:
    """Writes `out`, whole or not at all; gives how many episodes (of parquet: rows) it holds.

    Raises ConfigError for an unknown format or a library that is missing, StoreError where `out` cannot be written.
    """
    if format not in FORMATS:
        raise ConfigError(f"export: no format '{format}'; have {', '.join(FORMATS)}")
    write: Write = _parquet() if format == "parquet" else _csv if format == "csv" else _lines
    if out.is_dir() and (format != "atif" or any(out.iterdir())):
        raise StoreError(f"export: {out} is a folder{' that is not empty' if format == 'atif' else ''}: name another")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if format == "atif":
            with replacing_folder(out) as folder:
                return _documents(source, folder)
        with replacing(out) as file:
            return write(source, file)
    except OSError as error:
        raise StoreError(f"export: {out} cannot be written: {error.strerror or error}") from error


def _lines(source: Source, file: BinaryIO) -> int:
    count = 0
    for episode in source.episodes():
        file.write(to_line(episode).encode("ascii") + b"\n")
        count += 1
    return count


def _documents(source: Source, folder: int) -> int:
    count = 0
    for episode in source.episodes():
        count += 1
        with open_new(name_of(episode.trajectory, count), folder) as file:
            file.write(json.dumps(to_atif(episode, source.run)).encode())
    return count


def _csv(source: Source, file: BinaryIO) -> int:
    text = TextIOWrapper(file, encoding="utf-8", newline="")
    count = write_csv(source.rows, text)
    text.detach()  # which flushes; closing it would close the file, which is still to be synced
    return count


def _parquet() -> Write:
    """Imported when it is wanted: pyarrow is an extra."""
    try:
        write_rows: Callable[..., int] = importlib.import_module("gymcp.exchange.parquet").write_parquet
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"export: parquet needs '{error.name}', which is not installed: pip install 'gymcp[export]'"
        ) from error
    return lambda source, file: write_rows(source.episodes(), file)
