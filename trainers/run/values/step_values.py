"""A head over a model's hidden states that tells, from an episode so far, the score that it will have.

It is the value Q(s, a) of a step, which the hidden state at the end of the step's tokens stands for. It is trained on
recorded episodes towards the mean score of the leaves below each step: a Monte-Carlo estimate, better the more of them
branch.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gymcp.agents.policies.local_model import limit_threads, load_tokenizer
from gymcp.agents.policies.specs import TRAINED, PolicySpec, locate_folder, parse_policy
from gymcp.atomic import replace_file, write_atomically
from gymcp.errors import ConfigError
from gymcp.paths import find_page
from gymcp.store import TrajectoryStore, open_run
from gymcp.store.run_folder import RUN_FILE
from gymcp.trainers.credit.step_batch import StepBatch, has_score
from gymcp.trainers.credit.tree.step_tree import measure_values
from gymcp.trainers.credit.tree.tree_batch import find_tree, join_episodes
from gymcp.trainers.learner.critic import Critic
from gymcp.trainers.learner.forward import FeaturePlaces
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.learner.learner_checkpoint import fingerprint
from gymcp.trainers.learner.learner_settings import LearnerSettings
from gymcp.trainers.learner.token_rows import rows_of
from gymcp.trainers.recipe.model import load_trainable
from gymcp.trainers.recipe.recipe import ModelRecipe
from gymcp.trainers.run.model_columns import LearnerSignals
from gymcp.trainers.settings.arrays import Floats
from gymcp.types import Trajectory

PLACES: FeaturePlaces = "step end"
"""The place of a step's feature: its last token."""
EPOCHS_A_ROUND = 10
"""Epochs between two looks at the tasks that are held out."""
_HEAD = "head.pt"
_ABOUT = "head.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepValueSettings:
    """Settings of the training of a head."""

    learning_rate: float = 1e-3
    rounds: int = 30
    """Rounds of `EPOCHS_A_ROUND` epochs; the head of the round that fits held-out tasks best is kept."""
    held_out: float = 0.2
    """Share of the tasks that are not trained on; fewer than one task: none is held out."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepValues:
    """A trained head with the model whose hidden states it reads."""

    learner: Learner
    head: Critic
    model: Path
    """Folder of the model."""
    explained: float
    """Share of the variance of the values of held-out tasks' steps that the head explains; NaN if none was held out, or
    their values do not vary."""
    tasks: frozenset[str]
    """``ENV/TASK`` of the episodes that it was trained on, the held-out ones included."""

    def rate(self, record: Trajectory) -> float:
        """The score in [0, 1] that the episode will have, by its steps so far; 0 without a step.

        Raises ConfigError if its last step has no tokens, or those of another tokenizer.
        """
        if not record.steps:
            return 0.0
        last = len(record.steps) - 1
        row = next((row for row in rows_of(record) if any(step == last for step, _, _ in row.steps)), None)
        if row is None:
            raise ConfigError(f"{record.env}/{record.task}: step {last} has no tokens, so a head cannot tell its value")
        place = [step for step, _, _ in row.steps].index(last)
        _check_tokens(self.learner, self.model, record, row.token_ids)
        value = self.head.values(self.learner.features([row], places=PLACES)[place : place + 1])[0]
        return min(max(float(value), 0.0), 1.0)


def fit_step_values(run: Path, policy: str, settings: StepValueSettings | None = None) -> StepValues:
    """A head trained on the scored episodes of a run, and on those that branched off them.

    `policy`: the model that played them, or another one with its tokenizer: ``local:PATH``, ``smollm2`` or ``tiny``.
    Raises ConfigError if nothing in the run has a score, or all of it the same, if a step has no tokens, or those of
    another tokenizer, and for a model that is not on this machine.
    """
    settings = settings or StepValueSettings()
    batch = _read_batch(run)
    values = measure_values(find_tree(batch))[: int(batch.starts[-1])]
    if values.min() == values.max():
        raise ConfigError(
            f"head: every step of run {run} is worth {values[0]:g}, the score that all of its episodes have, so there"
            " is nothing to learn; record more tasks, or more episodes of each (--trials, --branch)"
        )
    model = _find_model(policy)
    _check_tokenizer(model, find_recorded_policy(run))
    with limit_threads(model):
        return _fit_head(model, batch, values, settings)


def _fit_head(model: Path, batch: StepBatch, values: Floats, settings: StepValueSettings) -> StepValues:
    """[S] values of the batch's steps -> the head of the round that fits the held-out ones best."""
    learner = _make_learner(model)
    for record in batch.sources:
        for row in rows_of(record):
            _check_tokens(learner, model, record, row.token_ids)
    features = LearnerSignals(batch, learner).features(PLACES)
    is_held = _hold_out_tasks(batch, settings)
    trained, held = torch.as_tensor(~is_held), torch.as_tensor(is_held)
    head = _make_head(learner, settings)
    best, kept = math.inf, head.state()
    for _ in range(settings.rounds):
        head.fit(features[trained], values[~is_held])
        left = values[is_held] - head.values(features[held]) if is_held.any() else np.zeros(0)
        error = float(np.square(left).mean()) if len(left) else -math.inf
        if error <= best:
            best, kept = error, copy.deepcopy(head.state())
    head.load(kept)
    explained = _measure_explained(values[is_held], head.values(features[held])) if is_held.any() else math.nan
    tasks = frozenset(f"{record.env}/{record.task}" for record in batch.sources)
    return StepValues(learner=learner, head=head, model=model, explained=explained, tasks=tasks)


