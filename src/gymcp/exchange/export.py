"""A run in a format of others, written as it is read: memory does not grow with the run."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from gymcp.errors import ConfigError, StoreError
from gymcp.exchange.atif import name_of, to_atif
from gymcp.exchange.lines import to_line
from gymcp.exchange.source import Source
from gymcp.exchange.table import write_csv

FORMATS = ("jsonl", "parquet", "atif", "csv")


def default_out(run: Path, format: str) -> Path:
    """Where an export lies beside its run: a folder of documents for ATIF, a file for the others."""
    return run / ("atif" if format == "atif" else f"export.{format}")


def export(source: Source, format: str, out: Path) -> int:
    """Writes `out`, whole or not at all; gives how many episodes (of parquet: rows) it holds.

    Raises ConfigError for an unknown format or a library that is missing, StoreError where `out` cannot be written.
    """
    if format not in FORMATS:
        raise ConfigError(f"export: no format '{format}'; have {', '.join(FORMATS)}")
    write = {"jsonl": _lines, "csv": _csv, "atif": _documents, "parquet": _parquet}[format](source)
    if out.is_dir() and (format != "atif" or any(out.iterdir())):
        raise StoreError(f"export: {out} is a folder{' that is not empty' if format == 'atif' else ''}: name another")
    unfinished = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        count = write(unfinished)
        unfinished.replace(out)
    except OSError as error:
        raise StoreError(f"export: {out} cannot be written: {error.strerror or error}") from error
    finally:
        _remove(unfinished)
    return count


def _lines(source: Source) -> Callable[[Path], int]:
    def write(path: Path) -> int:
        count = 0
        with path.open("w", encoding="ascii") as file:
            for episode in source.episodes():
                file.write(to_line(episode) + "\n")
                count += 1
        return count

    return write


def _documents(source: Source) -> Callable[[Path], int]:
    def write(path: Path) -> int:
        path.mkdir()
        count = 0
        for episode in source.episodes():
            count += 1
            document = to_atif(episode, source.run)
            (path / name_of(episode.trajectory, count)).write_text(json.dumps(document), encoding="utf-8")
        return count

    return write


def _csv(source: Source) -> Callable[[Path], int]:
    def write(path: Path) -> int:
        with path.open("w", encoding="utf-8", newline="") as file:
            return write_csv(source.rows, file)

    return write


def _parquet(source: Source) -> Callable[[Path], int]:
    """Imported when it is wanted: pyarrow is an extra."""
    try:
        write_rows: Callable[..., int] = importlib.import_module("gymcp.exchange.parquet").write_parquet
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"export: parquet needs '{error.name}', which is not installed: pip install 'gymcp[export]'"
        ) from error

    def write(path: Path) -> int:
        return write_rows(source.episodes(), path)

    return write


def _remove(path: Path) -> None:
    if path.is_dir():
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
