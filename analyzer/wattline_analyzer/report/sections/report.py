"""Tables and summary of a report, for the terminal and the HTML page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from wattline.contract.work import SHARE_POLICY, is_useful
from wattline.figures import (
    Figure,
    bias_text,
    bounded_energy_text,
    energy_ends_text,
    energy_text,
    mass_text,
    power_text,
    random_error_text,
    significant_text,
)
from wattline_analyzer.core import units
from wattline_analyzer.core.run_report import Level, Report, Work
from wattline_analyzer.core.tables import Cell, Column, Table, number_cell, text_cell
from wattline_analyzer.report.sections import boundaries, carbon, devices, error_budget

LEVELS: dict[Level, str] = {
    "bad": "Do not use the affected figures",
    "warning": "Read before you use the figures",
    "note": "For information",
}
"""Meaning of each level of a finding."""
_NO_EMISSIONS = "unknown without a carbon intensity; add one with --carbon G/KWH"
_LATENCY = re.compile(r"(?P<name>\w+)_seconds_(?P<statistic>mean|min|max|std|p\d{1,2}(?:_\d+)?)")
_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "end to end"}
_STATISTICS = (
    "mean",
    "std",
    "min",
    "p1",
    "p5",
    "p10",
    "p25",
    "p50",
    "p75",
    "p90",
    "p95",
    "p99",
    "p99_9",
    "max",
)
_MEANINGS = {
    "tokens_per_second": "tokens by wall-clock time",
    "tokens_per_second_busy": "tokens by the time within batches",
    "measured_seconds": "the time from the start to the last answer",
    "concurrency_mean": "the mean number of requests in flight",
    "tokens_per_chunk_mean": "the mean number of tokens in one event of an answer",
    "error_ratio": "the share of requests that failed",
    "goodput_ratio": "the share of requests that met the objectives",
    "goodput_requests_per_second": "requests that met the objectives, by wall-clock time",
    "requests_without_usage": "the number of answers without a token count",
    "requests_without_text": "the number of answers without text",
    "send_delay_seconds_p99": "the delay of the job itself before it sent a request",
    "law_joules_per_step": "the energy per step by the law of the simulated GPU",
    "loss": "the loss of the last step",
    "loss_first": "the loss of the first step after the warm-up",
    "score_seconds": "the time that the benchmark reported",
}
"""Meaning of results of the built-in jobs whose names do not state it."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence around its key figure."""

    before: str
    figure: str
    after: str


