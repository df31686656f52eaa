"""Output of `analyzer requests`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wattline.figures import JOULES_PER_KWH, Figure, energy_of_one_text, energy_text, number_text
from wattline_analyzer.core import units
from wattline_analyzer.core.documents import quantity
from wattline_analyzer.core.samples import FloatArray
from wattline_analyzer.core.tables import (
    Cell,
    Column,
    CommandOutput,
    Table,
    energy_cell,
    figure_columns,
    number_cell,
    text_cell,
    text_columns,
)
from wattline_analyzer.requests.report import RequestEnergyReport
from wattline_analyzer.requests.table import PERCENTILES, RequestGroup, interval_of

_CHUNK = 500_000
_LARGE_J = 1e6
"""Energy in a column of requests from which on it is in kWh: below, most requests would have many
zeros in Wh.
"""


def requests_output(report: RequestEnergyReport, top: int) -> CommandOutput:
    """Return the groups and the `top` requests with the most energy."""
    parts: list[str | Table] = [f"warning: {warning}" for warning in report.warnings]
    parts += [_headline(report), groups_table(report), percentiles_table(report)]
    if top:
        parts.append(most_table(report, top))
    parts += [f"note: {note}" for note in report.notes]
    records = [_group_record(report, group) for group in report.groups]
    return CommandOutput(parts, _document(report, records), records)


def request_columns(report: RequestEnergyReport) -> dict[str, Sequence[Any] | FloatArray]:
    """Return the columns with one value for each request, the one with the most energy first.

    An idle energy of an assumed idle power is not a number.
    """
    table = report.table
    energies = report.energies
    joules = report.joules
    spans = table.spans
    order = (-joules).argsort(kind="stable")
    return {
        "id": [table.ids[k] for k in order],
        "started_at": spans.arrived_s[order],
        "ended_at": spans.ended_s[order],
        "prompt_tokens": spans.prompt_tokens[order].astype(int),
        "cached_tokens": spans.cached_tokens[order].astype(int),
        "generated_tokens": spans.generated_tokens[order].astype(int),
        "energy_joules": joules[order],
        "energy_uncertainty_joules": energies.half_j[order],
        "idle_energy_joules": np.where(energies.idle_known, energies.divided.idle_j, np.nan)[order],
        **_phase_columns(report, order),
        **{f"label_{name}": list(table.label_values(name, order)) for name in table.label_names},
    }


def _phase_columns(
    report: RequestEnergyReport, order: npt.NDArray[np.intp]
) -> dict[str, FloatArray]:
    """Return the energies of prefill and decode, not a number for requests whose first token is not
    known.
    """
    energies = report.energies
    untimed = report.table.untimed
    if energies.prefill is None or energies.decode is None:
        return {}
    columns = {
        "prefill": energies.divided.prefill_j[order],
        "decode": energies.divided.decode_j[order],
    }
    if untimed is not None:
        for column in columns.values():
            column[untimed[order]] = np.nan
    return {f"{name}_energy_joules": column for name, column in columns.items()}


def _headline(report: RequestEnergyReport) -> str:
    spans = report.table.spans
    counts = (
        f"{spans.prompt_tokens.sum():,.0f} prompt tokens, "
        f"{spans.generated_tokens.sum():,.0f} generated tokens"
    )
    sums = report.measured, report.assigned, report.rest
    measured, assigned, rest = (
        energy_text(each, report.measured.value, least_digits=False) for each in sums
    )
    lines = [
        f"{report.title}: {len(spans):,} requests, {counts}",
        f"energy of the GPUs {measured}: requests {assigned}, rest {rest}",
    ]
    prompt, generated, context = report.tokens_j
    if prompt and generated:
        lines.append(
            f"above idle: {energy_of_one_text(prompt)} per prompt token, "
            f"{energy_of_one_text(generated)} per generated token"
            + (
                f", of which {energy_of_one_text(context)} per 1,000 tokens of context"
                if context
                else ""
            )
        )
    elif only := report.table.only_role:
        figure = prompt if only == "prefill" else generated
        token = "prompt" if only == "prefill" else "generated"
        if figure:
            lines.append(
                f"above idle: {energy_of_one_text(figure)} per {token} token of the {only} server"
            )
    else:
        lines.append("prefill and decode cannot be separated in this run: only their sum is stated")
    if report.idle_share is not None:
        lines.append(f"idle energy: {share_text(report.idle_share)} of the energy of the GPUs")
    return "\n".join(lines)


def share_text(share: Figure) -> str:
    """Return `26.7 ± 1.3 %`, `98.2 % (93.2 to 100 %)`, `at most 26.7 %` if only the upper limit is
    known, or `26.7 %` if its uncertainty is unknown.
    """
    percent = share.scaled(100)
    low = percent.low
    high = percent.high
    if low is None or high is None:
        return f"{percent.number:.1f} %"
    if low > 0 and high > 100:
        return f"{percent.number:.1f} % ({low:.1f} to 100 %)"
    if low <= 0 < percent.number:
        return f"at most {percent.number:.1f} %"
    return f"{number_text(percent)} %"


def groups_table(report: RequestEnergyReport) -> Table:
    titles = ["Requests", "Energy", "Per request", "Per prompt token", "Per generated token"]
    money = (report.price.currency or "Cost") if report.price else None
    titles += [money] if money else []
    titles += ["CO₂eq g"] if report.grams_per_kwh is not None else []
    columns = [*_group_columns(report), *figure_columns(*titles)]
    return Table("", columns, [_group_row(report, group) for group in report.groups])


def percentiles_table(report: RequestEnergyReport) -> Table:
    """Return percentiles of the energies of the requests of each group."""
    columns = [*_group_columns(report), *figure_columns(*(f"p{p:g}" for p in PERCENTILES))]
    largest_j = units.largest(
        interval_of(each) for group in report.groups for each in group.percentiles_j
    )
    rows = [
        [
            *_group_cells(group),
            *(_request_cell(interval_of(each), largest_j) for each in group.percentiles_j),
        ]
        for group in report.groups
    ]
    return Table("Energy of one request: percentiles", columns, rows)


def _group_columns(report: RequestEnergyReport) -> list[Column]:
    return text_columns(*(report.by or ["Group"]))


def _group_cells(group: RequestGroup) -> list[Cell]:
    return [text_cell(key or "(none)") for key in group.keys or ("all",)]


def _group_row(report: RequestEnergyReport, group: RequestGroup) -> list[Cell]:
    largest_j = max(each.energy_j for each in report.groups)
    largest_of_one_j = max(each.per_request.number for each in report.groups)
    energy = group.energy
    cells = [
        *_group_cells(group),
        _count_cell(group.requests),
        energy_cell(energy, largest_j),
        _request_cell(group.per_request, largest_of_one_j),
        _token_cell(group.per_prompt_token),
        _token_cell(group.per_generated_token),
    ]
    if report.price:
        cells.append(_plain_cell(report.price.of(energy)))
    if report.grams_per_kwh is not None:
        cells.append(_plain_cell(energy.scaled(report.grams_per_kwh / JOULES_PER_KWH)))
    return cells


def _request_cell(energy: Figure | None, largest_j: float) -> Cell:
    """Return the energy of one request, in joules unless the largest one of its column is large."""
    if energy is None:
        return Cell()
    text = energy_text(energy, largest_j if largest_j >= _LARGE_J else 0.0, least_digits=False)
    return Cell(text, energy.value, "J", energy.half_width)


def _token_cell(energy: Figure | None) -> Cell:
    if energy is None:
        return Cell()
    return Cell(energy_of_one_text(energy), energy.value, "J", energy.half_width)


def _plain_cell(amount: Figure) -> Cell:
    """Return an amount whose unit is in the title of the column."""
    return Cell(number_text(amount), amount.value, half=amount.half_width)


def _count_cell(count: float) -> Cell:
    return Cell(f"{count:,.0f}", count)


def most_table(report: RequestEnergyReport, top: int, labels: Sequence[str] = ()) -> Table:
    """Return the `top` requests with the most energy, with some of their labels."""
    joules = report.joules
    spans = report.table.spans
    order = _most(joules, top)
    largest_j = float(joules.max())
    values = [report.table.label_values(name, np.array(order, dtype=np.intp)) for name in labels]
    rows = [
        [
            text_cell(report.table.ids[k]),
            _request_cell(Figure(float(joules[k]), float(report.energies.half_j[k])), largest_j),
            *(text_cell(of_label[place]) for of_label in values),
            _count_cell(float(spans.prompt_tokens[k])),
            _count_cell(float(spans.generated_tokens[k])),
            number_cell(float(spans.ended_s[k] - spans.arrived_s[k])),
        ]
        for place, k in enumerate(order)
    ]
    names = text_columns("Request", *labels)
    columns = [
        names[0],
        *figure_columns("Energy"),
        *names[1:],
        *figure_columns("Prompt", "Generated", "Seconds"),
    ]
    return Table(f"Requests with the most energy, {len(rows)} of {len(spans)}", columns, rows)


def _most(joules: FloatArray, top: int) -> list[int]:
    """Return the positions of the `top` requests with the most energy, in chunks: a sort of all
    needs much memory.
    """
    found: list[int] = []
    for start in range(0, len(joules), _CHUNK):
        part = joules[start : start + _CHUNK]
        found += (start + (-part).argsort(kind="stable")[:top]).tolist()
        found = sorted(found, key=lambda k: -joules[k])[:top]
    return found


def _group_record(report: RequestEnergyReport, group: RequestGroup) -> dict[str, Any]:
    energy = group.energy
    cost = report.price.of(energy) if report.price else None
    emissions = (
        None
        if report.grams_per_kwh is None
        else energy.scaled(report.grams_per_kwh / JOULES_PER_KWH)
    )
    percentiles: dict[str, Any] = {}
    for p, each in zip(PERCENTILES, group.percentiles_j, strict=True):
        percentiles |= quantity(interval_of(each), f"request_p{p:g}", "joules")
    return {
        **dict(zip(report.by, group.keys, strict=True)),
        "requests": group.requests,
        "prompt_tokens": group.prompt_tokens,
        "generated_tokens": group.generated_tokens,
        **quantity(energy, "energy", "joules"),
        **quantity(group.per_request, "energy_per_request", "joules"),
        **quantity(group.per_prompt_token, "energy_per_prompt_token", "joules"),
        **quantity(group.per_generated_token, "energy_per_generated_token", "joules"),
        **percentiles,
        "cost": cost.value if cost else None,
        "cost_uncertainty": cost.half_width if cost else None,
        **quantity(emissions, "emissions", "grams"),
    }


def _document(report: RequestEnergyReport, groups: list[dict[str, Any]]) -> dict[str, Any]:
    energies = report.energies
    prompt, generated, context = report.tokens_j
    return {
        "version": 1,
        "run_id": report.run_id,
        "policy": "idle_shared" if report.idle_shared else "idle_apart",
        **quantity(report.measured, "measured_energy", "joules"),
        **quantity(report.assigned, "requests_energy", "joules"),
        **quantity(report.rest, "rest_energy", "joules"),
        **quantity(interval_of(energies.prefill), "prefill_energy", "joules"),
        **quantity(interval_of(energies.decode), "decode_energy", "joules"),
        **quantity(prompt, "energy_per_prompt_token", "joules"),
        **quantity(generated, "energy_per_generated_token", "joules"),
        **quantity(context, "energy_per_1000_context_tokens", "joules"),
        **quantity(report.idle_share, "idle_share", "ratio"),
        "currency": (report.price.currency or None) if report.price else None,
        "groups": groups,
        "warnings": list(report.warnings),
        "notes": [*report.warnings, *report.notes],
    }
