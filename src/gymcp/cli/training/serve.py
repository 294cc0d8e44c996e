"""``gymcp serve``: a vLLM server in a virtualenv of its own."""

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
    cpu: Annotated[bool, typer.Option("--cpu", help="Use the CPU even if there is a GPU.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: a free one.")] = 0,
    max_context: Annotated[
        int, typer.Option(min=0, help="Maximum tokens of prompt and answer; 0: the model's own limit.")
    ] = 0,
    lora_rank: Annotated[int, typer.Option(min=0, help="Maximum rank of LoRA adapters to load; 0: no adapters.")] = 0,
    training: Annotated[
        bool, typer.Option("--training", help="Accept new weights while it runs, as rollout.server of a recipe.")
    ] = False,
) -> None:
    """Serve a model with vLLM on 127.0.0.1 until Ctrl-C, and print the value for --policy.

    Every request needs the key: $VLLM_API_KEY, or a new key, which gymcp finds by itself and other programs find in the
    file whose path is printed. Only this user can read that file, and so use the server.

    Exit code: 0 if it was stopped after it had started, 130 if interrupted before, 2 if vLLM fails or cannot start.
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
