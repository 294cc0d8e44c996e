"""``gymcp serve``: vLLM in a virtualenv of its own."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from gymcp.agents.policies.vllm.install import has_gpu
from gymcp.agents.policies.vllm.server import VllmServerOptions, run_vllm_server
from gymcp.cli.output import console
from gymcp.errors import UsageError


def command(
    model: Annotated[Path, typer.Argument(help="Folder of a model and its tokenizer.")],
    cpu: Annotated[bool, typer.Option("--cpu", help="Also where there is a GPU.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="On 127.0.0.1; 0: a free one.")] = 0,
    max_context: Annotated[int, typer.Option(min=0, help="Tokens of prompt and answer; 0: the model's own.")] = 0,
    lora_rank: Annotated[int, typer.Option(min=0, help="Highest rank of adapters to load; 0: none.")] = 0,
    training: Annotated[
        bool, typer.Option("--training", help="Take new weights while it runs, as rollout.server of a recipe.")
    ] = False,
) -> None:
    """Serve a model with vLLM on 127.0.0.1 until Ctrl-C; prints what --policy takes.

    Every request needs the key: $VLLM_API_KEY, else a new one, which gymcp finds by itself and other programs find in
    the file that is printed. That file, and so the server, is for this user alone.

    Exit code: 0 when it was ended after it had come up, 130 when interrupted before, 2 when vLLM fails or cannot start.
    """
    signal.signal(signal.SIGTERM, _interrupt)

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    plan = VllmServerOptions(
        model=model,
        cpu=cpu or not has_gpu(),
        port=port,
        max_context=max_context,
        lora_rank=lora_rank,
        takes_weights=training,
    )
    with run_vllm_server(plan, say) as server:
        if server.key_file is not None:
            say(f"key: {server.key_file}")
        say(f"--policy {server.spec}")
        try:
            code = server.process.wait()
        except KeyboardInterrupt:  # Ctrl-C or SIGTERM: how serving is meant to end
            say("stopping")
            return
    raise UsageError(f"vllm: the server ended by itself with code {code}")


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt
