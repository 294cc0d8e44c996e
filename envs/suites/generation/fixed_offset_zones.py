"""Clock times in zones without daylight saving time: what a server converts stays right."""

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
"""Minutes ahead of UTC."""


def shift(time: int, minutes: int) -> int:
    """Minutes after midnight, later by `minutes`."""
    return (time + minutes) % DAY


def clock(time: int) -> str:
    """Minutes after midnight as HH:MM."""
    return f"{time // 60:02d}:{time % 60:02d}"
