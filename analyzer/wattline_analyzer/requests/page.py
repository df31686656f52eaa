"""Page of the energy of requests, as one self-contained HTML file."""

from __future__ import annotations

import base64
from collections.abc import Iterator

from wattline.figures import energy_of_one_text, energy_parts, energy_text
from wattline_analyzer.core import units
from wattline_analyzer.core.tables import Table
from wattline_analyzer.report.html.page import page_style, page_template
from wattline_analyzer.requests.output import (
    groups_table,
    most_table,
    percentiles_table,
    share_text,
)
from wattline_analyzer.requests.plot import requests_plot
from wattline_analyzer.requests.report import RequestEnergyReport

_ROWS = 25


def requests_page(report: RequestEnergyReport, rows_file: str, *, simulated: bool) -> str:
    """Return the page; `rows_file` is the name of the file with a row for each request."""
    spans = report.table.spans
    groups = groups_table(report)
    value, half, unit = energy_parts(report.median)
    return page_template("requests.html.j2").render(
        title=report.title,
        simulated=simulated,
        span=units.span(float(spans.arrived_s.min()), float(spans.ended_s.max())),
        median=(value, half, unit),
        facts=list(_facts(report)),
        plot=base64.b64encode(requests_plot(report)).decode(),
        description=f"Energy and generated tokens of {len(spans):,} requests, one point each.",
        tables=[
            Table("Groups", groups.columns, groups.rows),
            percentiles_table(report),
            most_table(report, _ROWS, report.table.label_names),
        ],
        warnings=report.warnings,
        notes=report.notes,
        rows_file=rows_file,
        style=page_style(),
    )


def _facts(report: RequestEnergyReport) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and note of each figure of the whole."""
    energies = report.energies
    spans = report.table.spans
    whole_j = energies.measured_j
    yield (
        "Requests",
        f"{len(spans):,}",
        f"{float(spans.generated_tokens.sum()):,.0f} generated tokens",
    )
    yield "Energy of the GPUs", energy_text(report.measured), ""
    yield "Energy of the requests", energy_text(report.assigned, whole_j), ""
    yield "Rest", energy_text(report.rest, whole_j, least_digits=False), "no request has it"
    names = "Prompt token", "Generated token", "1,000 tokens of context"
    for name, energy in zip(names, report.tokens_j, strict=True):
        if energy:
            yield name, energy_of_one_text(energy), "above idle"
    if report.idle_share is not None:
        yield "Idle energy", share_text(report.idle_share), "of the energy of the GPUs"
