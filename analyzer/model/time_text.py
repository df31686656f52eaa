"""Durations and times as users and tools write them."""

from __future__ import annotations

import re
from datetime import datetime, tzinfo

LONGEST_DAYS = 100_000
_UNIT_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_UNIX_SCALES = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""Size from which a Unix time is in ns, µs or ms: in seconds it would lie thousands of years ahead."""


class NoTimeZoneError(ValueError):
    """Date that needs a time zone and has none."""


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as `90m` or `30d`. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if not match or float(match[1]) == 0:
        raise ValueError(f"expected a duration above 0 in s, m, h or d, such as 30d, not {text!r}")
    duration_s = float(match[1]) * _UNIT_S[match[2]]
    if duration_s > LONGEST_DAYS * _UNIT_S["d"]:
        raise ValueError(f"expected at most {LONGEST_DAYS}d, not {text!r}")
    return duration_s


def parse_moment(text: str, zone: tzinfo) -> float:
    """Return the Unix seconds of a Unix time of at least 9 digits (in s, ms, µs or ns) or of a date.

    `zone` is the time zone of dates that name none. Raises ValueError.
    """
    text = text.strip()
    if re.fullmatch(r"\d{9,}(\.\d+)?", text):
        value = float(text)
        return value / next((scale for limit, scale in _UNIX_SCALES if value >= limit), 1.0)
    try:
        return parse_date(text, zone)
    except ValueError as error:
        raise ValueError(f"{text[:60]!r} is neither a date nor a Unix time") from error


def parse_date(text: str, zone: tzinfo | None = None) -> float:
    """Return the Unix seconds of a date in ISO 8601 or in the format of nvidia-smi.

    Raises ValueError; NoTimeZoneError if neither the date nor `zone` gives a time zone.
    """
    moment = datetime.fromisoformat(text.strip().replace("/", "-"))
    if moment.tzinfo is None and zone is None:
        raise NoTimeZoneError(f"{text[:60]!r} has no time zone")
    return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()


def names_zone(text: str) -> bool:
    """Return whether a time needs no default time zone: a Unix time, or a date with a zone."""
    return bool(re.fullmatch(r"[\d.]+", text) or re.search(r"(?:Z|[+-]\d\d:?\d\d)$", text))
