"""The metrics of a training run: lines of JSON, TensorBoard files, and a picture of the learning curves."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from matplotlib.figure import Figure
from torch.utils.tensorboard import SummaryWriter

from gymcp.atomic import write_atomically
from gymcp.errors import ConfigError
from gymcp.store.metric_rows import METRICS_FILE
from gymcp.store.untrusted_files import MAX_LINES_BYTES, open_foreign, read_foreign
from gymcp.types import Json

CURVES = "curves.png"
REDRAW_S = 15.0
"""Seconds between two drawings of the curves: one takes as long as some small updates. The last is always drawn."""
_MARKERS: Mapping[str, Any] = {"marker": "o", "ms": 3}
"""Style of curves, because a line of a single point would be invisible without a marker."""


class MetricsLog:
    """The metrics of a run, written row by row. One process at a time writes it; rows written outlive a kill."""

    def __init__(self, folder: Path, *, until: int | None = None) -> None:
        """`until`: rows of later iterations are removed; None: all rows are removed."""
        rows = [] if until is None else [row for row in read_metrics(folder) if row["iteration"] <= until]
        self._folder = folder
        self.rows: list[dict[str, Json]] = rows
        path = folder / METRICS_FILE
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
        self._file = os.fdopen(open_foreign(folder, METRICS_FILE, os.O_WRONLY | os.O_APPEND), "a")
        self._board: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=len(rows))
        self._drawn_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._board.close()
        if self.rows:
            draw_curves(self.rows, self._folder / CURVES)

    def add(self, row: Mapping[str, Json]) -> None:
        """Write a row to disk before returning; redraw the curves from time to time, if it has an evaluation."""
        self.rows.append(dict(row))
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        for name, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._board.add_scalar(name, value, row["iteration"])
        self._board.flush()
        is_evaluation = any(name.startswith("test/") for name in row)
        if is_evaluation and time.monotonic() - self._drawn_at >= REDRAW_S:
            draw_curves(self.rows, self._folder / CURVES)
            self._drawn_at = time.monotonic()


def read_metrics(folder: Path) -> list[dict[str, Json]]:
    """The rows of a run, without a last line that a kill has cut. Raises ConfigError if there is no file of them."""
    try:
        lines = read_foreign(folder, METRICS_FILE, most_bytes=MAX_LINES_BYTES).decode().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]
    except FileNotFoundError:
        raise ConfigError(f"training run {folder}: there is no {METRICS_FILE}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"training run {folder}: its {METRICS_FILE} cannot be read: {error}") from error


def draw_curves(rows: Sequence[Mapping[str, Json]], path: Path) -> None:
    """Draw success in rollouts and on held-out tasks with its interval, entropy and KL divergences."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    success, state = figure.subplots(1, 2)
    at = [row["iteration"] for row in rows if "success" in row]
    success.plot(
        at, [row["success"] for row in rows if "success" in row], color="0.6", lw=1, **_MARKERS, label="practice"
    )
    for name in sorted({key for row in rows for key in row if key.startswith("test/") and key.endswith("/success")}):
        evaluations = [row for row in rows if name in row]
        split = name.split("/")[1]
        x, y = [row["iteration"] for row in evaluations], [row[name] for row in evaluations]
        line = success.plot(x, y, **_MARKERS, label=split)
        low, high = ([row[f"test/{split}/{end}"] for row in evaluations] for end in ("low", "high"))
        success.fill_between(x, low, high, alpha=0.15, color=line[0].get_color())
    success.set(xlabel="iteration", ylabel="success", ylim=(-0.02, 1.02), title="success (95 % intervals)")
    success.legend(fontsize=7)
    for name, label in (("entropy", "entropy (nats)"), ("kl", "kl of the update"), ("kl_reference", "kl of the start")):
        if having := [row for row in rows if name in row]:
            state.plot([row["iteration"] for row in having], [row[name] for row in having], **_MARKERS, label=label)
    state.set(xlabel="iteration", title="policy")
    for axes in (success, state):
        axes.xaxis.get_major_locator().set_params(integer=True)
    if state.lines:
        state.legend(fontsize=7)
    figure.savefig(path, dpi=110)
