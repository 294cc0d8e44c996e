"""Segments of text between values that are estimated within an answer (SPO). Steps are segments in `shapers`."""

from __future__ import annotations

import numpy as np

from gymcp.errors import ConfigError
from gymcp.trainers.settings.arrays import Floats, Ints


def cut_text(probabilities: Floats, *, threshold: float = 0.9, interval: int = 5) -> Ints:
    """[K] probability of each drawn token -> [K]: number of its segment, from 0.

    A segment ends with every `interval`-th token below the threshold, at which the policy could have gone on otherwise.
    The last segment is what remains.

    Source: SPO, math_episode_generator_with_mc_advantages.py.
    """
    if interval < 1:
        raise ConfigError(f"segments: {interval} unsure tokens cannot end a segment; give 1 or more")
    unsure = np.asarray(probabilities) < threshold
    return np.asarray((np.cumsum(unsure) - unsure) // interval, np.int64)


def credit_segments(
    values: Floats, segment: Ints, probabilities: Floats | None = None, *, threshold: float = 0.9
) -> Floats:
    """[N + 1] values at the ends of N segments, [K] segment of each token -> [K]: what its segment gained in value.

    With probabilities [K], tokens that were not below the threshold get 0. Raises ConfigError for a segment without a
    value at its end.
    """
    values, segment = np.asarray(values, float), np.asarray(segment)
    if (last := int(segment.max(initial=-1))) + 2 > len(values):
        raise ConfigError(f"segments: {len(values)} values for {last + 1} segments; give one more than there are")
    gain = np.diff(values)[segment]
    return gain if probabilities is None else np.where(np.asarray(probabilities) < threshold, gain, 0.0)
