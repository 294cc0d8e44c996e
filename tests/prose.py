"""Measures of the prose rules over docstrings and names: `python tests/prose.py [FOLDER...]` lists what breaks them.

Docstrings are those of modules, classes, functions, and the strings that stand below an attribute or a constant.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("mcp_servers", "envs", "agents", "evaluators", "trainers", "src/gymcp", "examples", "benchmarks")
FIRST_WORDS = ("Of", "What", "Who", "Whose", "Whether", "Which", "How", "Where")
"""Words that no docstring begins with."""
IRREGULAR = frozenset(
    [
        "begun",
        "bound",
        "bought",
        "brought",
        "built",
        "caught",
        "dealt",
        "done",
        "drawn",
        "driven",
        "felt",
        "forgotten",
        "found",
        "given",
        "gone",
        "grown",
        "heard",
        "held",
        "hidden",
        "kept",
        "known",
        "laid",
        "left",
        "lent",
        "lost",
        "made",
        "meant",
        "met",
        "paid",
        "proven",
        "said",
        "seen",
        "sent",
        "shown",
        "sold",
        "spent",
        "spoken",
        "sworn",
        "taken",
        "taught",
        "thought",
        "thrown",
        "told",
        "understood",
        "won",
        "worn",
        "written",
    ]
)
"""Participles that do not end in -ed."""
NOT_PARTICIPLES = frozenset(
    ["bed", "embed", "exceed", "feed", "indeed", "need", "proceed", "red", "seed", "shed", "speed"]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    place: str
    """``PATH:LINE``."""
    text: str


def python_files(folders: Sequence[str] = SOURCES) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            linked = any(part.is_symlink() for part in path.parents if part.is_relative_to(ROOT))
            if not linked and "__pycache__" not in path.parts:
                yield path


def docstrings(path: Path) -> Iterator[Text]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for at, part in enumerate(
            getattr(node, "body", None) or () if not isinstance(node, ast.Lambda | ast.IfExp) else ()
        ):
            if not isinstance(part, ast.Expr) or not isinstance(part.value, ast.Constant):
                continue
            opens = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and at == 0
            follows = at > 0 and isinstance(body[at - 1], ast.Assign | ast.AnnAssign)
            if isinstance(part.value.value, str) and (opens or follows):
                yield Text(place=f"{path.relative_to(ROOT)}:{part.lineno}", text=part.value.value)


def functions(path: Path) -> Iterator[Text]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Text(place=f"{path.relative_to(ROOT)}:{node.lineno}", text=node.name)


def has_bad_first_word(text: str) -> bool:
    return re.match(rf"\s*(?:{'|'.join(FIRST_WORDS)})\b", text) is not None


def is_participle(name: str) -> bool:
    """True for a function whose first word is a past participle, such as ``told`` or ``opened_file``."""
    word = name.strip("_").split("_")[0]
    return word in IRREGULAR or (word.endswith("ed") and word not in NOT_PARTICIPLES)


def main() -> None:
    paths = list(python_files(sys.argv[1:] or SOURCES))
    texts = [text for path in paths for text in docstrings(path)]
    names = [name for path in paths for name in functions(path)]
    words = sum(len(text.text.split()) for text in texts)
    where = [text for text in texts if re.search(r"\bwhere\b", text.text, re.IGNORECASE)]
    first = [text for text in texts if has_bad_first_word(text.text)]
    participles = [name for name in names if is_participle(name.text)]
    for text in first:
        print(f"{text.place}: begins with {text.text.split()[0]}: {text.text.strip().splitlines()[0][:90]}")
    for text in where:
        print(f"{text.place}: where: {' '.join(text.text.split())[:110]}")
    for name in participles:
        print(f"{name.place}: participle: {name.text}")
    count = sum(len(re.findall(r"\bwhere\b", text.text, re.IGNORECASE)) for text in texts)
    print(
        f"{len(texts)} docstrings, {words} words; first words: {len(first)}; where: {count} ({1000 * count / max(words, 1):.1f} in 1,000)"
    )
    print(
        f"{len(names)} functions; participles: {len(participles)} ({100 * len(participles) / max(len(names), 1):.1f} %)"
    )


if __name__ == "__main__":
    main()