def save_step_values(values: StepValues, folder: Path) -> None:
    """Write the head; the model stays where it is. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with replace_file(folder / _HEAD) as file:
        torch.save(values.head.state()["head"], file)
    about = {
        "model": str(values.model),
        "weights": _fingerprint(values.learner),
        "explained": None if math.isnan(values.explained) else values.explained,
        "tasks": sorted(values.tasks),
    }
    write_atomically(folder / _ABOUT, json.dumps(about).encode())


def hash_head(folder: Path) -> str:
    """Hash of a saved head: the same for the same values. Raises OSError."""
    return hashlib.sha256((folder / _HEAD).read_bytes() + (folder / _ABOUT).read_bytes()).hexdigest()


def load_step_values(folder: Path) -> StepValues:
    """The inverse of `save_step_values`.

    Raises ConfigError if there is no head, or its model has changed or is gone.
    """
    try:
        about: Mapping[str, Any] = json.loads((folder / _ABOUT).read_text())
        state = torch.load(folder / _HEAD, map_location="cpu", weights_only=True)
        model, explained, weights = Path(about["model"]), about["explained"], about["weights"]
        tasks = frozenset(about["tasks"])
    except (OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError, pickle.UnpicklingError) as error:
        raise ConfigError(
            f"head {folder}: cannot be read ({type(error).__name__}: {error}); gymcp learn makes one"
            f" ({find_page('search.md')})"
        ) from error
    learner = _make_learner(model)
    if _fingerprint(learner) != weights:
        raise ConfigError(
            f"head {folder}: it reads the hidden states of {model}, whose weights have changed since it was trained;"
            " train a new one"
        )
    head = _make_head(learner, StepValueSettings())
    try:
        head.load({**head.state(), "head": state})
    except RuntimeError as error:
        raise ConfigError(f"head {folder}: does not fit its model {model}: {error}") from error
    explained = math.nan if explained is None else explained
    return StepValues(learner=learner, head=head, model=model, explained=explained, tasks=tasks)


def check_head(values: StepValues, env: str, policy: str | None) -> None:
    """Raise ConfigError if the head knows no episode of this environment, or if the policy has another tokenizer than
    the head's model. Of a policy without a folder on this machine nothing is known before it has sampled."""
    known = sorted({name.partition("/")[0] for name in values.tasks})
    if env not in known:
        raise ConfigError(
            f"head: it was trained on episodes of {', '.join(known)}, and this run is of '{env}', whose steps it cannot"
            f" value; train one on a run of '{env}': gymcp learn RUN"
        )
    _check_tokenizer(values.model, policy)


