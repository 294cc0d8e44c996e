"""The benchmark of a pretrained model, played at toy size with random weights."""

from __future__ import annotations

from pathlib import Path

from pretrained import list_short, play

from gymcp.agents.policies.tiny_model import TinySize, make_tiny_model
from gymcp.types import Task


def test_tasks_of_one_class_are_chosen_evenly() -> None:
    tasks = [
        Task(id=f"{n}", prompts=("",), tags=("base", "Files") if n % 2 else ("base", "Files", "Math"))
        for n in range(12)
    ]
    assert list_short(tasks, 3) == ["1", "5", "9"]


def test_a_part_says_its_n_and_goes_on_where_it_was(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", "compact", size=TinySize(hidden=32, layers=1))
    results = play(f"local:{model}", "backoffice", tmp_path / "run", quick=True)
    shown = {row.metric: row.value for row in results}
    assert (shown["success, n = 2"], shown["success, n = 2: 95 % from"]) == (0.0, 0.0)
    assert 0.5 < shown["success, n = 2: 95 % to"] < 1.0
    assert play(f"local:{model}", "backoffice", tmp_path / "run", quick=True) == results
