"""The age of tokens in weight versions: functions of records and of the version that the learner is at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from gymcp.errors import ConfigError
from gymcp.types import Json, Sampled, Trajectory


def find_oldest_version(record: Trajectory) -> int | None:
    """The oldest weights that drew a token of the episode; None if it has no token of the trained policy."""
    return min((_number_of(version) for each in _drawn(record) for version, _, _ in each.versions), default=None)


def is_too_stale(records: Sequence[Trajectory], version: int, staleness: int) -> bool:
    """True if a token of a scored record was drawn more than `staleness` versions before `version`."""
    oldest = [find_oldest_version(record) for record in records if record.outcome.has_score]
    return any(each is not None and each < version - staleness for each in oldest)


def staleness_metrics(records: Sequence[Trajectory], version: int, staleness: int) -> dict[str, Json]:
    """Histogram of the tokens by age: ``staleness/K`` is the number of tokens drawn K versions before `version`."""
    tokens: Counter[int] = Counter()
    for record in records:
        for sampled in _drawn(record):
            for drawn_by, start, end in sampled.versions:
                tokens[version - _number_of(drawn_by)] += end - start
    total = sum(tokens.values())
    return {
        **{f"staleness/{age}": tokens[age] for age in sorted({*range(staleness + 1), *tokens})},
        "staleness/max": max(tokens, default=0),
        "staleness/mean": sum(age * count for age, count in tokens.items()) / max(total, 1),
    }


def _number_of(version: str) -> int:
    """The number of a version of this run's weights. Raises ConfigError for any other weights."""
    if not version.isdecimal():
        raise ConfigError(
            f"training: tokens were drawn by weights '{version}', which are no version of this run, so their age is not"
            " known and rollout.staleness cannot bound it; set it to 0, or let the agent ask the trained model alone"
        )
    return int(version)


def _drawn(record: Trajectory) -> Iterator[Sampled]:
    """All answers of the policy that are trained on."""
    yield from (step.sampled for step in record.steps if step.sampled is not None)
    yield from (answer.sampled for answer in record.own_side_answers if answer.sampled is not None)
