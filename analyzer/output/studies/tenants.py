"""Tenants side by side, as `analyzer tenants` shows them."""

from __future__ import annotations

from typing import Any

from analyzer.output.view import Table, View, estimate, with_interval
from analyzer.studies.contrast import words
from analyzer.studies.tenant_summary import Contrast, Mix, Summary


def view(found: Summary) -> View:
    parts: list[str | Table] = []
    for mix in found.mixes:
        under = "with MPS" if mix.mps else "without MPS"
        parts.append(
            f"{mix.case or 'tenants'}: {', '.join(mix.tenants)}, {under}; n = {mix.repeats}, "
            f"overlap {mix.overlap_s:.1f} s, at least {100 * mix.least_overlap_ratio:.0f} % of what each measured"
        )
        parts.append(Table(["", "value (95 %)"], [[name, with_interval(one)] for name, one in mix.figures.items()]))
        if mix.evenness:
            even = mix.evenness
            roles = ", ".join(f"{name} {role}" for name, role in even.roles.items())
            parts.append(
                f"{even.of} of the tenants: {even.band} (CV {100 * even.cv:.1f} %, Gini {even.gini:.3f}, "
                f"most over least {even.most_over_least:.2f}); {roles}"
            )
    if found.contrasts:
        rows = [[", ".join(one.tenants), one.figure, _words(one)] for one in found.contrasts]
        parts.append(Table(["tenants", "", "with MPS against without"], rows))
    if found.without_solo:
        parts.append(
            f"no run of {', '.join(found.without_solo)} alone: no STP, ANTT, slowdown or baseline of them; "
            "name runs alone with --solo"
        )
    return View(parts, _document(found), [row for mix in found.mixes for row in _rows(mix)])


def _words(one: Contrast) -> str:
    text = words(one.difference, "is {} less", "is {} more")
    return f"{text}; Cliff's delta {one.superiority:+.2f}, p = {one.p:.3g}"


def _rows(mix: Mix) -> list[dict[str, Any]]:
    return [
        {
            "case": mix.case,
            "mps": mix.mps,
            "tenants": " ".join(mix.tenants),
            "repeats": mix.repeats,
            "overlap_seconds": mix.overlap_s,
            "figure": name,
            **estimate(one, "value"),
        }
        for name, one in mix.figures.items()
    ]


def _document(found: Summary) -> dict[str, Any]:
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
                "figures": {name: estimate(one, "value") for name, one in mix.figures.items()},
                "evenness": _evenness(mix),
            }
            for mix in found.mixes
        ],
        "mps_against_none": [
            {
                "tenants": list(one.tenants),
                "figure": one.figure,
                "ratio": one.difference.ratio,
                "ratio_low": one.difference.low,
                "ratio_high": one.difference.high,
                "clear": one.difference.clear,
                "cliffs_delta": one.superiority,
                "mann_whitney_p": one.p,
            }
            for one in found.contrasts
        ],
        "without_solo": list(found.without_solo),
    }


def _evenness(mix: Mix) -> dict[str, Any] | None:
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
