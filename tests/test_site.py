"""The parts of the documentation site that are made from the code. `make docs` builds the site, in CI."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import typer
from cli_reference import describe_commands
from links import ROOT, replace_links
from recipe_keys import describe_recipe

from gymcp.cli.app import app
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.settings.loss import Loss


def test_every_command_and_option_is_in_the_reference() -> None:
    page = describe_commands()
    root: Any = typer.main.get_command(app)
    names = root.list_commands(root.context_class(root))
    assert len(names) > 15
    for name in names:
        assert f"## gymcp {name}\n" in page or f"## gymcp {name} " in page
    assert "| `--limit, -n N` |" in page
    assert "\n## gymcp servers add\n" in page


def test_a_replaced_option_is_not_in_the_reference() -> None:
    (section,) = [part for part in describe_commands().split("\n## gymcp ") if part.startswith("train\n")]
    assert "| `--set " in section
    assert "--dry-run" not in section


def test_every_key_of_a_recipe_is_in_the_reference() -> None:
    page = describe_recipe()
    for name, kind in get_type_hints(Recipe).items():
        if is_dataclass(kind):
            assert f"## [{name}]\n" in page
        for field in fields(kind) if is_dataclass(kind) else ():
            assert f"| `{field.name}` |" in page
    assert "| `hidden` | `int` | `128` | Width of the tiny model's hidden states. |" in page
    assert "\n## [rollout.branching]\n" in page
    assert [line for line in page.splitlines() if re.match(r"\| `\w+` \|.*\|\s*\|$", line)] == []


def test_links_out_of_the_folder_lead_to_the_copy_or_name_the_file() -> None:
    page = ROOT / "docs" / "start" / "train.md"
    text = "[a](../credit.md#x) [b](../../CHANGELOG.md) [c](../../examples/bank.py) [d](https://x.org/y) [e](#here)"
    assert replace_links(text, page, depth=1) == (
        "[a](../credit.md#x) [b](../changelog.md) c (`examples/bank.py`) [d](https://x.org/y) [e](#here)"
    )


def test_a_copied_page_keeps_its_pictures_and_links() -> None:
    page = ROOT / "benchmarks" / "RESULTS.md"
    text = "![curves](results/curves_backoffice.png) [how](../docs/training.md#metrics)"
    assert replace_links(text, page, depth=0) == ("![curves](results/curves_backoffice.png) [how](training.md#metrics)")


def test_a_page_can_show_the_picture_of_a_comparison() -> None:
    text = '<img src="../../benchmarks/results/credit/rounds-2/curves-light.png">'
    page = ROOT / "docs" / "start" / "train.md"
    assert replace_links(text, page, depth=1) == '<img src="../results/credit/rounds-2/curves-light.png">'


def test_the_options_and_recipe_keys_that_coming_from_names_exist() -> None:
    text = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    ours = [line.split(" | ", 1)[1] for line in text.splitlines() if line.startswith("| ") and " | " in line]
    options = {option for cell in ours for option in re.findall(r"--[a-z][a-z-]+", cell)}
    assert len(options) >= 12
    reference = describe_commands()
    assert [option for option in sorted(options) if not re.search(rf"[` ]{option}\b", reference)] == []
    sections = {name: kind for name, kind in get_type_hints(Recipe).items() if is_dataclass(kind)}
    sections |= {"loss": Loss}
    keys = {key for cell in ours for key in re.findall(r"`([a-z_]+\.[a-z_]+)(?: = [^`]*)?`", cell)} - {"metrics.jsonl"}
    known = {f"{name}.{field.name}" for name, kind in sections.items() for field in fields(kind)}
    assert keys - known - {"credit.preset", "recipe.toml", "trajectories.sqlite"} == set()
    assert len(keys) >= 10
