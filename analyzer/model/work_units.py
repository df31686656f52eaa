"""Units of work: amounts and results, and the primary unit of a run."""

from __future__ import annotations

from collections.abc import Iterable

GFLOP = "gflop"
FLOP_PER_GFLOP = 1e9
_PRIMARY = ("generated_tokens", "trained_tokens", "tokens", "prompt_tokens", "images", "samples", "requests", "steps")
"""Units of useful work, the most specific first."""
_AUXILIARY = ("flop", "bytes", "padding_tokens")
"""Units that accompany the useful work or measure its effort."""
_RESULTS = ("score", "time", "seconds", "duration", "latency")
"""Names under which benchmarks report how long they took."""


def is_amount(unit: str) -> bool:
    """Return False for a score or a time, which is a result: less of it is no less work."""
    return unit not in _RESULTS and not unit.endswith("_seconds")


def primary_first(units: Iterable[str]) -> list[str]:
    """Return the units with the primary one first, then units that are not known here, then auxiliary ones."""
    return sorted(units, key=_rank)


def _rank(unit: str) -> tuple[int, str]:
    if unit in _PRIMARY:
        return _PRIMARY.index(unit), unit
    return len(_PRIMARY) + (1 + _AUXILIARY.index(unit) if unit in _AUXILIARY else 0), unit
