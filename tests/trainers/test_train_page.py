"""Pages on training, played as a reader types them."""

from __future__ import annotations

import shutil
from pathlib import Path

from page_blocks import DOCS, ROOT
from page_player import play_page


def test_a_policy_is_trained_and_used(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    assert play_page(DOCS / "start" / "train.md", tmp_path) == 4
    assert (tmp_path / "runs" / "first" / "final" / "model.safetensors").is_file()


def test_a_recipe_is_checked_and_explained(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    assert play_page(DOCS / "training.md", tmp_path) == 1
    assert not (tmp_path / "runs").exists()
