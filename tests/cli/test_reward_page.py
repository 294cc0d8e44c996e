"""The page on rewards: its environment, its recipe, its commands and its error."""

from __future__ import annotations

from pathlib import Path

from cli_runner import BANK
from page_blocks import DOCS
from page_player import play_page


def test_the_page_on_rewards_can_be_followed(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(BANK.parent)
    assert play_page(DOCS / "reward.md", tmp_path) == 5
