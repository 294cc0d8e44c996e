"""Every block on a page of the documentation is played by a test or says why not; its options and links exist.

What the commands do is tested by playing the pages: tests/cli/test_pages.py, and the tests that are named here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Set
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from house import FOLDERS, module_name
from links import COPIED
from page_blocks import DOCS, NOT_PLAYED, ROOT, count_not_run, read_blocks
from prose import python_files
from typer.core import TyperGroup

from gymcp.cli.app import app
from gymcp.trainers.recipe.recipe import Recipe

ALL_PAGES = (ROOT / "README.md", *(ROOT / name for name in COPIED), *sorted(DOCS.rglob("*.md")))
LANGUAGES = ("sh", "python", "toml", "json", "text", "")
"""Languages of blocks; `page_player` runs or writes the first three."""
COMMAND = re.compile(r"^(\$ )?(\.venv/bin/)?gymcp [a-z-]", re.MULTILINE)
MAX_GLOSSARY = 30
"""Words that a newcomer can be asked to learn."""
NOT_RUN = {
    "CONTRIBUTING.md": 1,
    "adding-a-server.md": 2,
    "agent-programs.md": 1,
    "command-line.md": 1,
    "credit.md": 1,
    "judge.md": 1,
    "policies.md": 2,
    "scale.md": 2,
    "search.md": 1,
    "start/benchmark-your-model.md": 1,
    "start/demo.md": 1,
    "start/install.md": 3,
    "start/train.md": 2,
    "textworld.md": 1,
    "training.md": 2,
}
"""Page, by its path in docs/ or in the checkout -> number of its blocks that cannot be run in a test; each has its
reason beside it. Other pages have none."""
RECIPE_SECTIONS = {*(field.name for field in fields(Recipe)), "rollout.branching"}
PLAYED_IN_PARTS = {
    "README.md": "tests/test_readme.py",
    "adding-a-server.md": "tests/cli/test_servers_cli.py",
    "command-line.md": "tests/cli/test_pages.py",
    "start/install.md": "tests/cli/test_pages.py",
}
"""Page -> test that plays its blocks one by one or by section; `play_page` plays all other pages."""


def commands(page: Path) -> Iterator[str]:
    """The gymcp commands of a page's shell blocks, continued lines joined."""
    for block in read_blocks(page):
        if block.language == "sh" and block.mark != "fails":
            for line in block.text.replace("\\\n", " ").splitlines():
                if line.startswith("gymcp "):
                    yield line


PAGES = [page for page in ALL_PAGES if any(commands(page))]


def name_page(page: Path) -> str:
    return str(page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT))


