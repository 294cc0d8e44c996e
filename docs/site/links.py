"""Links between files of the repository, as links between pages of the site."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIED = {"benchmarks/RESULTS.md": "results.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages of the site that are files elsewhere in the repository."""
PICTURES = "benchmarks/results"
"""Folder of the pictures of RESULTS.md and of reports of comparisons: it has the same place beside the copied page."""
_PICTURE = re.compile(rf'(src|srcset)="(?:\.\./)+{PICTURES}/')
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def replace_links(markdown: str, here: Path, *, depth: int) -> str:
    """Links to copied pages lead to the copies; links to other files outside docs/ become their paths, as code.

    `here` is the file that holds the text, `depth` the number of folders above its page in the site.
    """

    def replace(match: re.Match[str]) -> str:
        text, link, anchor = match[1], match[2], match[3] or ""
        target = (here.parent / link).resolve()
        path = str(target.relative_to(ROOT)) if target.is_relative_to(ROOT) else ""
        if not path or path.startswith(PICTURES):
            return match[0]
        if path in COPIED:
            return f"[{text}]({'../' * depth}{COPIED[path]}{anchor})"
        if path.startswith("docs/"):
            return f"[{text}]({'../' * depth}{path.removeprefix('docs/')}{anchor})"
        return text if "`" in text or path in text else f"{text} (`{path}`)"

    return _PICTURE.sub(rf'\1="{"../" * depth}results/', _LINK.sub(replace, markdown))
