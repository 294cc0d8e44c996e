"""The code blocks of a documentation page. `page_player` plays them.

A comment before a block says what is special: ``<!-- not run: REASON -->``, ``<!-- fails: EXIT CODE -->``,
``<!-- slow: REASON -->`` for one that only `benchmarks/walks.py` runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOT_PLAYED = ("not run", "slow")
_BLOCK = re.compile(r"^(?:<!-- ([\w ]+): (.*?) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    language: str
    text: str
    mark: str = ""
    """``not run``, ``slow`` or ``fails``; empty for an ordinary block."""
    detail: str = ""
    """Reason why it is not run, or the exit code."""

    @property
    def file(self) -> str:
        """Name of the file that the block is; empty for a block that is run."""
        first = self.text.splitlines()[0] if self.text else ""
        return first.removeprefix("# file: ") if first.startswith("# file: ") else ""


def read_blocks(page: Path) -> tuple[Block, ...]:
    return _find_blocks(page.read_text(encoding="utf-8"))


def _find_blocks(text: str) -> tuple[Block, ...]:
    found = _BLOCK.findall(text)
    return tuple(
        Block(mark=mark, detail=detail, language=language, text=text) for mark, detail, language, text in found
    )


def read_sections(page: Path) -> dict[str, tuple[Block, ...]]:
    """Heading of each section -> its blocks, for the sections that have blocks; "" for what stands before the first."""
    parts = re.split(r"^## (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    texts = {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}
    return {heading: blocks for heading, text in texts.items() if (blocks := _find_blocks(text))}


def count_not_run(page: Path) -> int:
    """Number of blocks that carry a reason why they are not run."""
    return sum(block.mark in NOT_PLAYED for block in read_blocks(page))
