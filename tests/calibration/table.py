"""Tables of the measured coverage, from the stored results of `make calibrate`."""

from __future__ import annotations

from tests.calibration.coverage import LEVELS, RANK_SHARES, STATED
from tests.laboratory.results import Row, file_of, markdown_table, percent, stored_rows

RESULTS = file_of("intervals")


def stored() -> list[Row]:
    return stored_rows(RESULTS)


def coverage_table() -> str:
    header = [
        "interval",
        "level",
        "50 %",
        "80 %",
        "95 %",
        "99 %",
        "half-width",
        "of the error",
        "draws",
        "refused",
    ]
    rows = [
        [
            one["interval"],
            one["meaning"],
            *(percent(share) for share in one["coverage"]),
            _significant(100 * one["width"]) + " %",
            f"{one['width_ratio']:.1f}",
            f"{one['runs']:,}",
            percent(one["refused"] / one["runs"]) if one["refused"] else "",
        ]
        for one in stored()
    ]
    return markdown_table(header, rows, text=2)


def rank_table() -> str:
    below = [f"below {100 * level:.0f} %" for level in reversed(LEVELS)]
    above = [f"above {100 * level:.0f} %" for level in LEVELS]
    header = ["interval", *below, "lower half of 50 %", "upper half of 50 %", *above]
    expected = ["expected", *(_number(share) for share in RANK_SHARES)]
    rows = [
        [one["interval"], *(_number(share) for share in one["ranks"])]
        for one in stored()
        if _has_levels(one)
    ]
    return markdown_table(header, [expected, *rows], text=1)


def _has_levels(one: Row) -> bool:
    """Return whether the interval has another width at each level."""
    return str(one["meaning"]) != "bound"


def is_near_nominal(one: Row) -> bool:
    """Return whether the coverage at 95 % is within 2 points, or above where the interval has
    limits.
    """
    share = one["coverage"][STATED]
    return bool(share >= 0.93 and (one["meaning"] != "statistical" or share <= 0.97))


def _number(share: float) -> str:
    return f"{100 * share:.1f}"


def _significant(number: float) -> str:
    return f"{number:.2g}" if number < 10 else f"{number:.0f}"
