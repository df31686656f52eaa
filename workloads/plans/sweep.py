"""The plan of a sweep: one job with the same arguments under each power limit, clock or option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workloads.plans.model import POWER_LIMIT, SM_CLOCK, values


class SweepError(ValueError):
    """What was asked for is no sweep; one line."""


def numbers(option: str, text: str) -> list[int]:
    """`300:700:50` or `300,500`. Raises SweepError."""
    try:
        if ":" in text:
            found = values(text)
            assert isinstance(found, list)
            return found
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        reason = str(error) if ":" in text else f"{text!r} are no whole numbers; give 300,500 or 300:700:50"
        raise SweepError(f"{option}: {reason}") from error


def varied(pairs: Sequence[str]) -> dict[str, list[Any]]:
    """`batch-size=1,8` → {"batch-size": ["1", "8"]}. Raises SweepError."""
    found: dict[str, list[Any]] = {}
    for pair in pairs:
        name, equals, texts = pair.partition("=")
        if not equals or not name or "" in (given := texts.split(",")):
            raise SweepError(f"--vary {pair}: give OPTION=VALUE,VALUE like --vary batch-size=1,8")
        found[name.removeprefix("--")] = given
    return found


def document(
    job: str, arguments: Sequence[str], grid: Mapping[str, Sequence[Any]], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The plan as its file would say it; of `settings` those that are given. Raises SweepError."""
    if not grid:
        raise SweepError("there is nothing to sweep; give --power-limits 300:700:50, --sm-clocks, or --vary OPTION=…")
    if {POWER_LIMIT, SM_CLOCK} <= grid.keys():
        raise SweepError("--power-limits and --sm-clocks hold each other back; give one of the two")
    entry = {"job": job, "arguments": list(arguments), "sweep": {name: list(each) for name, each in grid.items()}}
    given = {name: value for name, value in settings.items() if value is not None and value != []}
    return {"name": f"{job}-sweep", **given, "runs": [entry]}
