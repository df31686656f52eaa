"""A report and a list of runs on a terminal; plain text where stdout is none.

A report then has at most 100 columns. The list is as wide as its ids and labels: what reads it must not miss a part.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from analyzer.energy.attribution import POLICIES
from analyzer.model.catalog import ListedRun
from analyzer.model.interval import Interval
from analyzer.model.report import Report
from analyzer.output import units
from analyzer.output.sections import latencies
from analyzer.output.sections.base import Section, sections
from analyzer.output.terminal import Sheet

PLAIN_COLUMNS = 100
UNLIMITED_COLUMNS = 100_000
_STYLES = {"bad": "bold red", "warning": "yellow", "note": "dim"}


def console(file: TextIO | None = None, plain_columns: int = PLAIN_COLUMNS) -> Console:
    file = file or sys.stdout
    if file.isatty():
        return Console(file=file, highlight=False)
    return Console(file=file, highlight=False, width=plain_columns, force_terminal=False, no_color=True)


def report_table(report: Report) -> RenderableType:
    parts = [_heading(report), _summary(report), _energies(report), _powers(report)]
    if any(device.divided for device in report.devices):
        parts.append(_shares(report))
    if report.phases:
        parts.append(_phases(report))
    parts += [_section(part) for part in sections(report)]
    parts.append(_findings(report))
    return Group(*(Padding(part, (0, 0, 1, 0)) for part in parts))


def _heading(report: Report) -> RenderableType:
    state = report.outcome or ("running" if report.ended_at_s is None else "ended")
    title = Text.assemble(("Run ", "dim"), (report.run_id, "bold"), f"  {report.workload}  {state}")
    if report.simulated:
        title.append("  SIMULATED", "bold yellow")
    lines = [title, Text(units.span(report.started_at_s, report.ended_at_s), "dim")]
    if report.labels:
        lines.append(Text("  ".join(f"{name}={text}" for name, text in sorted(report.labels.items())), "dim"))
    lines.append(Text(f"from {report.source}", "dim"))
    return Group(*lines)


def _summary(report: Report) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, text in summary(report):
        table.add_row(name, Text(text, "bold" if name.startswith("energy, GPU") else ""))
    return table


def summary(report: Report) -> Iterator[tuple[str, str]]:
    """The run in lines of name and text; intervals hold the truth with 95 %."""
    yield "duration", units.duration(report.duration_s)
    yield from _energy_lines(report)
    for work in report.work:
        pace = f", {units.rate(work.per_second, work.unit)}" if work.per_second is not None else ""
        where = f" while in {' and '.join(work.phases)}" if work.phases else " over the whole run" if pace else ""
        yield "work", f"{units.amount(work.amount, work.unit)}{pace}{where}"
        if work.energy_per_unit:
            each = units.marked(units.energy_per_unit(work.energy_per_unit, work.unit), report.headline_estimated)
            yield "", f"{each}{where}"
    yield from _emission_lines(report)
    for name, value in latencies.others(report.results).items():
        yield f"job's own, {name}", units.number(value)


def _energy_lines(report: Report) -> Iterator[tuple[str, str]]:
    shared = {device.component for device in report.devices if device.shared}
    for component, quantity in report.energy.items():
        note = " (whole node: other runs overlapped)" if component in shared and component != "gpu" else ""
        yield f"energy, {component.upper()}", f"{_marked(report, component, quantity)}{note}"
        for policy, joules in report.shares.get(component, {}).items():
            yield "  the run's share", f"{_marked(report, component, Interval(joules))} by {policy}"
    if report.whole:
        names = " + ".join(component.upper() for component in report.energy if component in report.estimated)
        yield "energy, together", f"{units.energy(report.whole)}{f', of which {names} is an estimate' if names else ''}"
    if report.net:
        yield "net of idle, GPU", units.energy(report.net)
    if report.own:
        of = "values as old as their exporter leaves them" if report.untagged else "counters updated every 0.1 s"
        yield "from raw samples", f"{units.energy_bound(report.own)}, a bound for {of}"
    if report.integral_j is not None:
        yield "integral of power", units.energy(Interval(report.integral_j))
    if report.mean_power_w:
        yield "mean power", units.marked(units.power(report.mean_power_w), report.headline_estimated)


def _marked(report: Report, component: str, quantity: Interval, of: float | None = None) -> str:
    return units.marked(units.energy(quantity, of), component in report.estimated)


def _emission_lines(report: Report) -> Iterator[tuple[str, str]]:
    for sum_ in report.emission_totals:
        origin = f"{sum_.components}; {sum_.basis}, {sum_.qualities}, {sum_.origin}"
        origin += f"; {sum_.estimated} is an estimate" if sum_.estimated else ""
        yield "emissions", f"{units.mass(sum_.mass_g)} ({origin})"
        for part in sum_.parts if len(sum_.parts) > 1 else ():
            mass = units.marked(units.mass(part.mass_g), part.estimated)
            yield "", f"{part.component.upper()}, {part.quality}: {mass}"
    for slot in report.carbon_slots if len(report.carbon_slots) > 1 else ():
        yield "", f"from {units.moment(slot.start_s)}: {slot.grams_per_kwh:.0f} g/kWh ({slot.basis}, {slot.quality})"


def _energies(report: Report) -> Sheet:
    of = units.largest(value for device in report.devices for value in (device.energy, device.own, device.integral_j))
    rows = [
        (
            device.label,
            units.marked(units.energy(device.energy, of), device.estimated),
            units.energy_bound(device.own, of) if device.own else "–",
            units.plain_energy(device.integral_j, of) if device.integral_j is not None else "–",
            units.percent(device.covered_ratio) if device.covered_ratio is not None else "–",
            ", ".join(device.methods) or "–",
        )
        for device in report.devices
    ]
    columns = ("device", "energy (95 %)", "from raw samples (bound)", "integral", "covered", "by")
    return Sheet(columns, rows, left=(0, 5))


def _shares(report: Report) -> RenderableType:
    of = units.largest(device.energy for device in report.devices if device.divided)
    rows = []
    for device in report.devices:
        if device.divided:
            known = (device.energy.value, *(device.attributed_j.get(policy) for policy in POLICIES))
            texts = ("–" if joules is None else units.plain_energy(joules, of) for joules in known)
            rows.append((device.label, *(units.marked(text, device.estimated and text != "–") for text in texts)))
    sheet = Sheet(("the run's share of", "whole device", *POLICIES), rows)
    return Group(sheet, *(Text(f"{policy}: {meaning}", "dim") for policy, meaning in POLICIES.items()))


def _powers(report: Report) -> Sheet:
    of = units.largest(device.net for device in report.devices)
    rows = [
        (
            device.label,
            units.marked(units.power(device.mean_power_w), device.estimated) if device.mean_power_w else "–",
            *(
                units.power(Interval(value)) if value is not None else "–"
                for value in (
                    device.max_power_w,
                    device.power_limit_w,
                    device.idle_power_w.value if device.idle_power_w else None,
                )
            ),
            units.energy(device.net, of) if device.net else "–",
            device.name,
        )
        for device in report.devices
    ]
    return Sheet(("device", "mean power", "peak", "limit", "idle", "net of idle", "name"), rows, left=(0, 6))


def _phases(report: Report) -> Sheet:
    of = {name: units.largest(phase.energy.get(name) for phase in report.phases) for name in report.energy}
    rows = []
    for phase in report.phases:
        known = {name: _marked(report, name, energy, of.get(name)) for name, energy in phase.energy.items()}
        energies = (known.get(component, "–") for component in report.energy)
        rows.append((phase.name, units.duration(phase.duration_s), *energies))
    return Sheet(("phase", "duration", *(f"energy, {component.upper()}" for component in report.energy)), rows)


def _section(section: Section) -> RenderableType:
    sheet = Sheet(section.columns, section.rows, left=range(section.words))
    return Group(Text(section.title, "bold"), sheet, *([Text(section.note, "dim")] if section.note else []))


def _findings(report: Report) -> RenderableType:
    if not report.findings:
        return Text("no findings: nothing speaks against these figures", "dim")
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for finding in report.findings:
        subject = f"{finding.subject}: " if finding.subject else ""
        table.add_row(Text(finding.level, _STYLES[finding.level]), Text(f"{subject}{finding.text}"))
    return table


def runs_table(runs: Sequence[ListedRun]) -> Sheet:
    """A run's id is there to be copied."""
    of = units.largest(run.gpu_energy for run in runs)
    rows = [
        (
            run.run_id,
            run.workload,
            run.state,
            units.moment(run.started_at_s)[:19],
            units.duration(run.duration_s),
            units.energy(run.gpu_energy, of) if run.gpu_energy else "–",
            " ".join(f"{name}={text}" for name, text in sorted(run.labels.items())),
        )
        for run in runs
    ]
    columns = ("run", "workload", "state", "started (local)", "duration", "GPU energy", "labels")
    return Sheet(columns, rows, left=(0, 1, 2, 3, 6), whole=(0, 4))
