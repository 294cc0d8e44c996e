"""Settings of the loss, which turns an advantage into a gradient; `losses.py` computes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gymcp.errors import ConfigError

Aggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
SequenceUnit = Literal["episode", "step"]
_OF_RATIOS = (
    "clip_low", "clip_high", "dual_clip", "keep_clipped_gradient", "weight", "decoupled", "behaviour_cap",
)  # fmt: skip
"""Settings of losses that have ratios."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedWeight:
    """Truncated importance weight min(w, cap), with w = p_old / p_rollout: the disagreement of trainer and engine.

    Source: verl, rollout_corr_helper.py.
    """

    cap: float = 2.0
    level: Literal["token", "sequence"] = "token"


@dataclass(frozen=True, slots=True, kw_only=True)
class BandWeight:
    """Banded importance weight: w inside the band, 0 outside (IcePop).

    Source: slime, loss.py.
    """

    low: float = 0.5
    high: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Settings of the loss."""

    kind: Literal["ppo", "gspo", "cispo", "sapo", "likelihood"] = "ppo"
    """ppo: token ratios, clipped. gspo: one ratio per `sequence`. cispo: clipped weights, so that no gradient is lost.
    sapo: token ratios through a sigmoid, so that the gradient fades and never ends. likelihood: -A log p, which is
    supervised learning for A = 1."""
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = 3.0
    """Bound on the loss of a token with a negative advantage; None: no bound."""
    sharpness_up: float = 1.0
    """Steepness of ``sapo``'s sigmoid for tokens with a positive advantage."""
    sharpness_down: float = 1.05
    """The same for the other tokens: their gradient fades a little sooner."""
    keep_clipped_gradient: bool = False
    """Keep the gradient of a token above the upper clip: its ratio counts as 1 + `clip_high`, and its log-probability
    still moves (AEPO). Of ``ppo`` only."""
    aggregation: Aggregation = "token-mean"
    sequence: SequenceUnit = "episode"
    """The sequences of ``seq-mean`` and of ``gspo``. episode: a mean is over the tokens of an episode, also if edits of
    its context have made several rows of it; a ratio is of one row. step: a mean is over
    the tokens of one step, the agent's own side answers that led to it among them; a ratio is of those in one row. For
    algorithms in which every step is a sample."""
    constant_length: float | None = None
    """Divisor of ``seq-mean-token-sum-norm``, in tokens: a length that does not depend on the batch."""
    weight: TruncatedWeight | BandWeight | None = None
    """Correction for tokens sampled by an engine whose probabilities differ from the trainer's."""
    decoupled: bool = False
    """Take `old` as the probabilities of a proximal policy and `rollout` as those of the policy that acted (AReaL)."""
    behaviour_cap: float = 5.0
    """Largest p_old / p_rollout of a token that counts, with `decoupled` only; tokens above it are left out."""
    kl: float = 0.0
    """Weight of the k3 estimate of the KL divergence from the reference policy."""
    entropy: float = 0.0
    """Weight of the mean entropy (nats) of the drawn tokens' distributions, which is subtracted from the loss."""

    @property
    def reaches_all_tokens(self) -> bool:
        """True if tokens without an advantage have a gradient, too."""
        return self.kl != 0 or self.entropy != 0

    @property
    def takes_other_weights(self) -> bool:
        """True if tokens may have been drawn by any weights: the loss has no ratios, or corrects for who drew them."""
        return self.kind == "likelihood" or self.decoupled

    @property
    def averaging(self) -> Aggregation:
        """The aggregation that is computed: gspo has one of its own."""
        return "seq-mean-token-mean" if self.kind == "gspo" else self.aggregation

    def __post_init__(self) -> None:
        if self.aggregation == "seq-mean-token-sum-norm" and not self.constant_length:
            raise ConfigError("loss: seq-mean-token-sum-norm needs constant_length, the tokens it divides by")
        if self.sharpness_up <= 0 or self.sharpness_down <= 0:
            raise ConfigError("loss: sharpness_up and sharpness_down must be above 0")
        if self.clip_low < 0 or self.clip_high < 0 or (self.dual_clip is not None and self.dual_clip <= 1):
            raise ConfigError("loss: clips must be positive, and dual_clip above 1")


def find_ignored(loss: Loss, named: Iterable[str]) -> tuple[str, str] | None:
    """The first of the settings that somebody has `named` and this loss never reads, and why; None: it reads them all.

    The reason is the setting that replaces it, as ``loss.kind = 'gspo'``.
    """
    return next(((name, reason) for name in named if (reason := _reason_to_ignore(loss, name))), None)


def _reason_to_ignore(loss: Loss, name: str) -> str:
    kind = f"loss.kind = '{loss.kind}'"
    if loss.kind == "likelihood" and name in _OF_RATIOS:
        return kind
    if name in ("dual_clip", "keep_clipped_gradient") and loss.kind != "ppo":
        return kind
    if name in (("clip_low", "clip_high") if loss.kind == "sapo" else ("sharpness_up", "sharpness_down")):
        return kind
    if name == "aggregation" and loss.averaging != loss.aggregation:
        return kind
    if name == "constant_length" and loss.averaging != "seq-mean-token-sum-norm":
        return kind if loss.kind == "gspo" else f"loss.aggregation = '{loss.aggregation}'"
    if name == "weight" and loss.decoupled:
        return "loss.decoupled = true"
    if name == "behaviour_cap" and not loss.decoupled:
        return "loss.decoupled = false"
    if name == "sequence" and loss.averaging == "token-mean" and not _weighs_sequences(loss):
        return f"loss.aggregation = '{loss.aggregation}'"
    return ""


def _weighs_sequences(loss: Loss) -> bool:
    return isinstance(loss.weight, TruncatedWeight) and loss.weight.level == "sequence"
