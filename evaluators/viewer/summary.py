"""Figures of runs: the summary of one for the list, from its rows and a sample of its steps; facts for its page."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gymcp.errors import StoreError
from gymcp.evaluators.metrics import coverage_floor, has_headline, rate
from gymcp.evaluators.metrics.measure import asked_model, mean_component
from gymcp.evaluators.names import NET_OF_PRICE, UPPER_BOUND_KEY, model_name
from gymcp.evaluators.statistics import Latency, latency_of
from gymcp.evaluators.suite_groups import COMPARED_KEYS
from gymcp.evaluators.viewer.curves import LastHeldOut, last_held_out
from gymcp.evaluators.viewer.discovery import is_run
from gymcp.evaluators.viewer.runs import OpenedRun, Runs, open_store, stamp_of_file
from gymcp.outcome import Outcome
from gymcp.store import EpisodeRow, Run, TrajectoryStore, is_in_use, open_run
from gymcp.store.database import FILE_NAME
from gymcp.store.metric_rows import METRICS_FILE, read_metric_rows
from gymcp.store.run_folder import RUN_FILE, TRAINING_FILE
from gymcp.store.untrusted_files import read_foreign
from gymcp.types import Json

MAX_TIMED_EPISODES = 100
"""Episodes of a run whose steps are read for the quantiles of latency."""
LATENCIES = ("model_latency", "request_latency", "first_token_latency", "tool_latency")
TIMED = (*LATENCIES, "tokens_per_s", "timed_episodes")
"""Fields of `RunSummary` that `time_steps` measures."""
_STAMPED = (RUN_FILE, TRAINING_FILE, METRICS_FILE, FILE_NAME, f"{FILE_NAME}-wal")
"""Files whose change makes a summary outdated."""

Stamp = tuple[tuple[int, int] | None, ...]
"""(time of the last change in ns, bytes) of each stamped file; None for one that is missing or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCell:
    """The latest trials of one task in one run."""

    episodes: int
    scored: int
    solved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    problem: str = ""
    """Problem of the run, for people; empty for a sound one."""
    readable: bool = True
    """False if no episode can be read."""
    running: bool = False
    """True while a process works on the run."""
    model: str = ""
    policy: str = ""
    """The policy as it was given, with its address."""
    agent: str = ""
    env: str = ""
    suite: str = ""
    started: str = ""
    """UTC, ISO 8601; empty if it was not recorded."""
    episodes: int = 0
    attempts: int = 0
    """Number of episodes, replaced ones included."""
    scored: int = 0
    solved: int = 0
    low: float | None = None
    """Lower end of the 95 % interval of the success; None if no episode is scored."""
    high: float | None = None
    bounds: tuple[float, float] | None = None
    """Least and greatest success over all episodes of a run whose success is no headline figure, because too few of
    them have a score; None for any other run."""
    upper_bound: str = ""
    """Reason why the success is only an upper bound; empty if it is an ordinary one."""
    net_of_price: float | None = None
    """Mean of the score less what questions or calls cost; None without such prices."""
    coverage: str = ""
    """Coverage in words: "488/500 scored, 12 infra"."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    cost: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    """Seconds summed over all attempts, which may have run in parallel."""
    iterations: int | None = None
    """Complete iterations of a training run; None for any other run."""
    held_out: LastHeldOut | None = None
    """Last evaluation of a training run."""
    model_latency: Latency | None = None
    """Seconds per decision of the agent; None if it is not known (yet)."""
    request_latency: Latency | None = None
    """Seconds per request to the model, without retries; None if it is not known (yet)."""
    first_token_latency: Latency | None = None
    """Seconds until the first token of a request; None if it is not known (yet)."""
    tool_latency: Latency | None = None
    """Seconds per tool call; None if it is not known (yet)."""
    tokens_per_s: float | None = None
    """Tokens that the model wrote per second of its requests; None if it is not known (yet)."""
    timed_episodes: int = 0
    """Number of episodes whose steps the latencies are from."""
    tasks: Mapping[tuple[str, str], TaskCell] = field(default_factory=dict)
    """(environment, task) -> its trials."""
    config: Mapping[str, Json] = field(default_factory=dict)
    """Part of the run's config that tells suites and models apart."""

    def object(self) -> dict[str, Json]:
        """The summary for the page, without its tasks and its config, and without a net of price if it has none."""
        left_out = ("tasks", "outcomes", "config", *(("net_of_price",) if self.net_of_price is None else ()))
        names = (name for name in self.__dataclass_fields__ if name not in left_out)
        fields = {name: getattr(self, name) for name in names}
        for name in ("held_out", *LATENCIES):
            part = fields[name]
            fields[name] = None if part is None else {key: getattr(part, key) for key in part.__dataclass_fields__}
        return {**fields, "outcomes": dict(self.outcomes)}


