"""Files of a learner's checkpoint, and the checks that they belong to the model at hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from gymcp.atomic import replace_file, write_atomically
from gymcp.errors import ConfigError
from gymcp.trainers.learner.distributed_processes import full_tensor
from gymcp.types import Json

FINGERPRINT_VALUES = 256
"""Number of leading values of each frozen weight that go into the fingerprint."""
_STATE = "learner.pt"
_ABOUT = "learner.json"


def write_checkpoint(folder: Path, state: Mapping[str, Any], about: Mapping[str, Json]) -> None:
    """Write the tensors of `state`, and for readers without torch `about`. A kill leaves each file whole."""
    folder.mkdir(parents=True, exist_ok=True)
    with replace_file(folder / _STATE) as file:
        torch.save(dict(state), file)
    write_atomically(folder / _ABOUT, json.dumps(about).encode())


def read_checkpoint(folder: Path, shapes: Mapping[str, torch.Size], frozen: str) -> dict[str, Any]:
    """The state that `write_checkpoint` wrote, on the CPU.

    Raises ConfigError if there is none, or if it is of another model: if the shapes of its trained weights or the
    fingerprint of its frozen ones differ.
    """
    try:
        state: dict[str, Any] = torch.load(folder / _STATE, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ConfigError(f"checkpoint {folder}: there is no {_STATE}") from None
    if {name: weight.shape for name, weight in state["weights"].items()} != shapes:
        raise ConfigError(f"checkpoint {folder}: its weights are those of another model")
    if state.get("frozen", frozen) != frozen:  # older checkpoints have no fingerprint
        raise ConfigError(
            f"checkpoint {folder}: its adapter belongs to another model of the same shape: what is frozen differs"
        )
    return state


def fingerprint(model: PreTrainedModel) -> str:
    """Hash of the frozen weights. It covers only the first values of each: reading a large model whole takes too long.

    A collective: every process has to call it.
    """
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            first = full_tensor(weight.detach()).flatten()[:FINGERPRINT_VALUES].float().cpu().numpy()
            digest.update(name.encode() + first.tobytes())
    return digest.hexdigest()
