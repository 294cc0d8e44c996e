"""Measures of the prose rules over docstrings and names: `python tests/prose.py [FOLDER...]` lists what breaks them.

Docstrings are those of modules, classes and functions, and the strings that stand below an attribute or a constant.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("mcp_servers", "envs", "agents", "evaluators", "trainers", "src/gymcp", "examples", "benchmarks")
TESTS = ("tests", "docs/site")
SCRIPTS = ("Makefile", "Dockerfile", ".ci/*")
"""Files outside of Python whose comments are measured. Recipes and registrations are not: digests cover them."""
FIRST_WORDS = ("Of", "What", "Who", "Whose", "Whether", "Which", "How", "Where")
"""Words that no docstring begins with, and no comment."""
IRREGULAR = re.compile(
    "begun|bound|bought|brought|built|caught|dealt|done|drawn|driven|felt|forgotten|found|given|gone|grown|heard|held|"
    "hidden|kept|known|laid|left|lent|lost|made|meant|met|paid|proven|said|seen|sent|shown|sold|spent|spoken|sworn|"
    "taken|taught|thought|thrown|told|understood|won|worn|written"
)
"""Participles that do not end in -ed."""
TEST_RIDDLES = re.compile(
    r"test_what_|_what_is_no_|_that_(?:is|are)_(?:no|none)(?:_|$)|_that_cannot_be|_(?:it|they)_must(?:_|$)|nobody|whoever|somebody"
)
"""Parts of test names that say what something is not, or is not able to, instead of naming it."""
NOT_PARTICIPLES = ("bed", "embed", "exceed", "feed", "indeed", "need", "proceed", "red", "seed", "shed", "speed")


PLACES = frozenset(
    {
        "test_a_part_says_its_n_and_goes_on_where_it_was",
        "test_a_description_that_is_wrong_says_where",
        "test_a_run_of_an_earlier_version_goes_on_where_its_sequence_was",
        "test_a_server_that_writes_beside_itself_is_told_where_to_write",
        "test_an_editable_plug_in_is_hidden_where_its_source_lies",
        "test_arguments_and_answers_come_from_the_places_where_the_demonstration_had_them",
        "test_gigpo_splits_credit_where_episodes_diverge",
        "test_rows_behind_a_prefix_are_cut_where_they_would_be_padded_by_more_tokens_than_allowed",
        "test_the_mount_table_of_a_server_tells_where_its_program_lies",
        "test_the_next_turn_continues_where_the_last_one_ended",
        "test_where_means_a_place",
        "test_workspace_is_where_it_starts_and_is_the_hosts_folder",
    }
)
"""Names of tests in which *where* is a place."""
TOOL_FOLDERS = ("mcp_servers/programs", "examples")
"""Folders of servers: docstrings of their public methods are tool descriptions, which agents see and hashes cover."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    place: str
    """``PATH:LINE``."""
    text: str


def list_rooms() -> dict[str, tuple[Path, ...]]:
    """Folder -> its Python files: folders of code, folders of tests, and the files beside the latter."""
    rooms = {folder: tuple(python_files([folder])) for folder in SOURCES}
    for path in python_files(TESTS):
        folder, *below = path.relative_to(ROOT).parts[:-1]
        room = "/".join((folder, *below[:1]))
        rooms[room] = (*rooms.get(room, ()), path)
    return rooms


def python_files(folders: Sequence[str] = SOURCES) -> Iterator[Path]:
    """Python files below the folders, not followed through links."""
    for folder in folders:
        yield from _list_folder(folder)


@functools.cache
def _list_folder(folder: str) -> tuple[Path, ...]:
    paths = [path for path in sorted((ROOT / folder).rglob("*.py")) if "__pycache__" not in path.parts]
    links = {above for path in paths for above in path.parents if above.is_relative_to(ROOT) and _is_link(above)}
    return tuple(path for path in paths if links.isdisjoint(path.parents))


@functools.cache
def _is_link(folder: Path) -> bool:
    return folder.is_symlink()


