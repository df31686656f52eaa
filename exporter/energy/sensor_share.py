"""The share of the time that a GPU's instant power sees, by architecture (pure).

Window over period as metered by Yang, Adamek, Armour, arXiv 2312.02741, raw results: 25 of 100 ms on GA100 and GH100,
10 of 20 ms on Pascal and Volta, all of it on Turing, GA10x and Ada. What was not metered counts as the least of them.
"""

from __future__ import annotations

_LEAST = 0.25
_SHARES = {"Pascal": 0.5, "Volta": 0.5, "Turing": 1.0, "Ampere": 1.0, "Ada": 1.0}
_GA100 = ("A100", "A800", "A30 ", "A30X", "DRIVE-PG199")


def seen_ratio(name: str, architecture: str) -> float:
    if any(model in f"{name} " for model in _GA100):
        return _LEAST
    return _SHARES.get(architecture, _LEAST)