def latencies(results: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return seconds by latency and statistic; a latency with a single statistic is left out."""
    found: dict[str, dict[str, float]] = {}
    for result, value_s in results.items():
        if match := _LATENCY.fullmatch(result):
            found.setdefault(match["name"], {})[match["statistic"]] = value_s
    ordered = sorted(found, key=lambda name: [*_NAMES, name].index(name))
    return {name: found[name] for name in ordered if len(found[name]) > 1}


def other_results(results: Mapping[str, float]) -> dict[str, float]:
    """Return the results that are not in the table of latencies."""
    tabled = {
        f"{name}_seconds_{one}"
        for name, statistics in latencies(results).items()
        for one in statistics
    }
    return {name: value for name, value in results.items() if name not in tabled}


def latency_table(report: Report) -> Table | None:
    by_latency = latencies(report.results)
    if not by_latency:
        return None
    known = {statistic for statistics in by_latency.values() for statistic in statistics}
    names = [name for name in _STATISTICS if name in known] + sorted(known - set(_STATISTICS))
    columns = [Column("Latency", text=True), *(Column(name.replace("_", ".")) for name in names)]
    rows = [
        [
            text_cell(_NAMES.get(name, name.replace("_", " "))),
            *(_milliseconds(statistics.get(one)) for one in names),
        ]
        for name, statistics in by_latency.items()
    ]
    return Table("Latency, ms", columns, rows)


def _milliseconds(value_s: float | None) -> Cell:
    return Cell() if value_s is None else Cell(significant_text(1_000 * value_s), value_s, "s")


def result_table(report: Report) -> Table:
    rows = [
        [text_cell(name), number_cell(value)]
        for name, value in other_results(report.results).items()
    ]
    columns = [Column("Result", text=True), Column("Value")]
    return Table("Results reported by the job", columns, rows, notes=_result_notes(report.results))


def _result_notes(results: Mapping[str, float]) -> list[str]:
    """Return the meaning of names of which the built-in jobs report results."""
    known = [f"{name} is {_MEANINGS[name]}" for name in results if name in _MEANINGS]
    notes = ["The job reported these values; the unit is part of the name."]
    return [*notes, f"In the built-in jobs, {', '.join(known)}."] if known else notes


def report_tables(report: Report) -> list[Table]:
    """Return the tables that have rows."""
    tables = (
        devices.energy_table(report),
        devices.attribution_table(report),
        devices.power_table(report),
        devices.phase_table(report),
        carbon.emission_table(report),
        carbon.slot_table(report),
        result_table(report),
        error_budget.budget_table(report),
        error_budget.calibration_table(report),
        boundaries.boundary_table(report),
        boundaries.boundary_work_table(report),
        latency_table(report),
        carbon.restated_table(report),
        carbon.sci_table(report),
    )
    return [table for table in tables if table is not None and table.rows]


def report_summary_lines(report: Report) -> Iterator[tuple[str, str]]:
    """Yield name and text of each line; intervals are 95 % CIs."""
    yield "duration", units.duration(report.duration_s)
    yield from _energy_lines(report)
    for work in report.work:
        if not work.amount and not is_useful(work.unit):
            continue
        pace = f", {units.rate(work.per_second, work.unit)}" if work.per_second is not None else ""
        where = _phase_text(work.phases) if work.phases else " over the whole run"
        yield "work", f"{units.amount(work.amount, work.unit)}{pace}{where}"
        if work.energy_per_unit:
            each = units.marked(
                units.energy_per_unit(work.energy_per_unit, work.unit),
                report.energies.headline_estimated,
            )
            over = where if work.energy_phases or not work.phases else " over the whole run"
            yield "", f"{each}{over}{_share_text(work)}"
            if work.whole_devices:
                whole = units.energy_per_unit(work.whole_devices, work.unit)
                yield "", f"{whole} for {_whole_devices(report)}, with the other users' part"
    if sum(work.energy_per_unit is not None for work in report.work) > 1:
        yield "", "each unit is divided into the same energy, so that these figures do not add up"
    for sum_ in report.emission_totals:
        origin = f"{sum_.components}; {sum_.intensity}"
        origin += f"; {sum_.estimated} is an estimate" if sum_.estimated else ""
        yield "emissions", f"{mass_text(sum_.mass_g)} ({origin})"
    if _lacks_intensity(report):
        yield "emissions", _NO_EMISSIONS


def _energy_lines(report: Report) -> Iterator[tuple[str, str]]:
    energies = report.energies
    shared = {device.component for device in report.devices if device.shared}
    for component, quantity in report.energy.items():
        note = (
            " (whole node: other runs overlapped)"
            if component in shared and component != "gpu"
            else ""
        )
        yield f"energy, {component.upper()}", f"{_marked(report, component, quantity)}{note}"
        if quantity.bias:
            yield from _error_lines(quantity)
        for policy, joules in energies.shares.get(component, {}).items():
            yield "  attributed", f"{_marked(report, component, Figure(joules))} by {policy}"
    if energies.whole:
        names = " + ".join(
            component.upper() for component in report.energy if component in report.estimated
        )
        yield (
            "energy, total",
            energy_text(energies.whole) + (f", of which {names} is an estimate" if names else ""),
        )
    if energies.net:
        yield "net of idle, GPU", energy_text(energies.net, least_digits=False)
    if energies.from_raw_samples:
        of = (
            "limits for samples as old as their exporter allows"
            if report.untagged
            else "cross-check; the limits are wider the farther apart the samples are"
        )
        yield "from raw samples", f"{bounded_energy_text(energies.from_raw_samples)}, {of}"
    if energies.integral_j is not None:
        integral = energy_text(Figure(energies.integral_j))
        yield "integral of power", f"{integral} (cross-check, less accurate for short runs)"
    if report.mean_power_w:
        power = units.marked(power_text(report.mean_power_w), energies.headline_estimated)
        yield (
            "mean power",
            f"{power}{' over the time that the samples cover' if report.covers_part else ''}",
        )


def _error_lines(energy: Figure) -> Iterator[tuple[str, str]]:
    """Yield the parts of the uncertainty of an energy that is rounded to both together."""
    if energy.half_width is not None:
        yield "  random", f"{random_error_text(energy)}, 95 % CI"
    yield "  sensor accuracy", f"{bias_text(energy)}; the same in every run on a GPU"


def _lacks_intensity(report: Report) -> bool:
    """Return True if there are no emissions, and no finding explains it."""
    explained = any(finding.code == "carbon_missing" for finding in report.findings)
    return bool(report.energy) and not report.emissions and not explained


def _share_text(work: Work) -> str:
    """Return the origin of the energy per unit on a shared device; empty otherwise."""
    return f"; energy attributed to the run by {SHARE_POLICY}" if work.whole_devices else ""


def _phase_text(phases: Sequence[str]) -> str:
    return f" during the phase{'s' if len(phases) > 1 else ''} {' and '.join(phases)}"


def _marked(report: Report, component: str, quantity: Figure) -> str:
    return units.marked(energy_text(quantity), component in report.estimated)


def summary_sentences(report: Report) -> list[Sentence]:
    """Return energy, energy per unit of work and emissions, each with its 95 % CI or the reason why
    it has none.
    """
    return [
        *_energy_sentence(report),
        *(
            _work_sentence(report, work, work.energy_per_unit)
            for work in report.work
            if work.energy_per_unit
        ),
        *_emission_sentences(report),
    ]


def measured_devices(report: Report) -> str:
    """Return `8 SIMULATED GPUs`, or the component that was measured instead."""
    if not report.gpus:
        return "CPUs" if "cpu" in report.energy else "memory"
    count = len(report.gpus)
    return f"{count} {'SIMULATED ' if report.simulated else ''}GPU{'s' if count > 1 else ''}"


def _whole_devices(report: Report) -> str:
    return (
        "the whole node"
        if not report.gpus
        else f"the whole GPU{'s' if len(report.gpus) > 1 else ''}"
    )


def count_findings(report: Report) -> str:
    """Return `1 warning and 2 notes`."""
    counts = Counter(finding.level for finding in report.findings)
    parts = []
    for level in LEVELS:
        if counts[level]:
            plural = "s" if counts[level] > 1 and level != "bad" else ""
            parts.append(f"{counts[level]} {level}{plural}")
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def _energy_sentence(report: Report) -> Iterator[Sentence]:
    energy = report.headline
    if energy:
        figure = units.marked(energy_text(energy), report.energies.headline_estimated)
        interval = _interval(energy, report.energies.headline_estimated)
        used = "The run used" if report.ended_at_s is not None else "The run has used so far"
        yield Sentence(
            used,
            figure,
            f"on {measured_devices(report)} in {units.duration(report.duration_s)}{interval}.",
        )


def _interval(energy: Figure, estimated: bool) -> str:
    if estimated:
        return "; this is an estimate from utilization, not a measurement"
    if energy.bias:
        random = (
            f"random error {random_error_text(energy)}, 95 % CI; "
            if energy.half_width is not None
            else ""
        )
        return f" ({random}sensor accuracy {bias_text(energy)})"
    ends = energy_ends_text(energy)
    return f" (95 % CI: {ends})" if ends else "; its uncertainty is unknown"


def _work_sentence(report: Report, work: Work, energy: Figure) -> Sentence:
    figure = units.marked(
        units.energy_per_unit(energy, work.unit), report.energies.headline_estimated
    )
    rate = f", at {units.rate(work.per_second, work.unit)}" if work.per_second is not None else ""
    both = "both" if rate and work.energy_phases else ""
    where = f", {both}{_phase_text(work.phases)}".replace(",  ", ", ") if work.phases else ""
    if work.whole_devices:
        whole = units.energy_per_unit(work.whole_devices, work.unit)
        share = f"{_share_text(work)} over the whole run; {whole} for {_whole_devices(report)}"
        return Sentence(
            f"{units.amount(work.amount, work.unit)} took", figure, f"{rate}{where}{share}."
        )
    uncertainty = "" if energy.half_width else "; its uncertainty is unknown"
    return Sentence(
        f"{units.amount(work.amount, work.unit)} took", figure, f"{rate}{where}{uncertainty}."
    )


def _emission_sentences(report: Report) -> Iterator[Sentence]:
    for sum_ in report.emission_totals:
        estimated = f"; {sum_.estimated} is an estimate" if sum_.estimated else ""
        origin = f"for {sum_.components} ({sum_.intensity}{estimated})"
        yield Sentence("The emissions are", mass_text(sum_.mass_g), f"{origin}.")
