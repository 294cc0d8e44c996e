"""Presets whose signals take a model, gold, or a memory of earlier batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gymcp.errors import ConfigError
from gymcp.trainers.credit.estimators import AdvantageTerm, StdScale
from gymcp.trainers.credit.preset import GOLD, REWARD, LossTerm, Preset
from gymcp.trainers.credit.signals.critique import Critique, CritiqueReward
from gymcp.trainers.credit.signals.gold_logprob import GainForm, InformationGain
from gymcp.trainers.credit.signals.observation_gain import GatedInformation, ObservationGain
from gymcp.trainers.credit.signals.options import OptionBackup
from gymcp.trainers.credit.signals.progress import ProgressReward
from gymcp.trainers.credit.signals.smoothing import EntropySmoothing
from gymcp.trainers.credit.signals.success_tracker import LONGEST_MEMORY, SuccessBaseline
from gymcp.trainers.credit.signals.token_backup import TOKEN_VALUE, TokenBackup
from gymcp.trainers.credit.transforms import ScaleToBatch, Whiten
from gymcp.trainers.settings.loss import Loss
from gymcp.trainers.settings.turns import TurnByTurn


def epo(
    *,
    entropy: float = 0.001,
    low: float = 0.8,
    high: float = 1.2,
    weight: float = 2.0,
    hinge: bool = True,
    iterations: int = 0,
) -> Preset:
    """GRPO with an entropy bonus that keeps the entropy of each step near its history (EPO). arXiv:2509.22576.

    `weight` and `hinge` differ from the authors' code, whose penalty has no gradient: ``hinge=False`` is theirs.
    `iterations`: length of the run over which the bonus fades; 0: it does not.
    """
    smoothing = EntropySmoothing(low=low, high=high, weight=weight, hinge=hinge, iterations=iterations)
    term = LossTerm(advantage_terms=(AdvantageTerm(signal=REWARD, scale=StdScale()),))
    return Preset(
        loss_terms=(term,),
        loss=Loss(clip_high=0.2, entropy=entropy),
        shapers=(smoothing,),
        needs=frozenset({"entropy"}),
    )


def igpo(*, gamma: float = 1.0, form: GainForm = "log_prob", joint: bool = True) -> Preset:
    """Gain in the gold answer's log-probability with each step, and the score; normalised, then summed (IGPO).
    arXiv:2510.14967.

    `joint`: gains and scores have one mean and deviation; else each has its own.
    """
    whole = AdvantageTerm(
        signal="gain_or_outcome",
        unit="step",
        returns="discounted",
        gamma=gamma,
        scale=StdScale(ddof=0, epsilon=1e-8, epsilon_in_variance=True),
        order="norm_then_return",
    )
    terms = (whole,) if joint else (replace(whole, signal="gain"), replace(whole, signal="outcome"))
    return Preset(
        loss_terms=(LossTerm(advantage_terms=terms),),
        loss=Loss(clip_high=0.2, aggregation="seq-mean-token-mean"),
        shapers=(InformationGain(form=form),),
        needs=frozenset({"gold_logprob", GOLD}),
    )


def infopo(
    *,
    beta: float = 0.1,
    temperature: float = 0.05,
    placeholder: str = "No information found.",
    keep_markup: bool = True,
) -> Preset:
    """GRPO plus the information of observations, in groups whose scores do not differ (InfoPO). kfq20/InfoPO.

    The information of a step is how much likelier its observation makes the next action. Raises ConfigError for an
    empty `placeholder`.
    """
    if not placeholder:
        raise ConfigError("infopo: placeholder is empty; it must be a text that stands for the observation")
    term = LossTerm(
        advantage_terms=(AdvantageTerm(signal=REWARD, scale=StdScale()),),
        transforms=(GatedInformation(beta=beta, temperature=temperature),),
    )
    signal = ObservationGain(placeholder=placeholder, keep_markup=keep_markup)
    return Preset(
        loss_terms=(term,), loss=Loss(clip_high=0.2), needs=frozenset({"observation_gain"}), signals=(signal,)
    )


def capo(*, whole: float = 2.0, process: float = 1.0, error_rate: float = 0.0, seed: int = 0) -> Preset:
    """Score of the episode, less a penalty on steps that a scripted critic calls wrong (CAPO). arXiv:2508.02298.

    The critic knows the gold calls and errs at `error_rate`: it stands for the authors' language model.
    """
    advantage = AdvantageTerm(signal="criticised", unit="step", returns="none", scale=StdScale(), by_tokens=True)
    return Preset(
        loss_terms=(LossTerm(advantage_terms=(advantage,)),),
        loss=Loss(clip_high=0.2),
        shapers=(CritiqueReward(whole=whole, process=process),),
        needs=frozenset({"critique", GOLD}),
        signals=(Critique(error_rate=error_rate, seed=seed),),
    )


def hiper(*, gamma: float = 1.0, lam: float = 1.0, lam_high: float = 0.95) -> Preset:
    """PPO at two levels: actions under a subgoal, and the subgoals themselves, with three heads (HiPER).
    arXiv:2602.16165.

    The agent writes ``<switch>SWITCH</switch><subgoal>...</subgoal>``, or ``<switch>KEEP</switch>``, before it acts.
    """
    reward = AdvantageTerm(signal=REWARD, key=(), unit="step", returns="none", centre="none")
    backup = OptionBackup(gamma=gamma, lam=lam, lam_high=lam_high)
    term = LossTerm(advantage_terms=(reward,), backup=backup)
    return Preset(loss_terms=(term,), loss=Loss(clip_high=0.2), needs=frozenset({"option_values"}))


def seeupo(*, clip: float = 0.2, bound: float = 3.0, kl: float = 0.002) -> Preset:
    """Score less the group's mean, over the batch's deviation; updated step by step from the last (SeeUPO). Source:
    AgentEvolver, branch seeupo."""
    term = LossTerm(
        advantage_terms=(AdvantageTerm(signal=REWARD),),
        transforms=(ScaleToBatch(bound=bound),),
    )
    loss = Loss(kind="gspo", sequence="step", clip_low=3e-4, clip_high=4e-4, dual_clip=None, kl=kl)
    return Preset(loss_terms=(term,), loss=loss, turns=TurnByTurn(clip=clip))


def spo(*, memory: float = LONGEST_MEMORY) -> Preset:
    """Score less the task's chance of success so far, normalised over the batch: one episode a task (SPO). Source:
    verl-recipe, spo."""
    advantage = AdvantageTerm(signal="surprise", key=(), scale=StdScale(epsilon=1e-8))
    term = LossTerm(advantage_terms=(advantage,))
    return Preset(loss_terms=(term,), loss=Loss(), shapers=(SuccessBaseline(memory=memory),))


def poad(*, gamma: float = 0.99, lam: float = 0.95) -> Preset:
    """PPO with a value before every token: a Bellman backup without discount within an action (POAD).
    arXiv:2405.15821."""
    reward = AdvantageTerm(signal=REWARD, key=(), unit="step", returns="none", centre="none")
    term = LossTerm(advantage_terms=(reward,), backup=TokenBackup(gamma=gamma, lam=lam))
    return Preset(loss_terms=(term,), loss=Loss(clip_high=0.2), needs=frozenset({TOKEN_VALUE}))


def spa(*, alpha: float = 1.0, beta: float = 0.5, gamma: float = 1.0, lam: float = 0.95) -> Preset:
    """PPO on the progress that a trained head sees in each step, and on steps that the environment took (SPA-RL).
    arXiv:2505.20732."""
    advantage = AdvantageTerm(
        signal="progress_reward", key=(), unit="step", returns="gae", gamma=gamma, lam=lam, centre="none"
    )
    whiten = Whiten(scale=StdScale(epsilon=1e-8, epsilon_in_variance=True), by_tokens=True)
    return Preset(
        loss_terms=(LossTerm(advantage_terms=(advantage,), transforms=(whiten,)),),
        loss=Loss(clip_high=0.2),
        shapers=(ProgressReward(alpha=alpha, beta=beta),),
        needs=frozenset({"progress", "value"}),
    )


MAKERS: tuple[Callable[..., Preset], ...] = (epo, igpo, infopo, capo, poad, spa, hiper, seeupo, spo)
"""Functions that make the presets, in the order of lists."""
