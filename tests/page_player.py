"""Play the code blocks of a documentation page as a reader types them, in order, in one folder.

=========================  ============================================================================================
block                      what is done
=========================  ============================================================================================
``sh``                     each line that is one plain gymcp command is run in a process that has imported gymcp
                           already; the lines between two of them are run by one bash
``python``, ``toml``       written to a file if the first line is ``# file: NAME``; else Python is run
other languages            shown only; after a command that fails, compared with its error
=========================  ============================================================================================

`page_blocks` reads the blocks, and the comments before them that say what is special.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
import warm_command
from page_blocks import NOT_PLAYED, Block, read_blocks
from viewer_process import run_viewer

GYMCP = warm_command.GYMCP
TIMEOUT_S = 600
_SHELL_MARKS = re.compile(r"[|<>&;$*\\]|^\s*#")


def play_page(page: Path, folder: Path, *, replace: Mapping[str, str] | None = None) -> int:
    """Number of blocks that were run or written; each does what the page says, else AssertionError.

    `replace`: texts of the page that have another form here, such as the address of an endpoint.
    """
    return play_blocks(read_blocks(page), folder, replace=replace)


def play_blocks(blocks: Sequence[Block], folder: Path, *, replace: Mapping[str, str] | None = None) -> int:
    """`play_page` for some blocks of a page."""
    played, error = 0, ""
    for block in blocks:
        text = block.text
        for old, new in (replace or {}).items():
            text = text.replace(old, new)
        if block.mark in NOT_PLAYED:
            assert block.detail
            continue
        if block.language not in ("sh", "python", "toml"):
            if error:
                _compare(text, error)
            error = ""
            continue
        assert block.mark in ("", "fails"), block.mark
        error = _play(block, text, folder)
        played += 1
    return played


def play_block(block: Block, folder: Path) -> None:
    """Run one block of a page by itself."""
    _play(block, block.text, folder)


def _play(block: Block, text: str, folder: Path) -> str:
    """The error output of a block that must fail; empty for others."""
    if block.file:
        (folder / block.file).write_text(text, encoding="utf-8")
        return ""
    assert block.language in ("sh", "python"), f"a block of {block.language} without a file name:\n{text}"
    if block.language == "python":
        done = _run([sys.executable, "-W", "ignore", "-c", text], folder)
    else:
        done = _type(text, folder)
    assert done.returncode == int(block.detail or 0), f"{text}\n{done.returncode}\n{done.stdout}{done.stderr}"
    return done.stderr if block.mark == "fails" else ""


def _type(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The last command of a shell block, or the first that failed."""
    joined = re.sub(r" \\\n\s*", " ", text)  # a command that goes on in its next line
    lines = [line for line in joined.splitlines() if line.strip()]
    done = subprocess.CompletedProcess[str]([], 0, "", "")
    for plain, group in itertools.groupby(lines, is_plain):
        for command in group if plain else ["\n".join(group)]:
            done = _type_gymcp(command, folder) if plain else _run(["bash", "-eu", "-c", command], folder)
            if done.returncode != 0:
                return done
    return done


def _type_gymcp(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = shlex.split(line.partition("  #")[0])[1:]
    if words[0] == "view" and "--export" not in words:
        open_viewer(words[1:], folder)
        return subprocess.CompletedProcess(words, 0, "", "")
    return warm_command.run(words, cwd=folder, env=os.environ, timeout_s=TIMEOUT_S)


def is_plain(line: str) -> bool:
    """True for a gymcp command that needs no shell."""
    in_quotes = re.sub(r"'[^']*'|\"[^\"]*\"", "", line.partition("  #")[0])
    return line.startswith("gymcp ") and not _SHELL_MARKS.search(in_quotes)


def _run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{GYMCP.parent}:{os.environ['PATH']}"}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


def open_viewer(arguments: Sequence[str], folder: Path) -> None:
    """Open the page that the viewer serves until Ctrl-C. `arguments`: of ``gymcp view``."""
    with run_viewer(*arguments, cwd=folder) as address:
        page = httpx.get(address, follow_redirects=True, timeout=60)
    assert page.status_code == 200, page.text


def _compare(shown: str, found: str) -> None:
    """Compare a message on the page with the real one; ``...`` on the page stands for any text."""
    pattern = ".*".join(re.escape(part) for part in " ".join(shown.split()).split("..."))
    assert re.search(pattern, " ".join(found.split())), f"the page says\n{shown}\nthe command says\n{found}"
