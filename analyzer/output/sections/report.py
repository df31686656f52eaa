"""Tables of a report in their order, with those of the results that the job reported."""

from __future__ import annotations

import re
from collections.abc import Mapping

from analyzer.model.report import Report
from analyzer.output import units
from analyzer.output.sections import boundaries, carbon, devices, error_budget
from analyzer.output.table import Cell, Column, Table, number_cell, text_cell

_LATENCY = re.compile(r"(?P<name>\w+)_seconds_(?P<statistic>mean|min|max|std|p\d{1,2}(?:_\d+)?)")
_NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "end to end"}
_STATISTICS = ("mean", "std", "min", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p99_9", "max")
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
    tabled = {f"{name}_seconds_{one}" for name, statistics in latencies(results).items() for one in statistics}
    return {name: value for name, value in results.items() if name not in tabled}


def latency_table(report: Report) -> Table | None:
    by_latency = latencies(report.results)
    if not by_latency:
        return None
    known = {statistic for statistics in by_latency.values() for statistic in statistics}
    names = [name for name in _STATISTICS if name in known] + sorted(known - set(_STATISTICS))
    columns = [Column("Latency", text=True), *(Column(name.replace("_", ".")) for name in names)]
    rows = [
        [text_cell(_NAMES.get(name, name.replace("_", " "))), *(_milliseconds(statistics.get(one)) for one in names)]
        for name, statistics in by_latency.items()
    ]
    return Table("Latency, ms", columns, rows)


def _milliseconds(value_s: float | None) -> Cell:
    return Cell() if value_s is None else Cell(units.number(1_000 * value_s), value_s, "s")


def result_table(report: Report) -> Table:
    rows = [[text_cell(name), number_cell(value)] for name, value in other_results(report.results).items()]
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
