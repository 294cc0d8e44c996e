"""How an advantage becomes a gradient, as settings; `losses.py` computes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gymcp.errors import ConfigError

Aggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedWeight:
    """min(w, cap), where w = p_old / p_rollout: what the engine and the trainer disagree on.

    Source: verl, rollout_corr_helper.py.
    """

    cap: float = 2.0
    level: Literal["token", "sequence"] = "token"


@dataclass(frozen=True, slots=True, kw_only=True)
class BandWeight:
    """w where it lies in the band, 0 elsewhere (IcePop).

    Source: slime, loss.py.
    """

    low: float = 0.5
    high: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """How an advantage becomes a gradient."""

    kind: Literal["ppo", "gspo", "cispo", "likelihood"] = "ppo"
    """ppo: token ratios, clipped. gspo: one ratio a sequence. cispo: clipped weights, so that no gradient is lost.
    likelihood: -A log p, which with A = 1 is supervised learning."""
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = 3.0
    """Bound on the loss of a token with a negative advantage; None: none."""
    aggregation: Aggregation = "token-mean"
    constant_length: float | None = None
    """What ``seq-mean-token-sum-norm`` divides by: a length that does not depend on the batch."""
    weight: TruncatedWeight | BandWeight | None = None
    """Correction for tokens drawn by an engine that computes other probabilities than the trainer."""
    decoupled: bool = False
    """Whether `old` are the probabilities of a proximal policy and `rollout` those of the one that acted (AReaL)."""
    behaviour_cap: float = 5.0
    """Decoupled only: tokens whose p_old / p_rollout exceeds this are left out."""
    kl: float = 0.0
    """Weight of the k3 estimate of the divergence from the reference policy."""

    def __post_init__(self) -> None:
        if self.aggregation == "seq-mean-token-sum-norm" and not self.constant_length:
            raise ConfigError("loss: seq-mean-token-sum-norm needs constant_length, the tokens it divides by")
        if self.clip_low < 0 or self.clip_high < 0 or (self.dual_clip is not None and self.dual_clip <= 1):
            raise ConfigError("loss: clips must be positive, and dual_clip above 1")
