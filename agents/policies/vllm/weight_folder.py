"""The folder vLLM loads a model from: where input and output embeddings are one tensor, a view in which they are two.

vLLM 0.32 reloads only the input's of tied ones, so new weights would leave the old ones at the output. In the view the
output layer is a tensor of its own with the same numbers, for a first load as for every later one; everything else is
a link. Its bytes are copied as they are, whatever their type, and no tensor library is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from gymcp.cache import cache_errors
from gymcp.errors import ConfigError
from gymcp.paths import gymcp_home
from gymcp.process_owner import staging_folder

CAN_BE_UNTIED = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Architectures in which an output layer of its own, under the name below, takes the place of the input's."""
INPUT, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"

_INDEX = "model.safetensors.index.json"
_SHARD = "gymcp-lm-head.safetensors"
_MAX_HEADER_BYTES = 100_000_000


def has_tied_embeddings(folder: Path) -> bool:
    """Raises ConfigError where `folder` holds no model."""
    return bool(_config(folder).get("tie_word_embeddings", True))


@contextmanager
def untied(folder: Path) -> Iterator[Path]:
    """The folder itself, or where its embeddings are tied, a view without that; in gymcp's cache, until the end.

    An architecture that is not among `CAN_BE_UNTIED`, a quantised model and one without safetensors stay as they are.
    Raises ConfigError where there is no model, or its files are damaged.
    """
    config = _config(folder)
    files = _safetensors(folder)
    known = set(config.get("architectures") or ()) & set(CAN_BE_UNTIED)
    if not (config.get("tie_word_embeddings", True) and known and INPUT in files) or "quantization_config" in config:
        yield folder
        return
    with ExitStack() as stack:
        with cache_errors():
            view = stack.enter_context(staging_folder(gymcp_home() / "vllm" / "untied"))
            for path in folder.resolve().iterdir():
                if path.name not in ("config.json", _INDEX):
                    (view / path.name).symlink_to(path)
            if OUTPUT not in files:
                _write_output(folder / files[INPUT], view / _SHARD)
                files[OUTPUT] = _SHARD
            (view / _INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}), encoding="utf-8")
            (view / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}), encoding="utf-8")
        yield view


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"vllm: no model in {folder}: its config.json cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"vllm: no model in {folder}: its config.json is no object")
    return config


def _safetensors(folder: Path) -> dict[str, str]:
    """The file of each tensor."""
    try:
        if (folder / _INDEX).is_file():
            return dict(json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"])
        single = folder / "model.safetensors"
        return {name: single.name for name in _header(single)[0] if name != "__metadata__"} if single.is_file() else {}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"vllm: {folder}: its safetensors cannot be read: {type(error).__name__}: {error}") from error


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """What the file holds, and where its bytes begin."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        if size > _MAX_HEADER_BYTES:
            raise ValueError(f"{file.name}: a header of {size} bytes")
        return json.loads(opened.read(size)), 8 + size


def _write_output(source: Path, target: Path) -> None:
    """The input's embeddings under the output's name, in a file of their own."""
    try:
        header, start = _header(source)
        entry = header[INPUT]
        begin, end = entry["data_offsets"]
        wanted = {OUTPUT: {**entry, "data_offsets": [0, end - begin]}}
        written = json.dumps({"__metadata__": {"format": "pt"}, **wanted}).encode()
        written += b" " * (-len(written) % 8)
        with source.open("rb") as tensors, target.open("wb") as made:
            made.write(len(written).to_bytes(8, "little") + written)
            tensors.seek(start + begin)
            _copy(tensors, made, end - begin)
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"vllm: {source}: is no safetensors file: {type(error).__name__}: {error}") from error


def _copy(source: BinaryIO, target: BinaryIO, size: int) -> None:
    while size:
        piece = source.read(min(size, 1 << 24))
        if not piece:
            raise ValueError("it is cut off")
        target.write(piece)
        size -= len(piece)
