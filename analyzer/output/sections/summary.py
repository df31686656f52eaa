"""What a run cost, in sentences: the page's first lines. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from analyzer.energy.checks import Level
from analyzer.model.interval import Interval
from analyzer.model.report import Report, Work
from analyzer.output import units

LEVELS: dict[Level, str] = {
    "bad": "do not use the figures that it names",
    "warning": "read it before you use the figures",
    "note": "good to know",
}
"""What a finding of each level asks of the reader."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """`figure` is what to remember of it."""

    before: str
    figure: str
    after: str


def lead(report: Report) -> list[Sentence]:
    """Energy, energy per unit of work and emissions, each with its interval or with why it has none."""
    return [*_energy(report), *(_work(report, work) for work in report.work if work.energy_per_unit), *_mass(report)]


def whose(report: Report) -> str:
    """`8 SIMULATED GPUs`, or what else was measured."""
    if not report.gpus:
        return "CPUs" if "cpu" in report.energy else "memory"
    count = len(report.gpus)
    return f"{count} {'SIMULATED ' if report.simulated else ''}GPU{'s' if count > 1 else ''}"


def findings_in_short(report: Report) -> str:
    """`1 warning and 2 notes`."""
    counts = Counter(finding.level for finding in report.findings)
    words = {"bad": "bad"}
    parts = []
    for level in LEVELS:
        if counts[level]:
            plural = "s" if counts[level] > 1 and level != "bad" else ""
            parts.append(f"{counts[level]} {words.get(level, level)}{plural}")
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def _energy(report: Report) -> Iterator[Sentence]:
    energy = report.headline
    if energy:
        figure = units.marked(units.energy(energy), report.headline_estimated)
        sure = _sure(energy, report.headline_estimated)
        used = "The run used" if report.ended_at_s is not None else "The run has used so far"
        yield Sentence(used, figure, f"on {whose(report)} in {units.duration(report.duration_s)}; {sure}.")


def _sure(energy: Interval, estimated: bool) -> str:
    if estimated:
        return "an estimate from utilization, no measurement"
    value, half, unit = units.energy_parts(energy)
    if not half:
        return "how sure that is, is not known"
    middle, reach = (float(text.replace(",", "")) for text in (value, half))
    decimals = len(value.partition(".")[2])
    low, high = (f"{limit:,.{decimals}f}" for limit in (middle - reach, middle + reach))
    return f"with 95 % the truth lies between {low} and {high} {unit}, the sensor's systematic error aside"


def _work(report: Report, work: Work) -> Sentence:
    assert work.energy_per_unit is not None
    figure = units.energy_per_unit(work.energy_per_unit, work.unit)
    rate = f", at {units.rate(work.per_second, work.unit)}" if work.per_second is not None else ""
    where = f", {'both ' if rate else ''}in {' and '.join(work.phases)} alone" if work.phases else ""
    sure = "" if work.energy_per_unit.half else "; its interval is not known"
    estimated = report.headline_estimated
    return Sentence(
        f"{units.amount(work.amount, work.unit)} took", units.marked(figure, estimated), f"{rate}{where}{sure}."
    )


def _mass(report: Report) -> Iterator[Sentence]:
    for sum_ in report.emission_totals:
        estimated = f"; {sum_.estimated} is an estimate" if sum_.estimated else ""
        origin = f"for {sum_.components} ({sum_.basis} intensity, {sum_.qualities}, {sum_.origin}{estimated})"
        yield Sentence("That emitted", units.mass(sum_.mass_g), f"{origin}.")
