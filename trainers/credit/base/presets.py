"""Presets of the base methods: what the field compares with, and losses for episodes of other weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from gymcp.trainers.credit.base.rules import KeepSolved, NoveltyBonus, RankFailures, ShiftBaseline, SubtractSoftMean
from gymcp.trainers.credit.estimators import AdvantageTerm, StdScale
from gymcp.trainers.credit.filters import DropUninformative
from gymcp.trainers.credit.preset import REWARD, LossTerm, Preset, Singleton, make_single_loss
from gymcp.trainers.settings.loss import Loss, TruncatedWeight

SoftBaseline = Literal["mean", "log_mean_exp"]


def _compare_scores(loss: Loss, singleton: Singleton = "zero") -> Preset:
    """GRPO's advantage with another loss."""
    return make_single_loss(AdvantageTerm(signal=REWARD, scale=StdScale(), singleton=singleton), loss=loss)


def dapo(*, singleton: Singleton = "zero") -> Preset:
    """GRPO without tasks whose episodes all scored alike, clipped higher upwards, averaged over tokens.
    arXiv:2503.14476.

    The paper refills the batch and lowers the reward of long episodes; here ``curriculum.refill`` and
    ``learn.overlong_tokens`` do, which a recipe sets to its own sizes.
    """
    advantage = AdvantageTerm(signal=REWARD, scale=StdScale(), singleton=singleton)
    return Preset(
        loss_terms=(LossTerm(advantage_terms=(advantage,)),),
        loss=Loss(clip_low=0.2, clip_high=0.28, dual_clip=10.0),
        filters=(DropUninformative(),),
    )


def tapo(*, singleton: Singleton = "zero") -> Preset:
    """DAPO's objective on episodes with tool calls: results of tools are read and never learnt. arXiv:2510.07038.

    The paper's tools are search and Python; here they are those of the environment.
    """
    return dapo(singleton=singleton)


def gspo(*, singleton: Singleton = "zero") -> Preset:
    """GRPO with one ratio for each episode, the geometric mean over its tokens. arXiv:2507.18071."""
    return _compare_scores(Loss(kind="gspo", clip_low=3e-4, clip_high=4e-4, dual_clip=None), singleton)


def cispo(*, singleton: Singleton = "zero") -> Preset:
    """GRPO in which the clipped ratio is a weight, so that no token loses its gradient. arXiv:2506.13585.

    As published the weight has no lower bound. Its upper bound is not given there; 1.28 is verl's.
    """
    return _compare_scores(Loss(kind="cispo", clip_low=1.0, clip_high=0.28, dual_clip=None), singleton)


def dart(*, singleton: Singleton = "zero") -> Preset:
    """GSPO weighted by p_old / p_rollout of each token, at most 1, beside a divergence from the start (DART-GUI).

    Its choice of steps by entropy is switched off in the authors' code, and left out here.
    """
    loss = Loss(kind="gspo", clip_low=0.1, clip_high=0.28, dual_clip=None, weight=TruncatedWeight(cap=1.0), kl=0.1)
    return _compare_scores(loss, singleton)


def decoupled_ppo(*, singleton: Singleton = "zero") -> Preset:
    """GRPO's advantage, clipped around the weights before the update, weighted by p_old / p_rollout (AReaL).

    Episodes may be of other weights if their log-probabilities are recorded. arXiv:2505.24298.
    """
    return _compare_scores(Loss(clip_low=0.2, clip_high=0.2, decoupled=True, behaviour_cap=5.0), singleton)


def opmd(*, tau: float = 1.0, baseline: SoftBaseline = "mean") -> Preset:
    """Score less the group's mean times log p, without ratios: policy mirror descent that takes episodes of any
    weights. Source: Trinity-RFT (repository), arXiv:2505.17826.

    `tau` is the strength of the regularisation towards the policy itself: advantages are divided by 1 + tau. With
    ``baseline = "log_mean_exp"`` the group's soft mean at temperature tau stands in place of the mean.
    """
    share = 1 / (1 + tau)
    if baseline == "mean":
        term = LossTerm(advantage_terms=(AdvantageTerm(signal=REWARD, weight=share),))
    else:
        plain = AdvantageTerm(signal=REWARD, centre="none")
        term = LossTerm(advantage_terms=(plain,), transforms=(SubtractSoftMean(tau=tau, factor=share),))
    return Preset(loss_terms=(term,), loss=Loss(kind="likelihood"))


def asymre(*, shift: float = -0.1) -> Preset:
    """Score less a baseline below the group's mean, times log p: successes of other weights count more than their
    failures. arXiv:2506.20520.

    With a shift of 0 or above the policy collapses onto few answers, as the paper proves. Groups that all failed are
    made a little likelier, too, as published; ``learn.drop_uninformative`` leaves them out.
    """
    term = LossTerm(advantage_terms=(AdvantageTerm(signal=REWARD),), transforms=(ShiftBaseline(shift=shift),))
    return Preset(loss_terms=(term,), loss=Loss(kind="likelihood"))


def expert_iteration() -> Preset:
    """Supervised learning of the episodes that were solved: nothing is compared, nothing is unlearnt. arXiv:1705.08439.

    The weights go on from one iteration to the next; with ``learn.restart`` each begins with the first ones, as in STaR
    (arXiv:2203.14465).
    """
    advantage = AdvantageTerm(signal=REWARD, key=(), centre="none")
    return Preset(
        loss_terms=(LossTerm(advantage_terms=(advantage,)),), loss=Loss(kind="likelihood"), filters=(KeepSolved(),)
    )


def r3(*, scale: float = 0.1, singleton: Singleton = "zero") -> Preset:
    """GRPO in which unsolved episodes are ranked by how sure the policy was, beside replayed ones. arXiv:2601.19620.

    ``[replay]`` recalls episodes of the same task into groups that all scored alike. ``replay.reflect`` shows
    a task that keeps failing with a failed attempt in its prompt.
    """
    advantage = AdvantageTerm(signal="ranked", scale=StdScale(), singleton=singleton)
    return make_single_loss(
        advantage, loss=Loss(clip_high=0.28), shapers=(RankFailures(scale=scale),), needs=frozenset({"entropy"})
    )


def xrpo(*, novelty: float = 2.5, bound: float = 0.5) -> Preset:
    """GRPO with a bonus for solved episodes that the policy was unlikely to draw. arXiv:2510.06672.

    ``rollout.controller = "xrpo"`` shares out the episodes. The paper's seeding, solved examples in the prompt of tasks
    that all failed, is not a part of it.
    """
    term = LossTerm(
        advantage_terms=(AdvantageTerm(signal=REWARD, scale=StdScale()),),
        transforms=(NoveltyBonus(novelty=novelty, bound=bound),),
    )
    return Preset(loss_terms=(term,), loss=Loss(), needs=frozenset({"logprob"}))


MAKERS: Mapping[str, Callable[..., Preset]] = {
    "dapo": dapo,
    "tapo": tapo,
    "gspo": gspo,
    "cispo": cispo,
    "dart": dart,
    "decoupled_ppo": decoupled_ppo,
    "opmd": opmd,
    "asymre": asymre,
    "expert_iteration": expert_iteration,
    "r3": r3,
    "xrpo": xrpo,
}
"""Preset functions of this folder, by name."""

OPTION_RANGES: Mapping[str, tuple[float, ...]] = {"tau": (1e-9,), "scale": (0, 1), "novelty": (0,)}
"""As `presets._OPTION_RANGES`, for the options of these functions."""
