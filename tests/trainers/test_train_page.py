"""Pages on training, played as a reader types them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from page_blocks import DOCS, ROOT, read_blocks
from page_player import play_block, play_page

SHORT = {
    "warm_start.tasks": 16,
    "warm_start.epochs": 1,
    "rollout.groups": 2,
    "learn.iterations": 1,
    "evaluation.tasks": 4,
    "evaluation.final_tasks": 4,
}


def test_a_policy_is_trained_and_used(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    assert play_page(DOCS / "start" / "train.md", tmp_path) == 5
    assert (tmp_path / "runs" / "first" / "final" / "model.safetensors").is_file()


def test_the_curve_that_rises_is_drawn_as_the_page_says(tmp_path: Path) -> None:
    """The two minutes of the page belong to benchmarks/walks.py: one short iteration shows that the commands work."""
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes", symlinks=True)
    (block,) = (block for block in read_blocks(DOCS / "start" / "train.md") if block.mark == "slow")
    settings = "".join(f" --set {key}={value}" for key, value in SHORT.items())
    text = block.text.replace("--out runs/rising", f"--out runs/rising{settings}")
    play_block(replace(block, text=text, mark="", detail=""), tmp_path)
    lines = (tmp_path / "runs" / "rising" / "metrics.jsonl").read_text().splitlines()
    rows = {row["iteration"]: row for row in map(json.loads, lines)}
    assert rows.keys() == {0, 1}
    assert all("test/seeds/success" in row for row in rows.values())
    assert (tmp_path / "runs" / "rising" / "report.html").is_file()


def test_a_recipe_is_checked_and_explained(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes", symlinks=True)
    assert play_page(DOCS / "training.md", tmp_path) == 1
    assert not (tmp_path / "runs").exists()
