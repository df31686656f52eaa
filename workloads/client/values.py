"""Numbers as a job gives them: what is none is said once and left out, as it must not stop a training."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Mapping

from workloads.client.messages import say_once

MOST_RESULTS, MOST_UNITS = 64, 16
"""Of a run: one more, and the exporter refuses all of them. `exporter.contract.run` has them, too."""


def finite(value: float) -> float | None:
    """Whatever has a float: NumPy's and torch's scalars, too."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def of_work(amounts: Mapping[str, float]) -> dict[str, float]:
    good = {
        unit: number
        for unit, amount in amounts.items()
        if (number := finite(amount)) is not None and number >= 0 and unit != "contributor" and _is_name(unit)
    }
    for unit in amounts.keys() - good.keys():
        say_once(f"work {unit} is not counted: a unit is a name in ASCII, an amount a number that is not negative")
    return good


def of_results(values: Mapping[str, float]) -> dict[str, float]:
    named = {name: value for name, value in values.items() if _is_name(name)}
    for name in values.keys() - named.keys():
        say_once(f"result {name} is left out: its name is to be of at most 64 letters, digits and _ in ASCII")
    return of_values(named, "result")


def of_values(values: Mapping[str, float], kind: str = "value") -> dict[str, float]:
    good = {name: number for name, value in values.items() if (number := finite(value)) is not None}
    for name in values.keys() - good.keys():
        say_once(f"{kind} {name} is left out: it is no finite number")
    return good


def _is_name(name: str) -> bool:
    return name.isascii() and name.isidentifier() and len(name) <= 64


_LONGEST_NAME = 40  # of 64 characters, the rest is for what makes the id unique


def named(workload: str, unique: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", workload).strip("._-")[:_LONGEST_NAME]
    return f"{name or 'run'}-{unique}"


def fresh(workload: str) -> str:
    return named(workload, secrets.token_hex(5))
