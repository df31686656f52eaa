"""Output of `analyzer tenants`."""

from __future__ import annotations

from typing import Any

from wattline_analyzer.compare.output import difference_text
from wattline_analyzer.core.tables import (
    Column,
    CommandOutput,
    Table,
    estimate_cell,
    estimate_record,
    text_cell,
)
from wattline_analyzer.tenants.summary import MpsEffect, TenantMix, TenantSummary


def tenant_output(summary: TenantSummary) -> CommandOutput:
    parts: list[str | Table] = []
    for mix in summary.mixes:
        under = "with MPS" if mix.mps else "without MPS"
        parts.append(
            f"{mix.case or 'tenants'}: {', '.join(mix.tenants)}, {under}; n = {mix.repeats}, "
            f"overlap {mix.overlap_s:.1f} s, at least {100 * mix.least_overlap_ratio:.0f} % of "
            "each phase measure"
        )
        rows = [[text_cell(name), estimate_cell(one)] for name, one in mix.figures.items()]
        parts.append(Table("", [Column("Figure", text=True), Column("Value, 95 % CI")], rows))
        if mix.evenness:
            even = mix.evenness
            roles = ", ".join(f"{name} {role}" for name, role in even.roles.items())
            parts.append(
                f"{even.of} of the tenants: {even.band} (CV {100 * even.cv:.1f} %, Gini "
                f"{even.gini:.3f}, "
                f"largest over smallest {even.most_over_least:.2f}); {roles}"
            )
    if summary.effects:
        columns = [Column(title, text=True) for title in ("Tenants", "Figure", "Effect of MPS")]
        effects = [
            [", ".join(one.tenants), one.figure, _effect_text(one)] for one in summary.effects
        ]
        parts.append(Table("", columns, [[text_cell(text) for text in row] for row in effects]))
    if summary.without_solo:
        parts.append(
            f"no STP, ANTT and slowdown: no solo run of {', '.join(summary.without_solo)}; name "
            "solo runs with --solo"
        )
    return CommandOutput(
        parts, _document(summary), [row for mix in summary.mixes for row in _rows(mix)]
    )


def _effect_text(one: MpsEffect) -> str:
    text = difference_text(one.difference, "is {} less", "is {} more")
    p = "" if one.difference.p is None else f", p = {one.difference.p:.3g}"
    return f"{text}; Cliff's delta {one.cliffs_delta:+.2f}{p}"


def _rows(mix: TenantMix) -> list[dict[str, Any]]:
    return [
        {
            "case": mix.case,
            "mps": mix.mps,
            "tenants": " ".join(mix.tenants),
            "repeats": mix.repeats,
            "overlap_seconds": mix.overlap_s,
            "figure": name,
            **estimate_record(one, "value"),
        }
        for name, one in mix.figures.items()
    ]


def _document(summary: TenantSummary) -> dict[str, Any]:
    return {
        "version": 1,
        "mixes": [
            {
                "case": mix.case,
                "mps": mix.mps,
                "tenants": list(mix.tenants),
                "unit": mix.unit,
                "repeats": mix.repeats,
                "overlap_seconds": mix.overlap_s,
                "least_overlap_ratio": mix.least_overlap_ratio,
                "figures": {
                    name: estimate_record(one, "value") for name, one in mix.figures.items()
                },
                "evenness": _evenness(mix),
            }
            for mix in summary.mixes
        ],
        "mps_against_none": [
            {
                "tenants": list(one.tenants),
                "figure": one.figure,
                "ratio": one.difference.ratio,
                "ratio_low": one.difference.low,
                "ratio_high": one.difference.high,
                "clear": one.difference.clear,
                "cliffs_delta": one.cliffs_delta,
                "p": one.difference.p,
            }
            for one in summary.effects
        ],
        "without_solo": list(summary.without_solo),
    }


def _evenness(mix: TenantMix) -> dict[str, Any] | None:
    even = mix.evenness
    if even is None:
        return None
    return {
        "of": even.of,
        "cv_ratio": even.cv,
        "band": even.band,
        "gini": even.gini,
        "most_over_least": even.most_over_least,
        "roles": dict(even.roles),
    }
