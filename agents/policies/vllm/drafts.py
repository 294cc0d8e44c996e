"""Speculative drafts: a cheap method proposes tokens, which vLLM's model accepts or replaces in one forward pass.

The accepted tokens have the model's own distribution (rejection sampling, arXiv:2211.17192): drafts change the speed of
sampling, and nothing else.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gymcp.agents.policies.vllm import draft_repair
from gymcp.errors import ConfigError

MAX_TOKENS = 128
"""Most drafted tokens per forward pass that vLLM's rejection sampler takes (MAX_SPEC_LEN)."""
NGRAM_TOKENS = (2, 5)
"""Fewest and most last tokens that are searched for in the tokens before them."""
_PLUGIN = "gymcp_vllm_draft_repair"
"""Name under which vLLM imports a copy of `gymcp.agents.policies.vllm.draft_repair`."""
_DRAFTING = ("--spec", "-sc", "--config")
"""Beginnings of vLLM's arguments that can make it draft; the last one names a file of arguments."""
_COUNTER = re.compile(r"^vllm:spec_decode_num_(draft|accepted)_tokens_total(?:\{.*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """The method that drafts tokens."""

    method: Literal["ngram", "draft_model"]
    """ngram: the tokens that followed the last ones when they occurred before; draft_model: a smaller model."""
    tokens: int = 4
    """Drafted tokens per forward pass of the served model."""
    model: Path | None = None
    """Folder of the draft model; None for n-grams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCounts:
    """Tokens since the start of a server."""

    drafted: float
    accepted: float


def describe_drafts(draft: DraftOptions) -> str:
    """The value of vLLM's ``--speculative-config``.

    A draft model proposes its most probable tokens: if it sampled, its random numbers would not depend on the seed of a
    request (vLLM 0.32), so that the same seed would give other tokens.
    """
    settings: dict[str, Any] = {"method": draft.method, "num_speculative_tokens": draft.tokens}
    if draft.model is None:
        settings |= {"prompt_lookup_min": NGRAM_TOKENS[0], "prompt_lookup_max": NGRAM_TOKENS[1]}
    else:
        settings |= {"model": str(draft.model.resolve()), "draft_sample_method": "greedy"}
    return json.dumps(settings)


def check_drafts(draft: DraftOptions, model: Path, who: str) -> None:
    """Raise ConfigError, whose message begins with `who`, if vLLM cannot draft so many tokens, or if the draft model is
    missing or has other tokens."""
    if not 1 <= draft.tokens <= MAX_TOKENS:
        raise ConfigError(f"{who}: {draft.tokens} drafted tokens: vLLM takes from 1 to {MAX_TOKENS}")
    if draft.model is None:
        return
    if not (draft.model / "config.json").is_file():
        raise ConfigError(f"{who}: no draft model in {draft.model}: it has no config.json")
    theirs, ours = _read_vocabulary(draft.model, who), _read_vocabulary(model, who)
    if theirs != ours:
        raise ConfigError(
            f"{who}: the draft model in {draft.model} has another vocabulary than the model in {model}, so its tokens"
            " mean something else: take a smaller model of the same family, or method 'ngram', which needs no model"
        )


def read_draft_counts(metrics: str) -> DraftCounts | None:
    """The counts in a server's metrics (Prometheus text); None if the server drafts nothing."""
    found = [(name, float(value)) for name, value in _COUNTER.findall(metrics)]
    if not found:
        return None
    drafted = sum(value for name, value in found if name == "draft")
    return DraftCounts(drafted=drafted, accepted=sum(value for name, value in found if name == "accepted"))


def acceptance_rate(before: DraftCounts | None, after: DraftCounts | None) -> float | None:
    """Share of the tokens drafted between two readings that were accepted; None if none was drafted.

    Counts that are lower than before are those of a restarted server.
    """
    if after is None:
        return None
    if before is None or before.drafted > after.drafted or before.accepted > after.accepted:
        before = DraftCounts(drafted=0, accepted=0)
    drafted = after.drafted - before.drafted
    return (after.accepted - before.accepted) / drafted if drafted else None


def may_draft(draft: DraftOptions | None, model: Path, arguments: Sequence[str]) -> bool:
    """True if a server of the model in this folder drafts, or may do so by its further `arguments` for vLLM.

    vLLM also drafts with a model whose own config.json says how.
    """
    if draft is not None or any(argument.startswith(_DRAFTING) for argument in arguments):
        return True
    return "speculators_config" in (model / "config.json").read_text(encoding="utf-8", errors="replace")


def add_repair(folder: Path, plugins: str | None) -> dict[str, str]:
    """Put the plugin `draft_repair` into a folder of vLLM's import path; returns the variables that vLLM then needs.

    `plugins`: value of ``$VLLM_PLUGINS``, the plugins that the user allows; None: all.
    """
    shutil.copyfile(draft_repair.__file__, folder / f"{_PLUGIN}.py")
    info = folder / f"{_PLUGIN}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_PLUGIN}\nVersion: 1\n", encoding="utf-8")
    entry = f"[vllm.general_plugins]\n{_PLUGIN} = {_PLUGIN}:repair_sampling\n"
    (info / "entry_points.txt").write_text(entry, encoding="utf-8")
    return {} if plugins is None else {"VLLM_PLUGINS": ",".join(filter(None, [plugins, _PLUGIN]))}


def _read_vocabulary(folder: Path, who: str) -> tuple[Any, ...]:
    """The number of logits, and each token with its id."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        added = {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or ()}
        return config.get("vocab_size"), tokenizer["model"]["vocab"], added
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{who}: the vocabulary in {folder} (config.json and tokenizer.json) cannot be read:"
            f" {type(error).__name__}: {error}"
        ) from error