def _check_tokenizer(model: Path, policy: str | None) -> None:
    spec = parse_policy(policy) if policy is not None else None
    if spec is None or not _has_folder(spec):
        return
    folder = _locate(spec)
    if folder == model:
        return
    vocabularies = [load_tokenizer(each, f"head: model {each}")[0].get_vocab() for each in (model, folder)]
    if vocabularies[0] != vocabularies[1]:
        raise ConfigError(
            f"head: it reads tokens of model {model}, and policy '{policy}' has another tokenizer; take a policy with"
            " the same one, or train a head with that policy's model on its runs"
        )


def _check_tokens(learner: Learner, model: Path, record: Trajectory, ids: Sequence[int]) -> None:
    vocabulary = learner.model.config.get_text_config().vocab_size
    for unknown in (id for id in (min(ids), max(ids)) if not 0 <= id < vocabulary):
        raise ConfigError(
            f"{record.env}/{record.task}: token {unknown} is none of the {vocabulary} that the head's model {model}"
            " has; take a policy of the same tokenizer, or train a head on its runs"
        )


def find_recorded_policy(run: Path) -> str | None:
    """The policy that the run's record names; None if it names none, as a training run, or a folder that is not here.

    A run of others must not make this machine fetch a model from a hub.
    """
    policy = open_run(run).config.get("policy") if (run / RUN_FILE).is_file() else None
    if not isinstance(policy, str):
        return None
    spec = parse_policy(policy)
    return policy if spec.kind != "local" or Path(spec.model).is_dir() else None


def _find_model(policy: str) -> Path:
    spec = parse_policy(policy)
    if not _has_folder(spec):
        raise ConfigError(
            f"head: policy '{policy}' has no folder on this machine whose hidden states can be read; name the model by"
            " its folder: local:PATH"
        )
    return _locate(spec)


def _has_folder(spec: PolicySpec) -> bool:
    return spec.kind not in ("vllm", "openai") and not (spec.kind == "tiny" and spec.model)


def _locate(spec: PolicySpec) -> Path:
    return TRAINED if spec.kind == "tiny" else locate_folder(spec).absolute()


def _make_learner(model: Path) -> Learner:
    recipe = ModelRecipe(path=str(model))
    return Learner(load_trainable(recipe, model).model, LearnerSettings())


def _make_head(learner: Learner, settings: StepValueSettings) -> Critic:
    width = learner.model.config.get_text_config().hidden_size
    rate, seed = settings.learning_rate, settings.seed
    return Critic(width, learner.model.device, learning_rate=rate, epochs=EPOCHS_A_ROUND, seed=seed)


def _fingerprint(learner: Learner) -> str:
    """Hash of all weights, none of which is trained."""
    learner.model.requires_grad_(False)
    return fingerprint(learner.model)


def _read_batch(run: Path) -> StepBatch:
    """Each step of a run's scored episodes once, those of branches among them."""
    with TrajectoryStore.open(run) as store:
        branches = {row.episode.id: (row.episode.parent or "", row.shared) for row in store.branches()}
        records = [
            *store.iter_trajectories(latest=True, graded=True),
            *(store.load(id, graded=True) for id in branches),
        ]
    if not any(has_score(record) and record.steps for record in records):
        raise ConfigError(
            f"head: no episode of run {run} has a score and a step, and came to its end, so there is nothing to learn;"
            " grade it (gymcp grade), or play it again"
        )
    return join_episodes(records, branches)


def _hold_out_tasks(batch: StepBatch, settings: StepValueSettings) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """[S]: true for the steps of tasks that are held out."""
    tasks = sorted({record.task for record in batch.sources})
    count = int(settings.held_out * len(tasks))
    held = set(np.random.default_rng(settings.seed).permutation(tasks)[:count].tolist())
    return np.repeat([record.task in held for record in batch.sources], batch.lengths)


def _measure_explained(values: Floats, found: Floats) -> float:
    variance = float(values.var())
    return 1 - float(np.square(values - found).mean()) / variance if variance > 0 else math.nan
