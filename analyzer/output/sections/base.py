"""A part of the report as a table in words: the same on the console and on the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from analyzer.model.report import Report


@dataclass(frozen=True, slots=True)
class Section:
    """`note` is a sentence below the table; figures stand in the columns from `words` on."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    words: int = 1


def _parts() -> tuple[Callable[[Report], Section | None], ...]:
    from analyzer.output.sections import boundaries, latencies
    from analyzer.output.sections import carbon as carbon_parts
    from analyzer.output.sections import error_budget as how_sure

    return (
        how_sure.budget_section,
        how_sure.calibrated_section,
        boundaries.energy_section,
        boundaries.work_section,
        latencies.latency_section,
        carbon_parts.restated_section,
        carbon_parts.sci_section,
    )


def sections(report: Report) -> tuple[Section, ...]:
    """In the order in which they are shown; a part of which nothing is known is left out."""
    return tuple(found for part in _parts() if (found := part(report)))
