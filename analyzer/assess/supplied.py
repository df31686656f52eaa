"""What a report says beyond the ledger: boundaries, grams of later, and the SCI, by what the user tells. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from analyzer.assess import boundaries as boundary
from analyzer.carbon import checks as carbon_quality
from analyzer.carbon import restate as restated
from analyzer.carbon import sci
from analyzer.energy.checks import Finding
from analyzer.model.report import Report
from analyzer.model.samples import RunFrames
from analyzer.model.timeline import Window
from analyzer.model.user_inputs import Given


def completed(report: Report, frames: RunFrames, windows: Mapping[str, Window], given: Given) -> Report:
    """Also with the grams of a range that no run tagged, which no exporter counted."""
    report = replace(report, price=given.price, boundaries=boundary.boundaries(report, given.pue))
    found = tuple(
        restated.restate(frames, report, windows, past, given.grams_per_kwh if past.basis == "average" else None)
        for past in given.past
        if not past.problem
    )
    later = tuple(emission for one in found for emission in one.emissions)
    uncounted = restated.as_seen(frames, report, windows) if frames.untagged else []
    report = replace(report, restated=found, emissions=(*report.emissions, *uncounted, *later))
    return replace(report, sci=sci.sci(report, given.hardware)) if given.hardware else report


def findings(report: Report, given: Given) -> list[Finding]:
    about = carbon_quality.about_restated(report.restated, given.past)
    return [*about, *(sci.findings(report.sci) if given.hardware else [])]