def stamp_of(folder: Path) -> Stamp:
    """State of the run's files; a summary is valid as long as it stays the same."""
    return tuple(stamp_of_file(folder / name) for name in _STAMPED)


def summarise_run(folder: Path) -> RunSummary:
    """The summary without latencies. A folder that cannot be read gives a summary that says why."""
    run, problem = _read_record(folder)
    known = _describe(run)
    is_training = (folder / TRAINING_FILE).exists()
    if is_training:
        known |= _describe_training(folder, run)
    try:
        with ExitStack() as stack:
            _, rows, damage = open_store(folder, stack)
    except StoreError as error:
        why = str(error) if is_run(folder) or not folder.is_dir() else f"run folder {folder}: holds no run"
        return RunSummary(**{**known, "problem": why, "readable": False, "running": is_in_use(folder)})
    model = known["model"] or ", ".join(sorted({name for row in rows for name in row.usage.models}))[:200]
    env = known["env"] or ", ".join(sorted({row.env for row in rows}))[:200]
    fields = {**known, "model": model, "env": env, "problem": damage or problem, "running": is_in_use(folder)}
    floor = 0.0 if is_training else coverage_floor(run.config if run else {})
    figures = _count(rows, floor)
    if is_training:
        figures["net_of_price"] = None  # its practice, which stands beside no success of the list
    return RunSummary(**fields, **figures)


def describe_runs(runs: Runs) -> Json:
    """Facts about the runs that the page shows before any episode."""
    return {
        "problems": list(runs.problems),
        "runs": [
            {
                "number": each.number,
                "name": each.name,
                "folder": str(each.folder),
                "created": each.run.created if each.run else "",
                "problems": each.problems,
                "training": each.training,
                "config": dict(each.run.config) if each.run else {},
                "versions": dict(each.run.versions) if each.run else {},
                "git": each.run.git if each.run else None,
                **runs.index.facets(each.number),
                "upper_bound": _text(each.run.config if each.run else {}, UPPER_BOUND_KEY),
                **_success_of(each, runs),
            }
            for each in runs.opened
        ],
    }


def _success_of(opened: OpenedRun, runs: Runs) -> dict[str, Json]:
    """The fields that a drawing of the run's success needs, as the list of runs has them."""
    rows = [
        EpisodeRow(id="", env="", task=task, outcome=Outcome(outcome), score=score)
        for task, outcome, score in runs.index.scores(opened.number)
    ]
    training = (
        _describe_training(opened.folder, opened.run) if opened.training else {"iterations": None, "held_out": None}
    )
    held_out = training["held_out"]
    floor = 0.0 if opened.training else coverage_floor(opened.run.config if opened.run else {})
    return {
        **_count_success(rows, floor),
        "iterations": training["iterations"],
        "held_out": None if held_out is None else asdict(held_out),
    }


def time_steps(folder: Path) -> dict[str, Any]:
    """The fields in `TIMED`, from a sample of the episodes, evenly spread."""
    seconds: dict[str, list[float]] = {name: [] for name in LATENCIES}
    timed, written = 0, 0
    with suppress(StoreError), TrajectoryStore.open(folder) as store:
        rows = [row for row in store.summaries() if row.steps]
        for row in _spread(rows, MAX_TIMED_EPISODES):
            with suppress(StoreError, KeyError, TypeError, ValueError):
                steps = store.load(row.id, tokens=False).steps
                requests = [step.request_times for step in steps if step.request_times is not None]
                seconds["model_latency"] += [step.agent_s for step in steps] if asked_model(row) else []
                seconds["request_latency"] += [times.request_s for times in requests]
                seconds["first_token_latency"] += [t.first_token_s for t in requests if t.first_token_s is not None]
                seconds["tool_latency"] += [result.seconds for step in steps for result in step.results]
                written += row.usage.completion_tokens if requests else 0
                timed += 1
    requests_s = math.fsum(seconds["request_latency"])
    speed = written / requests_s if written and requests_s else None
    latencies = {name: latency_of(values) for name, values in seconds.items()}
    return {**latencies, "tokens_per_s": speed, "timed_episodes": timed}


