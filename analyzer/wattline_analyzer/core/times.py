"""Durations and times as users and tools write them."""

from __future__ import annotations

import re
from calendar import timegm
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache

LONGEST_DAYS = 100_000
_UNIT_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_UNIX_SCALES = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""Size from which a Unix time is in ns, µs or ms: in seconds it would lie thousands of years ahead.
"""

_UNORDERED_S = 60.0
"""Time by which a line of a log may be earlier than the line before."""


class NoTimeZoneError(ValueError):
    """Date that needs a time zone and has none."""


class LocalTimeError(ValueError):
    """Local time that a change of the clocks repeats or leaves out.

    `first_s` and `second_s` are the Unix seconds of the repeated time; both are None for a time
    that does not exist. `offsets` are its UTC offsets, such as `+01:00`.
    """

    def __init__(
        self,
        cause: str,
        first_s: float | None = None,
        second_s: float | None = None,
        offsets: tuple[str, str] = ("", ""),
    ) -> None:
        super().__init__(cause)
        self.first_s = first_s
        self.second_s = second_s
        self.offsets = offsets


class SystemZone(tzinfo):
    """Local time zone of this machine, with the offset that is valid at each time."""

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        if moment is None:
            return None
        local = moment.replace(tzinfo=None, microsecond=0)
        return timedelta(seconds=timegm(local.timetuple()) - local.timestamp())

    def dst(self, _moment: datetime | None) -> timedelta | None:
        return None

    def tzname(self, _moment: datetime | None) -> str | None:
        return None


@lru_cache(maxsize=256)
def _offsets_s(zone: tzinfo, minute: datetime) -> tuple[float, float]:
    """Return both offsets of a minute without zone, which differ if it occurs twice or never."""
    first, second = (
        minute.replace(tzinfo=zone, fold=fold).utcoffset() or timedelta() for fold in (0, 1)
    )
    return first.total_seconds(), second.total_seconds()


def parse_duration(text: str, unit: str = "") -> float:
    """Return the seconds of a duration such as `90m` or `30d`; `unit` is used if it has none.
    Raises ValueError.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text if text[-1:].isalpha() else text + unit)
    if not match or float(match[1]) == 0:
        raise ValueError(f"expected a duration above 0 in s, m, h or d, such as 30d, not {text!r}")
    duration_s = float(match[1]) * _UNIT_S[match[2]]
    if duration_s > LONGEST_DAYS * _UNIT_S["d"]:
        raise ValueError(f"expected at most {LONGEST_DAYS}d, not {text!r}")
    return duration_s


def parse_moment(text: str, zone: tzinfo) -> float:
    """Return the Unix seconds of a Unix time of at least 9 digits (in s, ms, µs or ns) or of a
    date.

    `zone` is the time zone of dates that name none. Raises ValueError; LocalTimeError as
    `parse_date` does.
    """
    text = text.strip()
    if re.fullmatch(r"\d{9,}(\.\d+)?", text):
        value = float(text)
        return value / next((scale for limit, scale in _UNIX_SCALES if value >= limit), 1.0)
    try:
        return parse_date(text, zone)
    except LocalTimeError:
        raise
    except ValueError as error:
        raise ValueError(f"{text[:60]!r} is neither a date nor a Unix time") from error


def local_time(unix_s: float) -> str:
    """Return the local time with its UTC offset, in ISO 8601."""
    return datetime.fromtimestamp(unix_s).astimezone().isoformat(timespec="seconds")


def parse_compact_date(text: str, zone: tzinfo | None = None) -> float:
    """Return the Unix seconds of a date such as 20261124-173045. Raises ValueError as `parse_date`
    does.
    """
    if not re.fullmatch(r"\d{8}-\d{6}", text):
        raise ValueError(f"{text[:60]!r} is no date such as 20261124-173045")
    return parse_date(text.replace("-", "T"), zone)


