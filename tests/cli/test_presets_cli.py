"""The page on presets of the user, played as a reader types it."""

from __future__ import annotations

from pathlib import Path

from cli_runner import BANK
from page_blocks import DOCS
from page_player import play_page


def test_the_page_on_presets_is_played(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(BANK.parent)
    assert play_page(DOCS / "adding-a-preset.md", tmp_path) == 6
