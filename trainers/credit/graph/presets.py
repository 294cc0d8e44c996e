"""Presets that read the graph of a task's states. docs/methods.md says of each what could not be read of its source."""

from __future__ import annotations

from gymcp.trainers.credit.estimators import AdvantageTerm, StdScale
from gymcp.trainers.credit.graph.memory import EarlierScores, RememberedDistance
from gymcp.trainers.credit.graph.shapers import GoalDistance, HistoryKeys, MeanReturns, Nodes, StateNodes, StateValues
from gymcp.trainers.credit.preset import REWARD, Norm, Preset, Shaper, Singleton, Unit, make_single_loss
from gymcp.trainers.credit.shapers import InvalidPenalty
from gymcp.trainers.settings.loss import Loss

MAX_HISTORY = 16
"""Most states before a step that `hgpo` compares."""
SMALL = 1e-7
"""Epsilon beside deviations: 1e-6 of the authors' code, whose reward for success is 10 instead of 1."""


def hgpo(
    *,
    gamma: float = 0.95,
    history: int = 2,
    length_power: float = 1.0,
    norm: Norm = "mean",
    invalid_penalty: float = 0.0,
    nodes: Nodes = "recorded",
) -> Preset:
    """Return of each step compared among steps in the same state, and among those that came to it through the same 1,
    2 ... states; the comparisons are averaged, longer histories counting more. arXiv:2602.22817.

    The weight of a comparison with k states of history is (k + 2) ** `length_power`, as in the authors' code.
    """
    scale = StdScale(ddof=0, epsilon=SMALL) if norm == "mean_std" else None
    terms = tuple(
        AdvantageTerm(
            signal=REWARD,
            key=(f"history{length}",),
            unit="step",
            returns="discounted",
            gamma=gamma,
            scale=scale,
            penalty="invalid" if invalid_penalty else None,
            weight=float(length + 2) ** length_power,
        )
        for length in range(history + 1)
    )
    shapers = _shape(HistoryKeys(length=history), invalid_penalty, nodes)
    return make_single_loss(*terms, shapers=shapers, average=True)


def graphgpo(
    *,
    gamma: float = 0.1,
    step_weight: float = 1.0,
    episode_weight: float = 1.0,
    norm: Norm = "mean_std",
    progress: bool = False,
    unit: Unit = "trajectory",
    singleton: Singleton = "zero",
    invalid_penalty: float = 0.0,
    nodes: Nodes = "recorded",
) -> Preset:
    """GRPO's advantage plus a comparison, among steps in the same state, of how near to success the next state is in
    the graph of all episodes of the task. arXiv:2605.26684."""
    scale = StdScale(epsilon=SMALL) if norm == "mean_std" else None
    penalty = "invalid" if invalid_penalty else None
    episode = AdvantageTerm(
        signal=REWARD, unit=unit, scale=scale, singleton=singleton, penalty=penalty, weight=episode_weight
    )
    step = AdvantageTerm(
        signal="nearness",
        key=("group", "state"),
        unit="step",
        returns="none",
        scale=scale,
        penalty=penalty,
        weight=step_weight,
    )
    shapers = _shape(GoalDistance(gamma=gamma, progress=progress), invalid_penalty, nodes)
    return make_single_loss(episode, step, shapers=shapers)


def g2po(
    *,
    gamma: float = 0.95,
    step_weight: float = 1.0,
    norm: Norm = "mean",
    unit: Unit = "trajectory",
    singleton: Singleton = "zero",
    invalid_penalty: float = 0.0,
    nodes: Nodes = "recorded",
) -> Preset:
    """GRPO's advantage plus two comparisons of state values: of the next state's among steps in the same state, and of
    the gain in value among all steps of the task. arXiv:2606.22995."""
    scale = StdScale(epsilon=SMALL) if norm == "mean_std" else None
    penalty = "invalid" if invalid_penalty else None
    episode = AdvantageTerm(signal=REWARD, unit=unit, scale=scale, singleton=singleton, penalty=penalty)
    following = AdvantageTerm(
        signal="value_after",
        key=("group", "state"),
        unit="step",
        returns="none",
        scale=scale,
        penalty=penalty,
        weight=step_weight,
    )
    gain = AdvantageTerm(signal="gain", unit="step", returns="none", scale=scale, weight=step_weight)
    shapers = _shape(StateValues(gamma=gamma), invalid_penalty, nodes)
    return make_single_loss(episode, following, gain, shapers=shapers)


def gagpo(
    *,
    gamma: float = 0.95,
    lam: float = 0.8,
    nodes: Nodes = "recorded",
) -> Preset:
    """Generalised advantage estimates over steps, with the mean return of a state's visits as its value, normalised
    over the steps of the task; each step has one ratio. arXiv:2605.13217.

    `gamma` and `lam` of the paper could not be read.
    """
    advantage = AdvantageTerm(
        signal=REWARD, unit="step", returns="gae", gamma=gamma, lam=lam, scale=StdScale(epsilon=1e-6)
    )
    loss = Loss(kind="gspo", sequence="step", clip_low=0.2, clip_high=0.2, dual_clip=None)
    return make_single_loss(advantage, shapers=_shape(MeanReturns(gamma=gamma), 0.0, nodes), loss=loss)


def tigpo(
    *,
    gamma: float = 0.1,
    step_weight: float = 1.0,
    episode_weight: float = 1.0,
    norm: Norm = "mean_std",
    invalid_penalty: float = 0.0,
) -> Preset:
    """GraphGPO with what earlier batches found out: the graph of a task keeps its transitions, and its episodes are
    compared with those of the last time, too. arXiv:2609.03383.

    Earlier episodes are never trained on. When a task is practised again is the recipe's choice, not the preset's.
    """
    scale = StdScale(epsilon=SMALL) if norm == "mean_std" else None
    penalty = "invalid" if invalid_penalty else None
    episode = AdvantageTerm(
        signal="contrast", unit="step", returns="none", centre="none", penalty=penalty, weight=episode_weight
    )
    step = AdvantageTerm(
        signal="nearness",
        key=("group", "state"),
        unit="step",
        returns="none",
        scale=scale,
        penalty=penalty,
        weight=step_weight,
    )
    contrast = EarlierScores(scaled=norm == "mean_std", epsilon=SMALL)
    return make_single_loss(
        episode, step, shapers=(*_shape(RememberedDistance(gamma=gamma), invalid_penalty, "recorded"), contrast)
    )


def _shape(shaper: Shaper, invalid_penalty: float, nodes: Nodes) -> tuple[Shaper, ...]:
    penalty = (InvalidPenalty(coefficient=invalid_penalty),) if invalid_penalty else ()
    return (StateNodes(nodes=nodes), shaper, *penalty)