def parse_date(text: str, zone: tzinfo | None = None) -> float:
    """Return the Unix seconds of a date in ISO 8601 or in the format of nvidia-smi.

    Raises ValueError; NoTimeZoneError if neither the date nor `zone` gives a time zone;
    LocalTimeError for a date without an offset that occurs twice or never, because the clocks
    change.
    """
    moment = datetime.fromisoformat(text.strip().replace("/", "-"))
    if moment.tzinfo is not None:
        return moment.timestamp()
    if zone is None:
        raise NoTimeZoneError(f"{text[:60]!r} has no time zone")
    first_s, second_s = (
        moment.replace(tzinfo=UTC).timestamp() - offset_s
        for offset_s in _offsets_s(zone, moment.replace(second=0, microsecond=0))
    )
    if first_s == second_s:
        return first_s
    if first_s > second_s:
        raise LocalTimeError(
            f"{text[:60]!r} does not exist: the clocks skip it; write a time with an offset"
        )
    first, second = (_with_offset(moment.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
    raise LocalTimeError(
        f"{text[:60]!r} occurs twice, because the clocks are set back; write {first} or {second}",
        first_s,
        second_s,
        (first[-6:], second[-6:]),
    )


def _with_offset(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds" if moment.microsecond else "seconds")


class LogTimes:
    """Parser of the times of one log, which rise: so that a time of a repeated hour is clear."""

    def __init__(self, zone: tzinfo, *, starts_in_second: bool = False) -> None:
        """`starts_in_second` says that a first time that occurs twice is the second one."""
        self._zone = zone
        self._starts_in_second = starts_in_second
        self._previous_text = ""
        self._previous_s: float | None = None
        self._has_repeated_hour = False
        self._start: LocalTimeError | None = None
        self._start_text = ""
        self._is_open = False
        self.misses_an_hour = False
        """True if the log starts in a repeated hour and leaves it, so that it starts in the second
        one.
        """

    def parse(self, text: str) -> float:
        """Return the Unix seconds of the next time. Raises ValueError as `parse_moment` does.

        A time that occurs twice is the second one if the time before is later than the first one.
        """
        if (
            text == self._previous_text and self._previous_s is not None
        ):  # each GPU has a line of this time
            return self._previous_s
        try:
            moment_s = parse_moment(text, self._zone)
        except LocalTimeError as error:
            if error.first_s is None or error.second_s is None:
                raise
            self._has_repeated_hour = True
            if self._previous_s is None:
                self._start = error
                self._start_text = text
                self._is_open = not self._starts_in_second
                is_second = self._starts_in_second
            else:
                is_second = self._previous_s > error.first_s + _UNORDERED_S
                self._is_open &= not is_second
            moment_s = error.second_s if is_second else error.first_s
        else:
            self.misses_an_hour |= (
                self._is_open and self._previous_s is not None and moment_s > self._previous_s
            )
        self._previous_text = text
        self._previous_s = moment_s
        return moment_s

    def notes(self, name: object) -> list[str]:
        """Return the assumption about the times of the log `name`, if there is one."""
        if not self._has_repeated_hour:
            return []
        if self._start is None or not (self._is_open or self._starts_in_second):
            return [
                (
                    f"{name}: an hour occurs twice, because the clocks were set back: its times "
                    "are "
                    "read in rising order"
                )
            ]
        first, second = self._start.offsets
        start = (
            f"{name}: its first time {self._start_text} occurs twice, because the clocks were "
            "set back"
        )
        if not self._starts_in_second:
            return [
                (
                    f"{start}: it is read as the first one ({first}); for the second one give "
                    f"--timezone {second}"
                )
            ]
        start += (
            f": it is read as the second one ({second}), because the log goes on in the next hour"
        )
        return [f"{start}; if it is the first one ({first}), write the times with their offset"]


def names_zone(text: str) -> bool:
    """Return whether a time needs no default time zone: a Unix time, or a date with a zone."""
    return bool(re.fullmatch(r"[\d.]+", text) or re.search(r"(?:Z|[+-]\d\d:?\d\d)$", text))