def list_played_pages() -> set[str]:
    """Pages that a test plays as a whole, by their paths in docs/."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    calls = [names for text in texts for names in re.findall(r'play_page\(DOCS((?: / "[^"]+")+)', text)]
    return {"/".join(re.findall(r'"([^"]+)"', names)) for names in calls}


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_a_command_stands_in_a_shell_block_which_is_played_or_says_why_not(page: Path) -> None:
    blocks = read_blocks(page)
    fences = re.findall(r"^\s*(?:```|~~~)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(fences) == 2 * len(blocks), "a fence is indented or has a title: no test reads its block"
    assert [block.language for block in blocks if block.language not in LANGUAGES] == []
    assert [block.text for block in blocks if block.language != "sh" and COMMAND.search(block.text)] == []
    if any(block.language in ("sh", "python") and block.mark not in NOT_PLAYED for block in blocks):
        assert name_page(page) in list_played_pages() | set(PLAYED_IN_PARTS), "no test plays this page"


@pytest.mark.parametrize(("page", "test"), PLAYED_IN_PARTS.items())
def test_a_page_that_is_played_in_parts_is_named_by_its_test(page: str, test: str) -> None:
    assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


def parse(words: list[str]) -> None:
    """Parse a command without running it. Raises TyperException if a verb, option or argument does not exist."""
    command: Any = typer.main.get_command(app)
    name: str | None = "gymcp"
    while True:
        context = command.make_context(name, words)
        words = [*context._protected_args, *context.args]
        if not isinstance(command, TyperGroup) or not words:
            return
        name, command, words = command.resolve_command(context, words)


def test_the_glossary_is_short_and_sorted() -> None:
    words = re.findall(r"^\| ([^|]+) \| ", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)[1:]
    assert len(words) <= MAX_GLOSSARY
    assert words == sorted(words)


def test_new_names_of_renamed_things_exist() -> None:
    files = python_files((*FOLDERS, "tests", "benchmarks", "examples"))
    modules = {f".{module_name(path)}.": path.read_text(encoding="utf-8") for path in files}
    words = set(re.findall(r"\w+", " ".join([*modules, *modules.values()])))
    rows = re.findall(r"^\| .* \| (.*) \|$", (DOCS / "renames.md").read_text(encoding="utf-8"), re.MULTILINE)
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(names) > 1000
    assert [name for name in names if not has_new_name(name, modules, words)] == []


def has_new_name(name: str, modules: Mapping[str, str], words: Set[str]) -> bool:
    """True if a path in a name of `renames.md` is a file, and each word is in it, or in the module before its dot."""
    path, _, parts = name.rpartition(".py")
    ending = f".{path.removeprefix('src/').replace('/', '.')}."
    inside = "".join(text for module, text in modules.items() if module.endswith(ending))
    if path and not (inside and all(word in inside for word in re.findall(r"\w+", parts))):
        return False
    for before, word in re.findall(r"(?<!\w)([a-z_]\w*(?:\.[a-z_]\w*)*)\.(\w+)", parts):
        holders = {module: text for module, text in modules.items() if f".{before}." in module}
        is_key = before.split(".")[0] in RECIPE_SECTIONS
        if is_key or (not holders and "." not in before):  # the latter: a field
            continue
        if not any(word in text or module.endswith(f".{word}.") for module, text in holders.items()):
            return False
    return words >= {*re.findall(r"\w+", parts)}


def test_renames_names_each_public_name_that_is_gone() -> None:
    table = " ".join(re.findall(r"`([^`\n]*)`", (DOCS / "renames.md").read_text(encoding="utf-8")))
    old = (ROOT / "tests" / "old_names.txt").read_text(encoding="utf-8").split()
    code = "\n".join(path.read_text(encoding="utf-8") for path in python_files(FOLDERS))
    names = set(re.findall(r"^(?:async def |def |class )?([A-Za-z]\w*)(?=[(:,\[]| = )", code, re.MULTILINE))
    assert len(old) > 1700
    assert sorted({*old} - names - {*re.findall(r"\w+", table)}) == []


def test_blocks_that_are_not_run_are_counted() -> None:
    counts = {name_page(page): count_not_run(page) for page in ALL_PAGES}
    assert {page: count for page, count in counts.items() if count} == NOT_RUN


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_every_link_of_a_page_leads_to_a_file_of_the_checkout(page: Path) -> None:
    links = [link for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text(encoding="utf-8")) if link]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_a_link_says_what_it_leads_to(page: Path) -> None:
    texts = re.findall(r"\[([^\[\]]*)\]\(", page.read_text(encoding="utf-8"))
    assert [text for text in texts if text.endswith(".md")] == []


MAX_COMMAND = 78
"""Characters of a command's line that a page of 1,280 px shows whole."""


@pytest.mark.parametrize("page", sorted((DOCS / "start").glob("*.md")), ids=lambda page: page.stem)
def test_a_command_of_the_start_pages_is_seen_whole(page: Path) -> None:
    blocks = [block for block in read_blocks(page) if block.language == "sh"]
    lines = [line.partition("  #")[0] for block in blocks for line in block.text.splitlines()]
    assert [line for line in lines if len(line) > MAX_COMMAND] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_can_be_parsed(page: Path, subtests: pytest.Subtests) -> None:
    for command in commands(page):
        with subtests.test(command):
            parse(shlex.split(command, comments=True)[1:])


def test_an_option_that_does_not_exist_is_refused() -> None:
    with pytest.raises(Exception, match="no-such"):
        parse(["eval", "bank", "--no-such"])
