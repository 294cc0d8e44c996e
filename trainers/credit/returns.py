"""What lies ahead of each step, over trajectories of any lengths at once."""

from __future__ import annotations

import numpy as np

from gymcp.trainers.settings.arrays import Floats, Ints


def returns_to_go(rewards: Floats, starts: Ints, gamma: float) -> Floats:
    """[S] -> [S]: R_t = r_t + gamma R_{t+1} within each trajectory.

    By doubling: after k passes every step holds the next 2^k rewards, so the cost is S log T and no loop is as long as
    a trajectory.
    """
    ahead = rewards.astype(float)
    left = np.repeat(starts[1:], np.diff(starts)) - np.arange(len(rewards))
    reach, longest = 1, int(left.max(initial=0))
    while reach < longest:
        further = np.zeros_like(ahead)
        further[:-reach] = ahead[reach:]
        ahead = ahead + np.where(left > reach, gamma**reach * further, 0.0)
        reach *= 2
    return ahead


def totals(rewards: Floats, starts: Ints) -> Floats:
    """[S] -> [S]: the sum of the whole trajectory, on each of its steps."""
    if not len(rewards):
        return rewards
    return np.repeat(np.add.reduceat(rewards, starts[:-1]), np.diff(starts))


def gae(rewards: Floats, values: Floats, starts: Ints, *, gamma: float, lam: float) -> Floats:
    """[S], [S] -> [S]: A_t = d_t + gamma lam A_{t+1}, where d_t = r_t + gamma V_{t+1} - V_t and V is 0 after the end.

    A step is whatever the columns count: turns, or the tokens that the policy drew (those it did not draw are no steps,
    so tool output is transparent).

    Source: arXiv:1506.02438.
    """
    following = np.zeros_like(values)
    following[:-1] = values[1:]
    following[starts[1:] - 1] = 0.0
    return returns_to_go(rewards + gamma * following - values, starts, gamma * lam)
