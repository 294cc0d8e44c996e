"""Clock times in zones without daylight saving time, so that a converted time stays right all year."""

from __future__ import annotations

DAY = 24 * 60
ZONES = {
    "America/Bogota": -300,
    "America/Phoenix": -420,
    "Africa/Lagos": 60,
    "Africa/Nairobi": 180,
    "Asia/Dubai": 240,
    "Asia/Kathmandu": 345,
    "Asia/Kolkata": 330,
    "Asia/Singapore": 480,
    "Asia/Tokyo": 540,
    "Australia/Brisbane": 600,
    "Pacific/Honolulu": -600,
}
"""Offset of each zone from UTC, in minutes, positive to the east."""


def shift(time: int, minutes: int) -> int:
    """The time that is `minutes` later, in minutes after midnight."""
    return (time + minutes) % DAY


def clock(time: int) -> str:
    """A time in minutes after midnight, as HH:MM."""
    return f"{time // 60:02d}:{time % 60:02d}"
