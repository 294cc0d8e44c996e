"""The parts of the documentation site that are made from the code. `make docs` builds the site, in CI."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import typer
from cli_reference import describe_commands
from links import ROOT, replace_links
from narrow_pages import mark_page, show_reasons
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


def test_rows_of_a_table_name_their_columns_and_short_code_is_not_broken() -> None:
    table = "<table>\n<thead>\n<tr>\n<th>key</th>\n<th>what it <em>means</em></th>\n</tr>\n</thead>\n"
    row = "<tbody>\n<tr>\n<td><code>--key-env</code></td>\n<td>text</td>\n</tr>\n</tbody>\n</table>"
    page = mark_page(table + row)
    assert '<td role="cell" data-column="key"><code class="unbroken">--key-env</code></td>' in page
    assert '<td role="cell" data-column="what it means">text</td>' in page
    assert page.count('role="row"') == 2
    assert page.count('role="columnheader"') == 2
    long = f"<p><code>{'x' * 33}</code></p><h2><code>a</code></h2><pre><code>b</code></pre>"
    assert mark_page(long) == long


def test_the_button_that_copies_a_block_stands_above_a_long_line() -> None:
    block = '<div class="language-sh highlight"><pre><span></span><code>{}\nb\n</code></pre></div>'
    assert 'highlight wide">' in mark_page(block.format("&lt;" * 75))
    assert mark_page(block.format("&lt;" * 74)) == block.format("&lt;" * 74)


def test_a_block_that_no_test_runs_says_so_to_its_reader() -> None:
    assert show_reasons("text\n\n<!-- not run: needs Slurm -->\n```sh\nsrun\n```\n") == (
        "text\n\n*No test runs these commands: needs Slurm.*\n\n```sh\nsrun\n```\n"
    )
