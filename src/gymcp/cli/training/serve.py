"""``gymcp serve``: a vLLM server in a virtualenv of its own."""

from __future__ import annotations

import signal
from dataclasses import replace

from gymcp.agents.policies.pretrained.folders import locate_model
from gymcp.agents.policies.vllm.drafts import DraftOptions
from gymcp.agents.policies.vllm.install import has_gpu
from gymcp.agents.policies.vllm.server import VllmServerOptions, run_vllm_server
from gymcp.cli.output import console
from gymcp.errors import UsageError


def execute(
    model: str,
    *,
    cpu: bool,
    port: int,
    max_context: int,
    lora_rank: int,
    draft: str,
    draft_tokens: int | None,
    training: bool,
) -> None:
    """Serve a model with vLLM on 127.0.0.1 until Ctrl-C, and print the value for --policy.

    Raises UsageError for options that contradict each other, and if the server ends by itself.
    """
    signal.signal(signal.SIGTERM, _interrupt)

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    plan = VllmServerOptions(
        model=locate_model(model, f"model '{model}'"),
        cpu=cpu or not has_gpu(),
        port=port,
        max_context=max_context,
        lora_rank=lora_rank,
        draft=_choose_drafts(draft, draft_tokens),
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


def _choose_drafts(draft: str, tokens: int | None) -> DraftOptions | None:
    """Raises UsageError for a number of tokens without a method."""
    if not draft:
        if tokens is not None:
            why = "nothing drafts without --draft; add --draft ngram, or --draft FOLDER with a smaller model"
            raise UsageError(f"serve: --draft-tokens {tokens}: {why}")
        return None
    drafts = DraftOptions(method="ngram")
    if draft != "ngram":
        drafts = DraftOptions(method="draft_model", model=locate_model(draft, f"draft model '{draft}'"))
    return drafts if tokens is None else replace(drafts, tokens=tokens)


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt
