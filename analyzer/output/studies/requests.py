"""Output of `analyzer requests`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from analyzer.model.interval import Interval
from analyzer.model.report import Price
from analyzer.model.samples import FloatArray
from analyzer.output import units
from analyzer.output.documents import quantity
from analyzer.output.table import (
    Cell,
    Column,
    CommandOutput,
    Table,
    energy_cell,
    figure_columns,
    joules_cell,
    money_cell,
    number_cell,
    text_cell,
    text_columns,
)
from analyzer.studies.requests.table import PERCENTILES, RequestGroup, RequestTable, energies_j
from exporter.request_energy.divide import EnergyPart, RequestEnergies

_KWH_J = 3.6e6
_CHUNK = 500_000


@dataclass(frozen=True, slots=True)
class RequestReport:
    """Requests with their energies, and the options of the command; `run_id` is None for a time range."""

    run_id: str | None
    table: RequestTable
    energies: RequestEnergies
    groups: Sequence[RequestGroup]
    by: Sequence[str]
    idle_shared: bool
    notes: Sequence[str]
    price: Price | None = None
    grams_per_kwh: float | None = None

    @property
    def title(self) -> str:
        return f"run {self.run_id}" if self.run_id else "time range"

    @property
    def tokens_j(self) -> tuple[Interval | None, Interval | None, Interval | None]:
        """Energy above idle of a prompt token, a generated token and 1,000 tokens of context."""
        energies, spans = self.energies, self.table.spans
        context = _interval(energies.context_token)
        return (
            _each(energies.prefill, float(spans.prefilled_tokens.sum())),
            _each(energies.decode, float(spans.generated_tokens.sum())),
            context.scaled(1_000) if context else None,
        )

    @property
    def idle_share(self) -> Interval | None:
        """Part of the measured energy that is idle energy."""
        energies = self.energies
        whole_j = energies.measured_j
        return Interval(energies.idle_j, energies.idle_half_j).scaled(1 / whole_j) if whole_j else None

    @property
    def joules(self) -> FloatArray:
        return energies_j(self.energies, slice(None), idle_shared=self.idle_shared)

    @property
    def rest_j(self) -> float:
        """Energy that no request has; with `idle_shared` off, all idle energy is in it."""
        apart_j = 0.0 if self.idle_shared else float(self.energies.divided.idle_j.sum())
        return self.energies.unassigned_j + apart_j


def requests_output(report: RequestReport, top: int) -> CommandOutput:
    """Return the groups and the `top` requests with the most energy."""
    parts: list[str | Table] = [_headline(report), groups_table(report)]
    if top:
        parts.append(most_table(report, top))
    parts += [f"note: {note}" for note in report.notes]
    records = [_group_record(report, group) for group in report.groups]
    return CommandOutput(parts, _document(report, records), records)


def request_columns(report: RequestReport) -> dict[str, Sequence[Any] | FloatArray]:
    """Return the columns with one value for each request, the one with the most energy first."""
    table, energies, joules = report.table, report.energies, report.joules
    spans, order = table.spans, (-joules).argsort(kind="stable")
    return {
        "id": [table.ids[k] for k in order],
        "started_at": spans.arrived_s[order],
        "ended_at": spans.ended_s[order],
        "prompt_tokens": spans.prompt_tokens[order].astype(int),
        "cached_tokens": spans.cached_tokens[order].astype(int),
        "generated_tokens": spans.generated_tokens[order].astype(int),
        "energy_joules": joules[order],
        "energy_uncertainty_joules": energies.half_j[order],
        "idle_energy_joules": energies.divided.idle_j[order],
        **_phase_columns(report, order),
        **{f"label_{name}": list(table.label_values(name, order)) for name in table.label_names},
    }


def _phase_columns(report: RequestReport, order: npt.NDArray[np.intp]) -> dict[str, FloatArray]:
    """Return the energies of prefill and decode, not a number for requests whose first token is not known."""
    energies, untimed = report.energies, report.table.untimed
    if energies.prefill is None or energies.decode is None:
        return {}
    columns = {"prefill": energies.divided.prefill_j[order], "decode": energies.divided.decode_j[order]}
    if untimed is not None:
        for column in columns.values():
            column[untimed[order]] = np.nan
    return {f"{name}_energy_joules": column for name, column in columns.items()}


def _headline(report: RequestReport) -> str:
    energies, spans = report.energies, report.table.spans
    counts = f"{spans.prompt_tokens.sum():,.0f} prompt tokens, {spans.generated_tokens.sum():,.0f} generated tokens"
    whole_j = energies.measured_j
    assigned, rest = (units.plain_energy(joules, whole_j) for joules in (float(report.joules.sum()), report.rest_j))
    parts = f"requests {assigned}, rest {rest}"
    lines = [
        f"{report.title}: {len(spans):,} requests, {counts}",
        f"energy of the GPUs {units.plain_energy(whole_j)}: {parts}",
    ]
    prompt, generated, context = report.tokens_j
    if prompt and generated:
        lines.append(
            f"above idle: {units.energy_of_one(prompt)} per prompt token, "
            f"{units.energy_of_one(generated)} per generated token"
            + (f", of which {units.energy_of_one(context)} per 1,000 tokens of context" if context else "")
        )
    elif only := report.table.only_role:
        figure = prompt if only == "prefill" else generated
        token = "prompt" if only == "prefill" else "generated"
        if figure:
            lines.append(f"above idle: {units.energy_of_one(figure)} per {token} token of the {only} server")
    else:
        lines.append("prefill and decode cannot be separated in this run: only their sum is stated")
    if report.idle_share is not None:
        lines.append(f"idle energy: {share_text(report.idle_share)} of the energy of the GPUs")
    return "\n".join(lines)


def share_text(share: Interval) -> str:
    """Return `26.7 ± 1.3 %`, or `at most 26.7 %` for one of which only the upper limit is known."""
    percent, half = 100 * share.value, 100 * (share.half or 0.0)
    return f"at most {percent:.1f} %" if half >= percent > 0 else f"{percent:.1f} ± {half:.1f} %"


def _each(energy: EnergyPart | None, tokens: float) -> Interval | None:
    return Interval(energy.joules, energy.half_j).scaled(1 / tokens) if energy and tokens else None


def _interval(energy: EnergyPart | None) -> Interval | None:
    return Interval(energy.joules, energy.half_j) if energy else None


def groups_table(report: RequestReport) -> Table:
    titles = [
        "Requests",
        "Energy",
        "Per request",
        "Per prompt token",
        "Per generated token",
        *(f"p{p:g}" for p in PERCENTILES),
    ]
    money = (report.price.currency or "Cost") if report.price else None
    titles += [money] if money else []
    titles += ["CO₂eq g"] if report.grams_per_kwh is not None else []
    columns = [*(Column(name, text=True) for name in report.by or ["Group"]), *figure_columns(*titles)]
    return Table("", columns, [_group_row(report, group) for group in report.groups])


def _group_row(report: RequestReport, group: RequestGroup) -> list[Cell]:
    largest_j = max(each.energy_j for each in report.groups)
    cells = [
        *(text_cell(key or "(none)") for key in group.keys or ("all",)),
        _count_cell(group.requests),
        energy_cell(Interval(group.energy_j, group.half_j), largest_j),
        energy_cell(Interval(*group.per_request_j), group.per_request_j[0]),
        _token_cell(group.per_prompt_token),
        _token_cell(group.per_generated_token),
        *(joules_cell(joules) for joules in group.percentiles_j),
    ]
    if report.price:
        cells.append(money_cell(report.price.of(Interval(group.energy_j, group.half_j))))
    if report.grams_per_kwh is not None:
        cells.append(number_cell(report.grams_per_kwh * group.energy_j / _KWH_J))
    return cells


def _token_cell(energy: EnergyPart | None) -> Cell:
    figure = _interval(energy)
    return Cell(units.energy_of_one(figure), figure.value, "J", figure.half) if figure else Cell()


def _count_cell(count: float) -> Cell:
    return Cell(f"{count:,.0f}", count)


def most_table(report: RequestReport, top: int, labels: Sequence[str] = ()) -> Table:
    """Return the `top` requests with the most energy, with some of their labels."""
    joules, spans = report.joules, report.table.spans
    order = _most(joules, top)
    largest_j = float(joules.max())
    values = [report.table.label_values(name, np.array(order, dtype=np.intp)) for name in labels]
    rows = [
        [
            text_cell(report.table.ids[k]),
            *(text_cell(of_label[place]) for of_label in values),
            _count_cell(float(spans.prompt_tokens[k])),
            _count_cell(float(spans.generated_tokens[k])),
            number_cell(float(spans.ended_s[k] - spans.arrived_s[k])),
            energy_cell(Interval(float(joules[k]), float(report.energies.half_j[k])), largest_j),
        ]
        for place, k in enumerate(order)
    ]
    columns = [*text_columns("Request", *labels), *figure_columns("Prompt", "Generated", "Seconds", "Energy")]
    return Table(f"Requests with the most energy, {len(rows)} of {len(spans)}", columns, rows)


def _most(joules: FloatArray, top: int) -> list[int]:
    """Return the positions of the `top` requests with the most energy, in chunks: a sort of all needs much memory."""
    found: list[int] = []
    for start in range(0, len(joules), _CHUNK):
        part = joules[start : start + _CHUNK]
        found += (start + (-part).argsort(kind="stable")[:top]).tolist()
        found = sorted(found, key=lambda k: -joules[k])[:top]
    return found


def _group_record(report: RequestReport, group: RequestGroup) -> dict[str, Any]:
    kwh = group.energy_j / _KWH_J
    return {
        **dict(zip(report.by, group.keys, strict=True)),
        "requests": group.requests,
        "prompt_tokens": group.prompt_tokens,
        "generated_tokens": group.generated_tokens,
        "energy_joules": group.energy_j,
        "energy_uncertainty_joules": group.half_j,
        "energy_per_request_joules": group.per_request_j[0],
        "energy_per_request_uncertainty_joules": group.per_request_j[1],
        **quantity(_interval(group.per_prompt_token), "energy_per_prompt_token", "joules"),
        **quantity(_interval(group.per_generated_token), "energy_per_generated_token", "joules"),
        **{f"request_p{p:g}_joules": value for p, value in zip(PERCENTILES, group.percentiles_j, strict=True)},
        "cost": report.price.per_kwh * kwh if report.price else None,
        "emissions_grams": None if report.grams_per_kwh is None else report.grams_per_kwh * kwh,
    }


def _document(report: RequestReport, groups: list[dict[str, Any]]) -> dict[str, Any]:
    energies = report.energies
    prompt, generated, context = report.tokens_j
    return {
        "version": 1,
        "run_id": report.run_id,
        "policy": "idle_shared" if report.idle_shared else "idle_apart",
        "measured_energy_joules": energies.measured_j,
        "requests_energy_joules": float(report.joules.sum()),
        "rest_energy_joules": report.rest_j,
        **quantity(_interval(energies.prefill), "prefill_energy", "joules"),
        **quantity(_interval(energies.decode), "decode_energy", "joules"),
        **quantity(prompt, "energy_per_prompt_token", "joules"),
        **quantity(generated, "energy_per_generated_token", "joules"),
        **quantity(context, "energy_per_1000_context_tokens", "joules"),
        **quantity(report.idle_share, "idle_share", "ratio"),
        "currency": (report.price.currency or None) if report.price else None,
        "groups": groups,
        "notes": list(report.notes),
    }
