"""The folder from which vLLM loads a model: a view with separate input and output embeddings if they are tied.

vLLM 0.32 reloads only the input of tied embeddings, so new weights would leave the old ones at the output. In the view
the output layer is a tensor of its own with the same numbers, for the first load and every later one; all other files
are links. The bytes of the tensor are copied whatever their type, so no tensor library is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from gymcp.atomic import cache_errors
from gymcp.errors import ConfigError
from gymcp.paths import gymcp_home
from gymcp.process_owner import staging_folder

CAN_BE_UNTIED = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Architectures that use a separate output layer, named `OUTPUT`, if the weights contain one."""
INPUT, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
"""Names of the tensors of the input and output embeddings."""

_INDEX = "model.safetensors.index.json"
_SHARD = "gymcp-lm-head.safetensors"
_MAX_HEADER_BYTES = 100_000_000


def has_tied_embeddings(folder: Path) -> bool:
    """True if the model's config ties them, as is the default. Raises ConfigError if `folder` holds no model."""
    return bool(_config(folder).get("tie_word_embeddings", True))


@contextmanager
def untie_embeddings(folder: Path) -> Iterator[Path]:
    """The folder itself, or if its embeddings are tied, a view with untied ones, which exists until the context ends.

    The view lies in gymcp's cache.
    A model whose architecture is not in `CAN_BE_UNTIED`, a quantised one and one without safetensors stay as they are.
    Raises ConfigError if there is no model, or its files are damaged.
    """
    config = _config(folder)
    files = _tensor_files(folder)
    can_untie = not set(CAN_BE_UNTIED).isdisjoint(config.get("architectures") or ())
    is_tied = config.get("tie_word_embeddings", True) and INPUT in files
    if not (is_tied and can_untie) or "quantization_config" in config:
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


def _tensor_files(folder: Path) -> dict[str, str]:
    """The name of the safetensors file of each tensor."""
    try:
        if (folder / _INDEX).is_file():
            return dict(json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"])
        single = folder / "model.safetensors"
        return {name: single.name for name in _header(single)[0] if name != "__metadata__"} if single.is_file() else {}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"vllm: {folder}: its safetensors cannot be read: {type(error).__name__}: {error}") from error


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and the position at which the bytes of its tensors begin."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        if size > _MAX_HEADER_BYTES:
            raise ValueError(f"{file.name}: a header of {size} bytes")
        return json.loads(stream.read(size)), 8 + size


def _write_output(source: Path, target: Path) -> None:
    """Write the input embeddings under the output's name to a file of their own."""
    try:
        header, start = _header(source)
        entry = header[INPUT]
        begin, end = entry["data_offsets"]
        output = {OUTPUT: {**entry, "data_offsets": [0, end - begin]}}
        new_header = json.dumps({"__metadata__": {"format": "pt"}, **output}).encode()
        new_header += b" " * (-len(new_header) % 8)
        with source.open("rb") as tensors, target.open("wb") as stream:
            stream.write(len(new_header).to_bytes(8, "little") + new_header)
            tensors.seek(start + begin)
            _copy(tensors, stream, end - begin)
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"vllm: {source}: is no safetensors file: {type(error).__name__}: {error}") from error


def _copy(source: BinaryIO, target: BinaryIO, size: int) -> None:
    while size:
        piece = source.read(min(size, 1 << 24))
        if not piece:
            raise ValueError("it is cut off")
        target.write(piece)
        size -= len(piece)
