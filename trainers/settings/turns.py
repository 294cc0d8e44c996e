"""Settings of updates turn by turn."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnByTurn:
    """One update for each index of a step, from the last one to the first (SeeUPO).

    The advantage of a step is multiplied by how much likelier the updates so far have made the later steps of its
    episode, as if each index were an agent of its own.

    Source: AgentEvolver, branch seeupo, beyondagent/module/trainer/ba_ray_trainer.py.
    """

    clip: float = 0.2
    """Largest distance of the factor from 1, for each step and for their product."""
