"""The log-probabilities that the ratios of a loss compare with: those of the weights that drew the tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gymcp.errors import ConfigError
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.learner.token_rows import Example, Row, count_stale_tokens, has_gradient, has_logprobs
from gymcp.trainers.settings.arrays import Floats
from gymcp.trainers.settings.loss import Loss


def find_old_logprobs(
    learner: Learner,
    examples: Sequence[Example],
    loss: Loss,
    *,
    weights: Sequence[float],
    groups: Sequence[int],
    version: str,
    engine_shares_weights: bool,
    several: bool,
) -> list[Floats] | None:
    """[L] for each row: `old` of all updates on this batch. None: each update compares with its own current weights.

    `version`: that of the learner's weights; empty: unknown. Tokens of other weights are compared with what the engine
    recorded, unless the loss corrects for the engine by itself. With `several` updates the others are compared with the
    current weights: with what the engine recorded if `engine_shares_weights`, else computed, for rows with a gradient.
    Raises ConfigError if the tokens of other weights have no recorded log-probabilities and the loss has ratios.
    """
    rows = [example.row for example in examples]
    stale = [b for b, row in enumerate(rows) if version and count_stale_tokens(row, version)]
    if loss.kind != "likelihood":
        _refuse_unknown_ratios(rows, stale, version, loss)
    trusts_record = loss.weight is None and not loss.decoupled
    if not several and not (stale and trusts_record):
        return None
    old = [np.array(row.logprobs) for row in rows]
    recorded = {b for b in stale if trusts_record}
    if trusts_record and engine_shares_weights and version:
        recorded |= {b for b, row in enumerate(rows) if has_logprobs(row)}
    missing = [
        b
        for b, each in enumerate(examples)
        if b not in recorded and (loss.reaches_all_tokens or has_gradient(each, weights))
    ]
    if missing:
        computed = learner.logprobs([rows[b] for b in missing], [groups[b] for b in missing])
        for b, values in zip(missing, computed, strict=True):
            old[b] = values
    return old


def _refuse_unknown_ratios(rows: Sequence[Row], stale: Sequence[int], version: str, loss: Loss) -> None:
    unknown = [rows[b] for b in stale if not has_logprobs(rows[b])]
    if unknown:
        versions = sorted({f"'{drawn_by}'" for row in unknown for drawn_by, _, _ in row.versions})
        raise ConfigError(
            f"training: {len(unknown)} of {len(rows)} rows were drawn by weights {', '.join(versions)} without recorded"
            f" log-probabilities, and the learner has weights '{version}': loss.kind = '{loss.kind}' needs them for its"
            " ratios; draw with local: or vllm:, which record them"
        )
