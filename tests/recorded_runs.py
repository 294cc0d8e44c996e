"""Run folders that hold the records, written through the real store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from records import HOSTILE_TEXT, LOST, PAID, SPOKEN, order_episode

from gymcp.evaluators.report.registered.curves_file import read_registered_curves
from gymcp.evaluators.report.registered.curves_page import render_curves
from gymcp.evaluators.training_curves import read_held_out
from gymcp.outcome import Outcome
from gymcp.store import StepCredit, TrajectoryStore, create_run
from gymcp.types import Json, Trajectory

TAGS = ("refunds", "long")


def make_run(folder: Path, episodes: Sequence[Trajectory] = (PAID, SPOKEN, LOST)) -> Path:
    """A run folder that holds them, all under the same tags."""
    config = {"env": "shop", "suite": "shop", "agent": "react", "policy": "tiny"}
    with create_run(folder, config), TrajectoryStore.open(folder, write=True) as store:
        for episode in episodes:
            store.append(episode, {}, tags=TAGS)
    return folder


def read_run(folder: Path) -> list[Trajectory]:
    with TrajectoryStore.open(folder) as store:
        assert {row.tags for row in store.summaries()} == {TAGS}
        return list(store.iter_trajectories())


def states(paid: int) -> Json:
    return {"orders": {"7": {"status": "paid" if paid else "open", "sum": 30}}, "log": ["start"] * (1 + paid)}


def write_run(folder: Path, agent: str, *, paying: int, tasks: int = 120, trials: int = 2) -> Path:
    """`tasks` x `trials` episodes, of which the first `paying` tasks' succeed, and one that was lost."""
    config = {"env": "shop", "suite": "shop", "suite_version": "1", "agent": agent}
    with create_run(folder, config, seeds=[0]), TrajectoryStore.open(folder, write=True) as store:
        blobs = {"state-0": states(0), "state-1": states(1)}
        for n in range(tasks):
            for trial in range(trials):
                words = "The needle is in episode eighty." if n == 80 else ""
                pays = n < paying if trial == 0 else n % 2 == 0
                one = order_episode(f"task{n:03}", trial, pays=pays, run=agent, words=words)
                store.append(one, blobs, tags=("refund" if n % 3 == 0 else "order",))
        lost = order_episode(
            "lost", 0, pays=False, run=agent, score=None, outcome=Outcome.ENV_INFRA, reason="server died"
        )
        store.append(lost, blobs)
        store.add_credits(
            StepCredit(
                trajectory=f"{agent}-task000-{trial}",
                preset="gigpo",
                rewards=(0.0, 1.0),
                returns=(0.95, 1.0),
                advantages=(0.25, -0.5 - trial),
            )
            for trial in range(trials)
        )
    return folder


def write_hostile(folder: Path) -> Path:
    """Every text of it is an attempt; one is huge."""
    bad = HOSTILE_TEXT
    with create_run(folder, {"env": bad, "agent": bad, bad: bad}), TrajectoryStore.open(folder, write=True) as store:
        one = order_episode(bad, 0, pays=True, run=bad, words=bad, reason=bad, components={bad: 1.0})
        store.append(one, {"state-0": {}, "state-1": {bad: bad}}, tags=(bad,))
        huge = order_episode("x" * 100_000, 0, pays=False, run="y" * 1000, words="z" * 2_000_000, reason="w" * 500_000)
        store.append(huge, {}, tags=("t" * 5000,))
    return folder


def write_training_run(
    folder: Path, *, iterations: int = 4, ended: str | None = "finished", scored: int | None = None
) -> Path:
    """A training run of two tasks with two episodes each in every iteration, evaluated before and after it.

    `scored`: held-out tasks with a score, of 8; None: as a run of an older gymcp, which recorded no number.
    """
    folder.mkdir(parents=True)
    recipe = {"name": "pays", "env": "shop", "seed": 0}
    state = {"iteration": iterations, "recipe": recipe} | ({} if ended is None else {"ended": ended})
    (folder / "training.json").write_text(json.dumps(state))
    rows = []
    for iteration in range(iterations + 1):
        row: dict[str, Json] = {"iteration": iteration}
        if iteration:
            row |= {"success": 0.25 * min(iteration, 4), "entropy": 2.0 / iteration, "kl": 1e-5 * iteration}
        if iteration in (0, iterations):
            success = 0.5 if iteration else 0.25
            row |= {"test/seeds/success": success, "test/seeds/low": success - 0.125, "test/seeds/high": success + 0.25}
            row |= {} if scored is None else {"test/seeds/scored": scored, "test/seeds/tasks": 8}
        rows.append(json.dumps(row))
    (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    with TrajectoryStore.open(folder, write=True) as store:
        for iteration in range(iterations):
            for n in range(4):
                task, trial = f"task{n % 2}", 2 * iteration + n // 2
                group = f"shop/{task}/{iteration}"
                store.append(order_episode(task, trial, pays=n < iteration, run="train", group=group), {})
    return folder


def write_curve_page(path: Path) -> Path:
    """The demo's page of curves: a short training, beside the registered comparisons that the package ships."""
    recipe = {"env": "rounds", "seed": 0, "tasks": {"levels": [3]}, "credit": {"preset": "gigpo"}}
    rows = [
        {"iteration": 0, "test/seeds/success": 0.125, "test/seeds/low": 0.0, "test/seeds/high": 0.25},
        {"iteration": 1, "success": 0.25},
        {"iteration": 2, "test/seeds/success": 0.875, "success": 0.5},
    ]
    page = render_curves("The demo's training", recipe, rows, read_held_out(rows), read_registered_curves())
    path.write_text(page, encoding="utf-8")
    return path
