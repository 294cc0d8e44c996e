"""The report of one run, with all that this machine knows of the run's environment."""

from __future__ import annotations

import contextlib
import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from gymcp.envs.audit.fingerprint import suite_digest
from gymcp.envs.catalog import load_spec, names
from gymcp.envs.environment_sources import load_named
from gymcp.envs.spec import LoadedEnv, price_steps
from gymcp.envs.wrappers.registry import WrapperSelection
from gymcp.errors import ConfigError, GymcpError, StoreError
from gymcp.evaluators.metrics import PriceSteps
from gymcp.evaluators.report import CreditAdvice, write_report
from gymcp.evaluators.report.run_data import read_evidence
from gymcp.evaluators.report.write import summarize
from gymcp.evaluators.viewer.task_facts import FindTasks
from gymcp.store import Run, TrajectoryStore
from gymcp.types import Json, Task

MAX_STEPS = 50_000
"""Most steps of a run whose credit a report diagnoses; `gymcp credit RUN --diagnose` reads longer ones."""


def rewrite_report(run: Path, *, min_coverage: float | None = None, without_faulty: bool = False) -> dict[str, Json]:
    """Write the report of a run with all that this machine knows of its environment, and return the summary.

    Raises StoreError if the folder holds no run or cannot be written.
    """
    return write_report(
        run,
        find_tasks,
        min_coverage=min_coverage,
        without_faulty=without_faulty,
        find_credit=find_credit,
        find_prices=find_prices,
    )


def summarize_recorded(run: Path) -> dict[str, Json] | None:
    """The summary of the episodes that a folder holds, without writing it; None if it holds none that can be read."""
    try:
        summary = summarize(read_evidence(run, find_tasks, find_prices=find_prices))
    except StoreError:
        return None
    return summary if summary["episodes"] else None


def find_prices(run: Run) -> PriceSteps:
    """Price of an episode's calls in an environment of the catalog; nothing is known of any other.

    A run that names no source, such as a training run, is of the catalog if its environment has not only the same name
    as one of the catalog, but also the same version, suite and wrappers.
    """
    source = run.config.get("source")
    if source in names():
        return price_steps(load_spec(source))
    if source is None and (env := _find_same(run)) is not None:
        return price_steps(env.spec)
    return lambda steps: {}


def find_tasks(run: Run) -> Mapping[str, Task]:
    """Task id -> task, for a run of the catalog whose tasks have not changed since; empty for any other run.

    An environment file that a run names is not loaded, and nothing is installed: a report runs no foreign code.
    """
    env = _load_installed(run.config.get("source"))
    if env is None:
        return {}
    suite = env.suite
    return {task.id: task for task in suite.tasks} if suite_digest(suite) == run.config.get("suite_digest") else {}


def make_task_finder(envs: Sequence[str]) -> FindTasks:
    """`find_tasks` that looks first in these environments, which the user has named and whose code is run.

    A named environment has a run's tasks if they have not changed since the run. Raises ConfigError.
    """
    specs = [load_named(env) for env in envs]

    def find(run: Run) -> Mapping[str, Task]:
        for spec in specs:
            with contextlib.suppress(GymcpError):  # the run's wrappers do not fit this one
                suite = WrapperSelection.from_config(run.config).apply(spec).suite
                if suite_digest(suite) == run.config.get("suite_digest"):
                    return {task.id: task for task in suite.tasks}
        return find_tasks(run)

    return find


def _find_same(run: Run) -> LoadedEnv | None:
    """The environment of the catalog with the name, version, suite and wrappers of the run's; None if there is none."""
    try:
        env = _load_installed(run.config.get("env"), WrapperSelection.from_config(run.config))
    except ConfigError:
        return None
    if env is None:
        return None
    here = {"env_version": env.spec.version, "suite": env.suite.name, "suite_version": env.suite.version}
    return env if here == {key: run.config.get(key) for key in here} else None


def _load_installed(name: Json, wrappers: WrapperSelection | None = None) -> LoadedEnv | None:
    """The environment of the catalog inside wrappers; None if there is none that can be loaded without installing."""
    if name not in names():
        return None
    try:
        spec = load_spec(name)
        return (wrappers or WrapperSelection()).apply(spec) if spec.installed() else None
    except GymcpError:
        return None


def find_credit(folder: Path, tasks: Mapping[str, Task]) -> CreditAdvice | None:
    """Advice on the credit of a run; None if its episodes cannot be compared, or the extra `train` is not installed."""
    with TrajectoryStore.open(folder) as store:
        rows = [row for row in store.summaries() if row.score is not None and row.steps]
        comparable = max(Counter(row.group for row in rows).values(), default=0) > 1
        if not comparable or sum(row.steps for row in rows) > MAX_STEPS:
            return None
        try:
            diagnosis = importlib.import_module("gymcp.trainers.credit.diagnosis.rows")
            advice: CreditAdvice = diagnosis.credit_advice(store.iter_trajectories(latest=True, graded=True), tasks)
        except (ModuleNotFoundError, ConfigError):
            return None
    return advice
