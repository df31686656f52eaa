"""The order of a table's cells: the number in base units behind a text such as `1.234 ± 0.005 kWh`. Pure."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"[<>≤≥~≈±+]?\s?([-−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)")
_UNIT = re.compile(r"[a-zA-Zµ%°₂€$/]+")
_DURATION = re.compile(r"(?:(\d+) d ?)?(?:(\d+) h ?)?(?:(\d+) min ?)?(?:(\d+(?:\.\d+)?) s)?")
_DURATIONS_S = (86_400, 3_600, 60, 1)
_PREFIXES = {"f": 1e-15, "p": 1e-12, "n": 1e-9, "µ": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_FACTORS = {
    **{f"{prefix}{unit}": factor for unit in ("J", "W", "g", "s", "Hz", "B") for prefix, factor in _PREFIXES.items()},
    "t": 1e6,
    **{f"{prefix}Wh": 3_600.0 * factor for prefix, factor in _PREFIXES.items()},
    **{f"{prefix}iB": 1_024.0**power for power, prefix in enumerate("KMGT", start=1)},
}


def number(text: str) -> float | None:
    """In joules, watts, grams, seconds; None where the text does not begin with a number that is all of its word.

    A date is no number: its digits sort as text.
    """
    words = text.strip()
    duration = _DURATION.fullmatch(words)
    if words and duration and any(duration.groups()):
        return sum(float(part) * s for part, s in zip(duration.groups(), _DURATIONS_S, strict=True) if part)
    found = _NUMBER.match(words)
    if not found or re.match(r"[\w:-]", words[found.end() :]):
        return None
    value = float(found[1].replace(",", "").replace("−", "-"))
    rest = words[found.end() :].partition("(")[0]
    unit = _UNIT.search(rest)
    return value * _FACTORS.get(unit[0] if unit else "", 1.0)
