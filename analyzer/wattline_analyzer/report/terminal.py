"""Report of a run for the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from wattline.command_line import escaped_line
from wattline_analyzer.core import units
from wattline_analyzer.core.run_report import Report
from wattline_analyzer.core.terminal import WithoutTrailingSpaces, titled_table
from wattline_analyzer.report.sections.report import report_summary_lines, report_tables

_STYLES = {"bad": "bold red", "warning": "yellow", "note": "dim"}


def terminal_report(report: Report) -> RenderableType:
    """Return a report for the terminal: summary, tables and findings."""
    parts = [
        _heading(report),
        _summary(report),
        *map(titled_table, report_tables(report)),
        _findings(report),
    ]
    return WithoutTrailingSpaces(
        Group(*(Padding(part, (0, 0, 1, 0), expand=False) for part in parts))
    )


def _heading(report: Report) -> RenderableType:
    state = report.outcome or ("running" if report.ended_at_s is None else "ended")
    workload = escaped_line(report.workload)
    title = Text.assemble(("Run ", "dim"), (report.run_id, "bold"), f"  {workload}  {state}")
    if report.simulated:
        title.append("  SIMULATED", "bold yellow")
    lines = [title, Text(units.span(report.started_at_s, report.ended_at_s), "dim")]
    if report.labels:
        labels = "  ".join(f"{name}={text}" for name, text in sorted(report.labels.items()))
        lines.append(Text(escaped_line(labels), "dim"))
    lines.append(Text(f"source: {report.source}", "dim"))
    return Group(*lines)


def _summary(report: Report) -> RichTable:
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, text in report_summary_lines(report):
        grid.add_row(
            name, Text(escaped_line(text), "bold" if name.startswith("energy, GPU") else "")
        )
    return grid


def _findings(report: Report) -> RenderableType:
    if not report.findings:
        return Text("no findings: all checks passed", "dim")
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for finding in report.findings:
        subject = f"{finding.subject}: " if finding.subject else ""
        grid.add_row(
            Text(finding.level, _STYLES[finding.level]),
            Text(escaped_line(f"{subject}{finding.text}")),
        )
    return grid
