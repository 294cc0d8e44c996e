"""The config and the tokenizer in a model's folder."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from gymcp.agents.policies.pretrained.folders import check_model_folder
from gymcp.errors import ConfigError

SMALL_MODEL_BYTES = 200_000_000
"""Size of weights, in bytes, below which one CPU thread is used: several threads synchronise at every layer, and at a
small model they would mostly wait for cores that the servers use."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")


def read_context_length(folder: Path, who: str) -> int:
    """The context length of the model in tokens. Raises ConfigError if the folder holds no model."""
    check_model_folder(folder, who)
    disable_progress_bar()  # transformers would show one per file, beside our own
    try:
        config: Any = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{who}: its config.json cannot be read: {error}") from error
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(context, int) or context < 1:
        raise ConfigError(f"{who}: its config.json does not say how long its context is (max_position_embeddings)")
    return context


def load_tokenizer(folder: Path, who: str) -> tuple[Any, list[int]]:
    """The tokenizer, and the end tokens of the generation config. Raises ConfigError if there is no tokenizer."""
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ConfigError(f"{who}: {folder} has no tokenizer (none of {', '.join(_TOKENIZER_FILES)})")
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the boundary to whatever a tokenizer's files may hold
        raise ConfigError(f"{who}: its tokenizer cannot be loaded: {type(error).__name__}: {error}") from error
    tokenizer.model_max_length = sys.maxsize  # prompts are measured against the model's context, in our own words
    return tokenizer, _end_ids(folder)


@contextmanager
def limit_threads(folder: Path) -> Iterator[None]:
    """Use one CPU thread for a small model while the context lasts, unless `OMP_NUM_THREADS` is set."""
    before = torch.get_num_threads()
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if "OMP_NUM_THREADS" not in os.environ and size < SMALL_MODEL_BYTES:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _end_ids(folder: Path) -> list[int]:
    """The end-of-sequence tokens in generation_config.json."""
    try:
        ids = json.loads((folder / "generation_config.json").read_text()).get("eos_token_id")
    except (OSError, ValueError, AttributeError):
        return []
    return [id for id in (ids if isinstance(ids, list) else [ids]) if isinstance(id, int)]
