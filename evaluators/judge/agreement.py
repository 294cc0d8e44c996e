"""Agreement between a judge and people: the share of equal labels, and Cohen's kappa, which corrects for chance."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gymcp.errors import ConfigError
from gymcp.evaluators.names import JudgedPart, list_judged_parts
from gymcp.evaluators.statistics import Interval, wilson
from gymcp.store import EpisodeRow

RESAMPLES = 10_000

MAX_TRIAL_DIGITS = 9
_PASS = frozenset({"1", "1.0", "true", "yes", "y", "pass", "passed", "success", "correct"})
_FAIL = frozenset({"0", "0.0", "false", "no", "n", "fail", "failed", "failure", "incorrect"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """One line of a file of labels."""

    name: str
    """Name of the episode in messages."""
    person: bool
    judge: bool | None = None
    """The judge's verdict, if the file contains it."""
    id: str = ""
    task: str = ""
    trial: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    items: int
    agree: float
    """Share of the items on which both verdicts are equal."""
    agree_ci95: Interval
    kappa: float | None
    """Cohen's kappa; None if both give the same single label to everything, since chance alone then explains the
    agreement."""
    kappa_ci95: Interval | None
    table: tuple[int, int, int, int]
    """Number of items by (person, judge): pass and pass, pass and fail, fail and pass, fail and fail."""


def measure_agreement(pairs: Sequence[tuple[bool, bool]], *, seed: int = 0) -> Agreement:
    """Agreement over (person, judge) verdicts on items. Raises ConfigError if there are none.

    The interval of the agreement is Wilson's. That of kappa is the percentile bootstrap over items, without the
    resamples in which kappa is undefined.
    """
    if not pairs:
        raise ConfigError("agreement: no item has both a label and a verdict")
    counts = np.array([sum(pair == cell for pair in pairs) for cell in _CELLS])
    n = len(pairs)
    agree = float(counts[0] + counts[3]) / n
    interval = wilson(float(counts[0] + counts[3]), n)
    assert interval is not None, "there is at least one pair"
    kappa = float(cohens_kappa(counts[None, :])[0])
    return Agreement(
        items=n,
        agree=agree,
        agree_ci95=interval,
        kappa=None if math.isnan(kappa) else kappa,
        kappa_ci95=None if math.isnan(kappa) else _bootstrap(counts, seed),
        table=(int(counts[0]), int(counts[1]), int(counts[2]), int(counts[3])),
    )


_CELLS = ((True, True), (True, False), (False, True), (False, False))


def cohens_kappa(
    tables: np.ndarray[tuple[int, int], np.dtype[np.int64]],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """[N, 4] counts of (pass pass, pass fail, fail pass, fail fail) -> [N] kappas; NaN if agreement by chance is
    certain.

    Source: Cohen 1960.
    """
    shares = tables / tables.sum(axis=1, keepdims=True)
    observed = shares[:, 0] + shares[:, 3]
    person, judge = shares[:, 0] + shares[:, 1], shares[:, 0] + shares[:, 2]
    chance = person * judge + (1 - person) * (1 - judge)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(1 - chance < 1e-12, np.nan, (observed - chance) / (1 - chance))


def _bootstrap(counts: np.ndarray[tuple[int], np.dtype[np.int64]], seed: int) -> Interval:
    """Percentile bootstrap of kappa. Counts of items drawn with replacement are multinomial."""
    n = int(counts.sum())
    counts_drawn = np.random.default_rng(seed).multinomial(n, counts / n, size=RESAMPLES)
    kappas = cohens_kappa(counts_drawn)
    defined = kappas[~np.isnan(kappas)]
    low, high = np.quantile(defined, [0.025, 0.975])
    undefined = f", {RESAMPLES - len(defined)} of them undefined" if len(defined) < RESAMPLES else ""
    method = f"bootstrap over {n} items, {RESAMPLES} resamples{undefined}, seed {seed}"
    return Interval(low=float(low), high=float(high), method=method)


def load_labels(file: Path) -> list[Label]:
    """Labels from a CSV with the columns ``label``, and ``id`` or ``task`` and ``trial``; ``judge`` if it holds both
    verdicts.

    Raises ConfigError for the first invalid line.
    """
    where = f"labels {file}"
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines)
            columns = set(reader.fieldnames or ())
            if "label" not in columns or not columns & {"id", "task", "judge"}:
                raise ConfigError(
                    f"{where}: needs the columns label, and id (or task and trial) or judge;"
                    f" has {', '.join(sorted(columns)) or 'none'}"
                )
            labels = [_parse_label(row, f"{where}, line {number}") for number, row in enumerate(reader, 2)]
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{where}: is not CSV in UTF-8: {error}") from error
    if not labels:
        raise ConfigError(f"{where}: holds no label")
    return labels


def _parse_label(row: Mapping[str, str | None], where: str) -> Label:
    trial = row.get("trial") or "0"
    if not trial.isdecimal() or len(trial) > MAX_TRIAL_DIGITS:
        raise ConfigError(f"{where}: trial is {trial[:60]!r}, not the number of a trial")
    id, task = row.get("id") or "", row.get("task") or ""
    verdict = row.get("judge")
    return Label(
        name=id or (f"{task} trial {trial}" if task else where),
        person=_verdict(row.get("label"), f"{where}: label"),
        judge=None if verdict is None or not verdict.strip() else _verdict(verdict, f"{where}: judge"),
        id=id,
        task=task,
        trial=int(trial),
    )


def _verdict(text: str | None, where: str) -> bool:
    word = (text or "").strip().lower()
    if word not in _PASS | _FAIL:
        raise ConfigError(f"{where}: is {text!r}; write pass or fail, yes or no, 1 or 0")
    return word in _PASS


def match_labels(labels: Sequence[Label], rows: Sequence[EpisodeRow]) -> tuple[list[tuple[bool, bool]], list[str]]:
    """(person, judge) of every label whose episode a judge has scored, and the problems with the other labels, in
    words.

    Raises ConfigError if an episode has two labels.
    """
    by_id = {row.id: row for row in rows}
    by_task = {(row.task, row.trial): row for row in rows if row.latest}
    pairs: list[tuple[bool, bool]] = []
    problems: list[str] = []
    seen: set[str] = set()
    for label in labels:
        row = by_id.get(label.id) if label.id else by_task.get((label.task, label.trial))
        if row is None:
            problems.append(f"{label.name}: no such episode in the run")
            continue
        if row.id in seen:
            raise ConfigError(f"labels: {label.name} is labelled twice")
        seen.add(row.id)
        verdict = judge_passes(row)
        if verdict is None:
            problems.append(f"{label.name}: has no verdict of a judge")
            continue
        pairs.append((label.person, verdict))
    return pairs, problems


def judge_passes(row: EpisodeRow) -> bool | None:
    """The judge's verdict on an episode: True if it passes by every rubric; None if no judge has given a verdict.

    It is the same whether ``gymcp judge`` or the environment's grader asked the judge. Other parts of the grade do not
    matter.
    """
    verdicts = [_passes(part, row) for part in list_judged_parts(row.components)]
    return None if not verdicts or None in verdicts else all(verdicts)


def _passes(part: JudgedPart, row: EpisodeRow) -> bool | None:
    """True if all points are met, or the mark on a scale is full: that is a full score by the rubric."""
    if part.points:
        return all(part.points.values())
    # beside a score that was kept, the judge's is a component
    mark = row.components.get(part.name) if part.name else row.components.get("judge", row.score)
    return None if mark is None else mark >= 1.0
