"""A player of the trained model's episodes on other machines, which ask it for samples."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.scheduler import JobSource
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.protocols import Policy
from gymcp.scale.distribution import Distribution, DistributionSettings, open_distribution
from gymcp.scale.questions import SampleQuestion
from gymcp.scale.records import NodePool
from gymcp.trainers.rollouts.playing import EpisodePlayer, PlaySettings, TextInterface


@asynccontextmanager
async def open_player(pool: NodePool, settings: DistributionSettings) -> AsyncIterator[EpisodePlayer]:
    """A player on the nodes of the pool, which have opened the run (`node.open_play`)."""
    model = _ServedModel()
    async with open_distribution(pool, RunBudget(), settings, model.answer) as distribution:
        yield _ClusterPlayer(distribution, model)


class _ServedModel:
    """The trained model, for the questions of nodes."""

    def __init__(self) -> None:
        self.text: TextInterface | None = None
        self.policies: dict[PlaySettings, Policy] = {}
        """Policy of the episodes with these settings."""

    async def answer(self, question: Any) -> Any:
        """The model's text interface, or a sample."""
        if isinstance(question, SampleQuestion):
            assert isinstance(question.settings, PlaySettings)
            return await self.policies[question.settings].sample(question.prompt_ids, question.sampling)
        return self.text


class _ClusterPlayer:
    """An `EpisodePlayer` on the nodes of a cluster."""

    def __init__(self, distribution: Distribution, model: _ServedModel) -> None:
        self._distribution, self._model = distribution, model

    async def play(
        self,
        text: TextInterface,
        policy: Policy,
        settings: PlaySettings,
        jobs: Sequence[Job] | JobSource,
        take: Callable[[Rollout, bool], None],
    ) -> None:
        self._model.text = text
        self._model.policies[settings] = policy
        await self._distribution.play(jobs, take, settings)