def walk_statements(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all statements below it, without expressions: these are nine of ten nodes."""
    nodes = [node]
    while nodes:
        yield (last := nodes.pop())
        nodes.extend(reversed(list_statements(last)))


def list_statements(node: ast.AST) -> list[ast.AST]:
    """The statements directly below the node, with handlers of exceptions and cases of a match."""
    found: list[ast.AST] = []
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        parts = getattr(node, field, None)
        if isinstance(parts, list):
            found += parts
    return found


def docstrings(path: Path) -> tuple[Text, ...]:
    """Docstrings of the file, with those of attributes and constants, without those of tools."""
    return _read(path)[0]


def functions(path: Path) -> tuple[Text, ...]:
    """Names of the functions and methods of the file."""
    return _read(path)[1]


@functools.cache
def _read(path: Path) -> tuple[tuple[Text, ...], tuple[Text, ...]]:
    """(docstrings, functions) of the file, which is parsed once."""
    nodes = list(walk_statements(ast.parse(path.read_text(encoding="utf-8"))))
    name = str(path.relative_to(ROOT))
    names = (
        Text(place=f"{name}:{node.lineno}", text=node.name)
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return tuple(_find_docstrings(name, nodes)), tuple(names)


def _find_docstrings(name: str, nodes: Sequence[ast.AST]) -> Iterator[Text]:
    for node in nodes:
        body = getattr(node, "body", None)
        if isinstance(body, list) and not (name.startswith(TOOL_FOLDERS) and _may_be_tool(node)):
            for number, part in enumerate(body):
                if _is_text(part) and (_opens(node, number) or _follows_assignment(body, number)):
                    yield Text(place=f"{name}:{part.lineno}", text=part.value.value)


def comments(path: Path) -> list[Text]:
    """First lines of the comments of a Python file, a Makefile or a shell script."""
    name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        found = [(token.start[0], token.string, token.line) for token in tokens if token.type == tokenize.COMMENT]
    else:
        found = [
            (n, line.lstrip(), line) for n, line in enumerate(text.splitlines(), 1) if line.lstrip().startswith("#")
        ]
    whole_lines = {number for number, _, line in found if line.lstrip().startswith("#")}
    return [
        Text(place=f"{name}:{number}", text=comment.lstrip("# "))
        for number, comment, _ in found
        if not (number in whole_lines and number - 1 in whole_lines)
    ]


def scripts() -> list[Path]:
    """Makefile, Dockerfile and shell scripts of the checkout."""
    return sorted(path for pattern in SCRIPTS for path in ROOT.glob(pattern) if path.is_file())


def has_question_word_first(text: str) -> bool:
    """True for a comment that begins with one of the words, in upper or lower case."""
    return re.match(rf"(?:{'|'.join(FIRST_WORDS)})\b", text, re.IGNORECASE) is not None


def count_where(text: str) -> int:
    return len(re.findall(r"\bwhere\b", text, re.IGNORECASE))


def has_bad_first_word(text: str) -> bool:
    return re.match(rf"\s*(?:{'|'.join(FIRST_WORDS)})\b", text) is not None


def is_participle(name: str) -> bool:
    """True for a function whose first word is a past participle, such as ``told`` or ``opened_file``."""
    word = name.strip("_").split("_")[0]
    return IRREGULAR.fullmatch(word) is not None or (word.endswith("ed") and word not in NOT_PARTICIPLES)


def says_where(name: str) -> bool:
    """True for the name of a test with the word *where*, which may stand for *if*."""
    return name.startswith("test_") and "where" in name.split("_")


def is_riddle(name: str) -> bool:
    """True for the name of a test that has a clause or a pronoun in the place of a noun."""
    return name.startswith("test_") and TEST_RIDDLES.search(name) is not None


def _is_text(part: ast.stmt) -> bool:
    return isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str)


def _may_be_tool(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and not node.name.startswith("_")


def _opens(node: ast.AST, number: int) -> bool:
    return number == 0 and isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)


def _follows_assignment(body: list[ast.stmt], number: int) -> bool:
    return number > 0 and isinstance(body[number - 1], ast.Assign | ast.AnnAssign)


def main() -> None:
    paths = list(python_files(sys.argv[1:] or (*SOURCES, *TESTS)))
    texts = [text for path in paths for text in docstrings(path)]
    names = [name for path in paths for name in functions(path)]
    first = [text for text in texts if has_bad_first_word(text.text)]
    participles = [name for name in names if is_participle(name.text)]
    for text in first:
        print(f"{text.place}: first word: {' '.join(text.text.split())[:110]}")
    for text in texts:
        if count_where(text.text):
            print(f"{text.place}: where: {' '.join(text.text.split())[:110]}")
    for name in participles:
        print(f"{name.place}: participle: {name.text}")
    for name in filter(lambda name: is_riddle(name.text) or says_where(name.text), names):
        print(f"{name.place}: name of a test: {name.text}")
    remarks = [text for path in (*paths, *scripts()) for text in comments(path)]
    asking = [text for text in remarks if has_question_word_first(text.text)]
    for text in asking:
        print(f"{text.place}: first word of a comment: {text.text[:110]}")
    words = sum(len(text.text.split()) for text in texts)
    where = sum(count_where(text.text) for text in texts)
    rate, share = 1000 * where / max(words, 1), 100 * len(participles) / max(len(names), 1)
    print(f"{len(texts)} docstrings, {words} words; first words: {len(first)}; where: {where} ({rate:.1f} in 1,000)")
    print(f"{len(remarks)} comments; first words: {len(asking)}")
    print(f"{len(names)} functions; participles: {len(participles)} ({share:.1f} %)")


if __name__ == "__main__":
    main()
