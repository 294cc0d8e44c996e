"""Options of the verb demo; its work is in the modules beside this."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gymcp.cli.lazy_verbs import defer_to
from gymcp.cli.option_types import AsJson


class Part(StrEnum):
    """A part of the demo."""

    BFCL = "bfcl"
    TINY = "tiny"
    TRAIN = "train"


@defer_to("demo.demo:execute")
def demo(
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="Folder for the run folders; if it is taken, one with a number is made beside it."
        ),
    ] = Path("runs/demo"),
    only: Annotated[Part | None, typer.Option(help="Part to run; default: all.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Tasks of BFCL for each agent, evenly spread; 0: all 800.")] = 200,
    as_json: AsJson = False,
) -> None:
    """Show what gymcp does, in three parts.

    Agents play BFCL, a small policy plays a back office, and a smaller one is trained on `rounds`: twelve parcels, each
    with the one tool that it needs. Some episodes are shown as they end, and the last lines name the pages to open.
    Exit code 1 if an agent's success is not what it must be, or an episode was lost. Without the extra `train` only the
    first part can be run.
    """