def _spread(rows: Sequence[EpisodeRow], most: int) -> list[EpisodeRow]:
    return list(rows) if len(rows) <= most else [rows[at * len(rows) // most] for at in range(most)]


def _count(rows: Sequence[EpisodeRow], floor: float) -> dict[str, Json]:
    """Figures of the attempts. `floor`: share of the episodes that must have a score for a headline figure."""
    latest = [row for row in rows if row.latest]
    trials: dict[tuple[str, str], list[EpisodeRow]] = {}
    for row in latest:
        trials.setdefault((row.env, row.task), []).append(row)
    cells = {
        key: TaskCell(
            episodes=len(of_task),
            scored=sum(row.score is not None for row in of_task),
            solved=sum(bool(row.success) for row in of_task),
        )
        for key, of_task in trials.items()
    }
    return {
        **_count_success(latest, floor),
        "episodes": len(latest),
        "attempts": len(rows),
        "solved": sum(cell.solved for cell in cells.values()),
        "net_of_price": mean_component(latest, NET_OF_PRICE),
        "outcomes": dict(Counter(str(row.outcome) for row in latest).most_common()),
        "cost": math.fsum(row.usage.cost for row in rows),
        "prompt_tokens": sum(row.usage.prompt_tokens for row in rows),
        "completion_tokens": sum(row.usage.completion_tokens for row in rows),
        "seconds": math.fsum(row.usage.wall_s for row in rows),
        "tasks": cells,
    }


def _count_success(latest: Sequence[EpisodeRow], floor: float) -> dict[str, Json]:
    """Success of the latest attempts with its interval, or its two bounds below that share of scored episodes."""
    overall = rate(latest)
    bounds = None if overall.bounds is None or has_headline(overall, floor) else overall.bounds
    return {
        "scored": overall.scored,
        "low": overall.ci95.low if overall.ci95 else None,
        "high": overall.ci95.high if overall.ci95 else None,
        "bounds": (bounds.low, bounds.high) if bounds else None,
        "coverage": overall.coverage,
    }


def _read_record(folder: Path) -> tuple[Run | None, str]:
    try:
        return open_run(folder), ""
    except StoreError as error:
        return None, "" if (folder / TRAINING_FILE).exists() else str(error)


def _describe(run: Run | None) -> dict[str, Json]:
    config = run.config if run else {}
    policy = _text(config, "policy")
    return {
        "model": model_name(policy) if policy else "",
        "policy": policy,
        "agent": _text(config, "agent"),
        "env": _text(config, "env"),
        "suite": _text(config, "suite"),
        "upper_bound": _text(config, UPPER_BOUND_KEY),
        "started": run.created[:40] if run else "",
        "config": {key: config.get(key) for key in (*COMPARED_KEYS, "agent", "policy")},
    }


def _describe_training(folder: Path, run: Run | None) -> dict[str, Json]:
    floor = coverage_floor(run.config if run else {})
    fields: dict[str, Json] = {"iterations": 0, "held_out": last_held_out(read_metric_rows(folder), floor)}
    with suppress(StoreError, OSError, ValueError, RecursionError):
        state = json.loads(read_foreign(folder, TRAINING_FILE))
        recipe = state.get("recipe") if isinstance(state, dict) else None
        if isinstance(recipe, dict):
            name = _text(recipe, "name")
            fields |= {"agent": "training", "env": _text(recipe, "env"), "model": name, "policy": f"recipe {name}"}
        if isinstance(state, dict) and isinstance(state.get("iteration"), int):
            fields["iterations"] = state["iteration"]
    return fields


def _text(table: Mapping[str, Json], key: str) -> str:
    value = table.get(key)
    return "" if value is None else str(value)[:200]
