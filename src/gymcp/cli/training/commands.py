"""Options of the verbs export, import and serve; their work is in the modules beside this."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gymcp.cli.completion import complete_preset, offer
from gymcp.cli.known_names import EXPORT_FORMATS
from gymcp.cli.lazy_verbs import defer_to
from gymcp.cli.option_types import AsJson, PresetSettings, RunEnvironment, RunFolder


@defer_to("training.export:execute")
def export(
    run: RunFolder,
    format: Annotated[
        str,
        typer.Option(
            help=f"Format: {', '.join(EXPORT_FORMATS)}; docs/exchange.md says what each keeps.",
            autocompletion=offer(EXPORT_FORMATS),
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="File to write, for atif a folder; default: export.FORMAT or atif/ in the run folder."
        ),
    ] = None,
    attempts: Annotated[bool, typer.Option("--attempts", help="Include attempts that a later one replaced.")] = False,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Preset whose advantages are included, see docs/methods.md; default: none.",
            autocompletion=complete_preset,
        ),
    ] = None,
    settings: PresetSettings = None,
    env: RunEnvironment = None,
    as_json: AsJson = False,
) -> None:
    """Write a run as JSON lines, Parquet, ATIF documents or CSV."""


@defer_to("training.export:import_episodes")
def import_run(
    file: Annotated[
        Path,
        typer.Argument(
            help="ATIF document, JSON lines of ATIF or of `gymcp export`, its Parquet, or a folder of such files."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Run folder to create.")],
    as_json: AsJson = False,
) -> None:
    """Create a run folder from episodes that were recorded elsewhere.

    The run can be viewed, reported and trained on.
    """


@defer_to("training.serve:execute")
def serve(
    model: Annotated[str, typer.Argument(help="Folder of a model and its tokenizer, smollm2, or OWNER/NAME of a hub.")],
    cpu: Annotated[bool, typer.Option("--cpu", help="Use the CPU even if there is a GPU.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: a free one.")] = 0,
    max_context: Annotated[
        int, typer.Option(min=0, help="Maximum tokens of prompt and answer; 0: the model's own limit.")
    ] = 0,
    lora_rank: Annotated[int, typer.Option(min=0, help="Maximum rank of LoRA adapters to load; 0: no adapters.")] = 0,
    draft: Annotated[
        str,
        typer.Option(
            metavar="ngram|FOLDER",
            help="Draft tokens, which the model accepts or replaces: from earlier text, or with a smaller model.",
        ),
    ] = "",
    draft_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Drafted tokens per forward pass of the model, with --draft; default: 4."),
    ] = None,
    training: Annotated[
        bool, typer.Option("--training", help="Accept new weights while it runs, as rollout.server of a recipe.")
    ] = False,
) -> None:
    """Serve a model with vLLM on 127.0.0.1 until Ctrl-C.

    The value for --policy is printed. Every request needs the key: $VLLM_API_KEY, or a new key, which gymcp finds by
    itself and other programs find in the file whose path is printed. Only this user can read that file, and thus
    use the server.

    Exit code: 0 if it was stopped after it had started, 130 if interrupted before, 2 if vLLM fails or cannot start.
    """
