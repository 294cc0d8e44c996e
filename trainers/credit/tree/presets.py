"""Presets of the methods on trees. They work on any batch: without forks, each episode is a path from its task's root.

They are not among `PRESETS`, because a recipe takes them together with a controller only: `make_tree_preset` makes
them, for recipes, for ``gymcp credit``, and for the batches of `make_tree_batch` and `join_episodes`.
docs/tree-credit.md follows an example by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from gymcp.errors import ConfigError
from gymcp.trainers.credit.estimators import AdvantageTerm, StdScale
from gymcp.trainers.credit.preset import LossTerm, Norm, Preset, Shaper, Singleton, Transform, Unit
from gymcp.trainers.credit.preset_functions import check_options
from gymcp.trainers.credit.signals.model_values import TOKEN_ENTROPY
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.credit.tree.entropy_factor import EntropyFactor
from gymcp.trainers.credit.tree.shapers import (
    MATCHED,
    AncestorComparison,
    AncestorWeight,
    SegmentGain,
    StepMatches,
    TreeValues,
)
from gymcp.trainers.credit.tree.sure_tokens import LeaveOutSure, TokenProbabilities
from gymcp.trainers.credit.tree.tree_batch import MISMATCH
from gymcp.trainers.settings.arrays import Floats
from gymcp.trainers.settings.loss import Loss
from gymcp.trainers.settings.preference import PairRule, Preference

Centre = Literal["parent", "siblings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeighByLeaves:
    """Weight of each step by the number of leaves that share it, divided by the mean weight of the batch's tokens.

    A loss that is averaged over tokens then has the gradient of one row for each leaf, in which shared tokens are
    repeated. Reads the column ``leaves``.
    """

    def __call__(self, batch: StepBatch, advantage: Floats) -> Floats:
        leaves, tokens = batch.column("leaves"), batch.column("tokens")
        return np.asarray(advantage * leaves * tokens.sum() / max(float((leaves * tokens).sum()), 1.0), float)


def arpo(*, by_leaves: bool = False, singleton: Singleton = "zero") -> Preset:
    """GRPO over the leaves of a task; a step that leaves share has the mean of theirs. arXiv:2507.19849.

    The authors repeat shared steps in the row of each leaf, which adds up to as many times this mean: `by_leaves`.
    Which steps fork is decided by `branch_probability`.
    """
    scale = StdScale()
    advantage = AdvantageTerm(signal="node_value", unit="leaf", returns="none", scale=scale, singleton=singleton)
    return _make_preset(advantage, TreeValues(), by_leaves=by_leaves)


def aepo(*, coefficient: float = 0.2, by_leaves: bool = False, singleton: Singleton = "zero") -> Preset:
    """ARPO's advantage, stronger at tokens of high entropy; a token above the upper clip keeps its gradient.
    arXiv:2510.14545.

    The official loss was not read: in a fork that has its names every token keeps its gradient, as here; in a port
    (ARLArena) only tokens of low entropy do, which is the opposite of the paper's words. Its rollouts are the
    controller ``aepo``. Reads the signal ``token_entropy``.
    """
    factor = EntropyFactor(coefficient=coefficient, by_leaves=by_leaves)
    term = replace(arpo(singleton=singleton).loss_terms[0], backup=factor)
    loss = Loss(clip_low=0.2, clip_high=0.28, keep_clipped_gradient=True)
    return Preset(loss_terms=(term,), shapers=(TreeValues(),), loss=loss, needs=frozenset({TOKEN_ENTROPY}))


def treepo(
    *,
    weight: AncestorWeight = "average",
    whiten: bool = True,
    by_leaves: bool = False,
    singleton: Singleton = "zero",
) -> Preset:
    """Score of a leaf less the mean score of each subtree that it is in, averaged over them. arXiv:2508.17445.

    The loss is that of the authors' script, which is DAPO's; they leave out tasks whose leaves all scored alike, too
    (``learn.drop_uninformative``).
    """
    shaper = AncestorComparison(weight=weight, whiten=whiten, singleton=singleton)
    advantage = AdvantageTerm(signal="above", unit="step", returns="none", centre="none")
    made = _make_preset(advantage, shaper, by_leaves=by_leaves)
    return replace(made, loss=Loss(clip_low=0.2, clip_high=0.28, dual_clip=10.0))


def treeps(*, centre: Centre = "parent", norm: Norm = "mean", by_leaves: bool = False) -> Preset:
    """Mean score below a step less that below the step before it, or compared among the steps after one step.
    arXiv:2601.06922.

    The paper values a step by the outcomes below it. Its exact advantage and its pruning could not be verified: the
    gain over the step before is our reading, and `centre` = "siblings", with or without a deviation (`norm`), the
    other one. With siblings each of them counts once; with the parent, as often as it has leaves.
    """
    scale = StdScale() if norm == "mean_std" else None
    if centre == "parent" and scale is not None:
        raise ConfigError("treeps: norm 'mean_std' divides by the deviation among siblings; centre must be 'siblings'")
    advantage = AdvantageTerm(signal="gain", unit="step", returns="none", centre="none")
    if centre == "siblings":
        advantage = AdvantageTerm(signal="node_value", key=("parent",), unit="step", returns="none", scale=scale)
    return _make_preset(advantage, TreeValues(), by_leaves=by_leaves)


def segment_spo(*, threshold: float = 1.0) -> Preset:
    """Gain in value from the beginning of a step's segment to its end (segment SPO). arXiv:2505.23564.

    With a column ``trunk`` values come from further episodes that leave the trunk, as published; they are not trained
    on, and the loss is averaged over the episodes that have an advantage. Tokens whose probability is not below
    `threshold` are left out, as by the authors with 0.9; 1: all are learnt.
    """
    advantage = AdvantageTerm(signal="segment_gain", unit="step", returns="none", centre="none")
    term = LossTerm(advantage_terms=(advantage,), active_only=True)
    made = Preset(loss_terms=(term,), shapers=(SegmentGain(),), loss=Loss(clip_high=0.2))
    if threshold == 1.0:
        return made
    term = replace(term, backup=LeaveOutSure(threshold=threshold))
    return replace(made, loss_terms=(term,), shapers=(*made.shapers, TokenProbabilities()))


def cleaner() -> Preset:
    """GRPO on episodes from which failed calls were taken out while they were played (CLEANER).

    The method is in the controller ``cleaner``, which has a step with a failed call drawn again: its episodes are
    paths. The authors splice the repaired call into the text of the failed one.
    """
    return replace(arpo(), loss=Loss(clip_high=0.2, aggregation="seq-mean-token-mean"))


def step_dpo(*, beta: float = 0.1, rule: PairRule = "success", success: float = 1.0) -> Preset:
    """Pairs of steps that were taken in one situation, of which one led to success (TP-LLaMA), or of which one has the
    highest and the other the lowest value (``rule="value"``, step-level Q). arXiv:2406.07115, arXiv:2409.09345.

    The loss is DPO's on the tokens of both steps, averaged over pairs; the reference policy has the weights before the
    first update. The advantages that are shown are gains in value, and nothing is learnt from them.
    """
    advantage = AdvantageTerm(signal="gain", unit="step", returns="none", centre="none")
    made = _make_preset(advantage, TreeValues(), by_leaves=False)
    preference = Preference(beta=beta, rule=rule, success=success)
    return replace(made, loss=Loss(kind="likelihood"), preference=preference)


def ui_s1(
    *,
    gamma: float = 0.5,
    step_weight: float = 1.0,
    norm: Norm = "mean",
    unit: Unit = "trajectory",
    singleton: Singleton = "zero",
) -> Preset:
    """Number of an episode's actions that match a demonstration, compared in its group, plus each step's return of
    them, compared among steps of its index; a return ends where an action was replaced. arXiv:2509.11543.

    Reads the column ``mismatch``, 1 on a step whose action was replaced by the demonstration's: no return passes it or
    takes it in. A recorded step has the reward 1 if its action was not replaced, else 0, whatever the episode scored;
    the authors add a tenth for the format. A batch of bare columns has rewards of its own. Replaced actions are no
    forks: such episodes are paths. The controller ``ui_s1`` makes them. The filter on the deviation of a group (0.3) is
    DAPO's, and no part of this.

    ``unit="step"``: the first part compares the reward of each step with those of all steps of the task, as the
    authors' code does.
    """
    scale = StdScale() if norm == "mean_std" else None
    step = AdvantageTerm(
        signal=MATCHED,
        key=("group", "turn"),
        unit="step",
        returns="discounted",
        gamma=gamma,
        cut_on=MISMATCH,
        scale=scale,
        weight=step_weight,
    )
    returns: Literal["total", "none"] = "total" if unit == "trajectory" else "none"
    whole = AdvantageTerm(signal=MATCHED, unit=unit, returns=returns, scale=scale, singleton=singleton)
    term = LossTerm(advantage_terms=(whole, step))
    loss = Loss(clip_high=0.2)
    return Preset(loss_terms=(term,), shapers=(StepMatches(),), loss=loss, needs=frozenset({MISMATCH}))


def _make_preset(advantage: AdvantageTerm, shaper: Shaper, *, by_leaves: bool) -> Preset:
    transforms: tuple[Transform, ...] = (WeighByLeaves(),) if by_leaves else ()
    shapers = (shaper,) if not by_leaves or isinstance(shaper, TreeValues) else (shaper, TreeValues())
    term = LossTerm(advantage_terms=(advantage,), transforms=transforms)
    return Preset(loss_terms=(term,), shapers=shapers, loss=Loss(clip_high=0.2))


_MAKERS: tuple[Callable[..., Preset], ...] = (arpo, aepo, treepo, treeps, segment_spo, cleaner, step_dpo, ui_s1)
TREE_PRESETS: Mapping[str, Callable[..., Preset]] = {maker.__name__: maker for maker in _MAKERS}
"""Preset functions by name; the keywords of each are its options."""
_OPTION_RANGES: Mapping[str, tuple[float, ...]] = {
    "gamma": (0, 1),
    "coefficient": (0,),
    "step_weight": (0,),
    "beta": (1e-9,),
    "threshold": (1e-9, 1),
}


def make_tree_preset(name: str, /, **options: object) -> Preset:
    """The preset of that name in `TREE_PRESETS`, for batches of trees.

    Raises ConfigError for an unknown name or option, or an impossible value.
    """
    if name not in TREE_PRESETS:
        raise ConfigError(f"no preset of trees {name!r:.80}; have {', '.join(TREE_PRESETS)}")
    make = TREE_PRESETS[name]
    return make(**check_options(f"preset '{name}'", make, options, _OPTION_RANGES))
