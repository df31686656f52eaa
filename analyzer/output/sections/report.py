"""Tables of a report, in the order in which they are shown."""

from __future__ import annotations

from analyzer.model.report import Report
from analyzer.output.sections import boundaries, carbon, devices, error_budget, results
from analyzer.output.table import Table


def report_tables(report: Report) -> list[Table]:
    """Return the tables that have rows."""
    tables = (
        devices.energy_table(report),
        devices.attribution_table(report),
        devices.power_table(report),
        devices.phase_table(report),
        carbon.emission_table(report),
        carbon.slot_table(report),
        results.result_table(report),
        error_budget.budget_table(report),
        error_budget.calibration_table(report),
        boundaries.boundary_table(report),
        boundaries.boundary_work_table(report),
        results.latency_table(report),
        carbon.restated_table(report),
        carbon.sci_table(report),
    )
    return [table for table in tables if table is not None and table.rows]
