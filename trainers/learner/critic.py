"""The critic: a value for every step or token, from the policy's last hidden state."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gymcp.trainers.settings.arrays import Floats, Ints


class Critic:
    """A small head over hidden states, trained beside the policy; its gradient does not reach the policy.

    Before training it gives 0 for every state.
    """

    def __init__(self, width: int, device: torch.device, *, learning_rate: float, epochs: int, seed: int) -> None:
        self._epochs = epochs
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            last = nn.Linear(width, 1)
            self._head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), last).to(device)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self._optimizer = torch.optim.AdamW(self._head.parameters(), lr=learning_rate, weight_decay=0.0)

    @torch.no_grad()
    def values(self, features: Tensor) -> Floats:
        """[S, H] features -> [S] values."""
        return np.asarray(self._head(features)[:, 0].double().cpu().numpy(), float)

    def fit(self, features: Tensor, returns: Floats, sums: Ints | None = None) -> float:
        """Train towards [S] returns; the mean squared error before the first update.

        With `sums` [S], the numbers from 0 of the sums that the values belong to, it is the sums that are trained
        towards [number of sums] returns. Raises FloatingPointError if a loss is not finite.
        """
        target = torch.as_tensor(returns, dtype=features.dtype, device=features.device)
        index = None if sums is None else torch.as_tensor(sums, device=features.device)
        losses = []
        for _ in range(self._epochs):
            values = self._head(features)[:, 0]
            if index is not None:
                values = torch.zeros_like(target).index_add(0, index, values)
            loss = nn.functional.mse_loss(values, target)
            if not torch.isfinite(loss):
                raise FloatingPointError("the loss of the critic is not finite; no weight was changed")
            self._optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(self._head.parameters(), 1.0)
            self._optimizer.step()
            losses.append(float(loss.detach()))
        return losses[0]

    def state(self) -> dict[str, Any]:
        """Head and optimiser, for a checkpoint."""
        return {"head": self._head.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self._head.load_state_dict(state["head"])
        self._optimizer.load_state_dict(state["optimizer"])
