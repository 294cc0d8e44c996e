"""Replay within the training loop: which records an iteration learns from, and what the buffer holds after it."""

from __future__ import annotations

from collections.abc import Sequence

from gymcp.trainers.run.checkpoints import TrainingState
from gymcp.trainers.run.experience.replay_buffer import (
    KeptEpisode,
    choose_recalled,
    group_records,
    replace_in_groups,
)
from gymcp.trainers.run.training_run import TrainingRun
from gymcp.types import Json, Trajectory


def recall_episodes(
    run: TrainingRun, state: TrainingState, scored: Sequence[Trajectory]
) -> tuple[list[Trajectory], dict[str, Json]]:
    """The records to learn from in place of the scored ones, and metrics of the replay; the same ones without replay.

    ``replay/recalled``: episodes learnt again; ``replay/kept``: episodes in the buffer before this iteration's.
    """
    recipe = run.inputs.recipe
    rule = recipe.replay
    if not rule.keep:
        return list(scored), {}
    recalled: dict[str, list[Trajectory]] = {}
    for name, members in group_records(scored).items():
        chosen = choose_recalled(state.replay, members, rule, state.iteration, recipe.seed)
        if chosen:
            recalled[name] = [load_kept(run, each) for each in chosen]
    count = sum(len(records) for records in recalled.values())
    return replace_in_groups(scored, recalled), {"replay/recalled": count, "replay/kept": state.replay.size}


def load_kept(run: TrainingRun, kept: KeptEpisode) -> Trajectory:
    """The record of an episode in the buffer."""
    recorded = run.recorded.get(kept.id)
    return run.episodes.store.load(kept.id) if recorded is None else recorded
