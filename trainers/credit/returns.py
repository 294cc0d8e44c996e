"""Returns of each step, computed over trajectories of any lengths at once."""

from __future__ import annotations

import numpy as np

from gymcp.trainers.settings.arrays import Floats, Ints


def returns_to_go(rewards: Floats, starts: Ints, gamma: float) -> Floats:
    """[S] -> [S]: R_t = r_t + gamma R_{t+1} within each trajectory.

    Computed by doubling: after k rounds every step holds the next 2^k rewards. The cost is S log T, and no loop is as
    long as a trajectory.
    """
    returns = rewards.astype(float)
    remaining = np.repeat(starts[1:], np.diff(starts)) - np.arange(len(rewards))
    reach, longest = 1, int(remaining.max(initial=0))
    while reach < longest:
        shifted = np.zeros_like(returns)
        shifted[:-reach] = returns[reach:]
        returns = returns + np.where(remaining > reach, gamma**reach * shifted, 0.0)
        reach *= 2
    return returns


def returns_with_factors(rewards: Floats, factors: Floats) -> Floats:
    """[K], [K] -> [K]: R_k = r_k + f_k R_{k+1}, with a factor of its own at every place; 0 where a trajectory ends.

    Computed by doubling, as `returns_to_go`; the last factor counts as 0.
    """
    returns, factors = rewards.astype(float), factors.astype(float)
    factors[-1:] = 0.0
    reach = 1
    while reach < len(returns) and factors.any():
        returns[:-reach] = returns[:-reach] + factors[:-reach] * returns[reach:]
        factors[:-reach] = factors[:-reach] * factors[reach:]
        factors[-reach:] = 0.0
        reach *= 2
    return returns


def returns_between_cuts(
    rewards: Floats, starts: Ints, gamma: float, is_cut: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
) -> Floats:
    """[S] -> [S]: R_t = r_t + gamma R_{t+1}; a step that `is_cut` is a stretch of its own: R_t = r_t, and the return
    before it does not take it in.

    Source: UI-S1, uis1/core_uis1.py.
    """
    factors = np.where(is_cut, 0.0, gamma)
    factors[:-1] = np.where(is_cut[1:], 0.0, factors[:-1])
    factors[starts[1:] - 1] = 0.0
    return returns_with_factors(rewards, factors)


def totals(rewards: Floats, starts: Ints) -> Floats:
    """[S] -> [S]: sum over the whole trajectory, on each of its steps."""
    if not len(rewards):
        return rewards
    return np.repeat(np.add.reduceat(rewards, starts[:-1]), np.diff(starts))


def gae(rewards: Floats, values: Floats, starts: Ints, *, gamma: float, lam: float) -> Floats:
    """[S], [S] -> [S]: generalised advantage estimates A_t = d_t + gamma lam A_{t+1}, with d_t = r_t + gamma V_{t+1} -
    V_t and V = 0 after the end.

    A step is what the columns count: turns, or the tokens that the policy sampled (tokens that it did not sample are no
    steps, so tool output is transparent).

    Source: arXiv:1506.02438.
    """
    following = np.zeros_like(values)
    following[:-1] = values[1:]
    following[starts[1:] - 1] = 0.0
    return returns_to_go(rewards + gamma * following - values, starts, gamma * lam)
