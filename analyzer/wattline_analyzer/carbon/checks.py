"""Checks of emissions and carbon intensities."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from wattline.contract import metrics as m
from wattline_analyzer.carbon.intensity import slot_pieces
from wattline_analyzer.core.emissions import UNKNOWN, CarbonSlot, PastIntensities, Restatement
from wattline_analyzer.core.run_report import Finding
from wattline_analyzer.core.sample_table import SampleTable, around, rows_of
from wattline_analyzer.core.timeline import Window

OLD_S = 2 * 3_600.0
_STATIC = "static"
_LEAST_RATIO = 0.01
_SOON_S = 30.0
"""The emissions of a running run are counted some seconds later."""


def carbon_findings(
    raw: SampleTable,
    windows: Mapping[str, Window],
    slots: Sequence[CarbonSlot],
    emitting: Collection[tuple[str, str]],
    *,
    given: bool = False,
) -> list[Finding]:
    """Return findings about the intensities of the run's time.

    `emitting` are the pairs of instance and basis with emissions; with `given` the user gave an
    average intensity.
    """
    found: list[Finding] = []
    for instance, window in windows.items():
        subject = instance if len(windows) > 1 else ""
        within = _during(raw, instance, window)
        for basis in _configured(within, instance) if window.aligned else []:
            mine = [slot for slot in slots if (slot.instance, slot.basis) == (instance, basis)]
            where = {"instance": instance, "basis": basis}
            has_emissions = (instance, basis) in emitting
            if has_emissions or not (given and basis == "average"):
                found += _missing(raw, where, window, subject, has_emissions=has_emissions)
            found += _fallback(within, where, mine, subject)
            found += _old(within, where, window, subject)
    return found


def _during(raw: SampleTable, instance: str, window: Window) -> SampleTable:
    """Return the samples from the last scrape before the run to its end; other times may have other
    options.
    """
    before = rows_of(raw, m.SOURCE_UP, instance=instance).t
    before = before[before <= window.start_s]
    start_s = float(before.max()) if len(before) else window.start_s
    within = raw.take((raw.t >= start_s) & (raw.t <= window.end_s))
    return within if len(rows_of(within, m.SOURCE_UP, instance=instance)) else raw


def places_with_intensity(raw: SampleTable) -> frozenset[tuple[str, str]]:
    """Return the pairs of instance and basis with an intensity: emissions of an untagged range are
    by slot.
    """
    known = rows_of(raw, m.CARBON_INTENSITY)
    return frozenset(zip(known.texts("instance"), known.texts("basis"), strict=True))


def _configured(raw: SampleTable, instance: str) -> list[str]:
    """Return the bases that the exporter is configured for: each has a source, the second one is
    named by its basis.

    A first source without any response counts as average, unless it is known to be marginal.
    """
    sources = rows_of(raw, m.SOURCE_UP, instance=instance).distinct("source")
    shown = {*rows_of(raw, m.CARBON_INTENSITY, instance=instance).distinct("basis")}
    shown |= {*rows_of(raw, m.CARBON_FETCHED_TIMESTAMP, instance=instance).distinct("basis")}
    if "carbon" in sources and not shown - {"marginal"}:
        shown |= (
            {"marginal"}
            if "marginal" in shown and "carbon_marginal" not in sources
            else {"average"}
        )
    return sorted(
        shown
        | {source.removeprefix("carbon_") for source in sources if source.startswith("carbon_")}
    )


def _missing(
    raw: SampleTable, where: Mapping[str, str], window: Window, subject: str, *, has_emissions: bool
) -> list[Finding]:
    basis = where["basis"]
    whole_s = window.end_s - window.start_s
    if not has_emissions and (window.ended or whole_s > _SOON_S):
        text = (
            f"no emissions: a region is configured, but no {basis} carbon intensity was known "
            "during the run, and "
            "there is no fallback; add emissions with --carbon G/KWH, and check the node: exporter "
            "check"
        )
        return [Finding("warning", "carbon_missing", subject, text)]
    run = slot_pieces(raw, where["instance"], basis, (window.start_s, window.end_s))
    unknown_s = math.fsum(piece.duration_s for piece in run if piece.slot is None)
    if not has_emissions or unknown_s < _LEAST_RATIO * whole_s:
        return []
    text = (
        f"no {basis} carbon intensity was known for {100 * unknown_s / whole_s:.0f} % of the run: "
        "the emissions of "
        "that time are not included"
    )
    return [Finding("warning", "carbon_missing", subject, text)]


def _fallback(
    raw: SampleTable, where: Mapping[str, str], slots: Sequence[CarbonSlot], subject: str
) -> list[Finding]:
    """Return a finding where the yearly mean was the fallback, as the exporter uses it without a
    response.
    """
    basis = where["basis"]
    fallbacks = [slot for slot in slots if slot.provider == _STATIC]
    others = {
        *rows_of(raw, m.CARBON_FETCHED_TIMESTAMP, **where).distinct("provider"),
        *(slot.provider for slot in slots),
    } - {_STATIC}
    source = "carbon_marginal" if basis == "marginal" else "carbon"
    failed = bool(
        (rows_of(raw, m.SOURCE_UP, instance=where["instance"], source=source).value == 0).any()
    )
    if not fallbacks or not (others or failed):
        return []
    who = f"the provider ({', '.join(sorted(others))})" if others else "the provider"
    regions = ", ".join(sorted({slot.region for slot in fallbacks}))
    text = (
        f"{who} did not respond: the yearly mean of {regions} (static) is used instead; "
        f"the energy by quality of the {basis} intensity: {_by_quality(slots)}"
    )
    return [Finding("warning", "carbon_fallback", subject, text)]


def _by_quality(slots: Sequence[CarbonSlot]) -> str:
    """Return shares of the GPUs' energy by quality, of the time where there is no energy."""
    has_energy = any(slot.gpu_energy_j for slot in slots)
    weights: defaultdict[str, float] = defaultdict(float)
    for slot in slots:
        weights[slot.quality] += (
            slot.gpu_energy_j or 0.0 if has_energy else slot.end_s - slot.start_s
        )
    whole = math.fsum(weights.values())
    return ", ".join(
        f"{100 * weight / whole:.0f} % {quality}" for quality, weight in weights.items()
    )


def _old(raw: SampleTable, where: Mapping[str, str], window: Window, subject: str) -> list[Finding]:
    fetched = around(
        rows_of(raw, m.CARBON_FETCHED_TIMESTAMP, **where), window.start_s, window.end_s
    )
    shown = rows_of(raw, m.CARBON_INTENSITY, **where)
    in_force = set(zip(shown.t.tolist(), shown.texts("provider"), strict=True))
    ages_s = [
        (min(max(t_s, window.start_s), window.end_s) - fetched_s, provider)
        for t_s, fetched_s, provider in zip(
            fetched.t.tolist(), fetched.value.tolist(), fetched.texts("provider"), strict=True
        )
        if (t_s, provider) in in_force
    ]
    oldest_s = max((age_s for age_s, _ in ages_s), default=0.0)
    if oldest_s <= OLD_S:
        return []
    names = ", ".join(sorted({provider for _, provider in ages_s}))
    text = (
        f"the {where['basis']} carbon intensity is from a response of {names} that was up to "
        f"{oldest_s / 3_600:.1f} h "
        "old: a forecast of that time"
    )
    return [Finding("warning", "carbon_old", subject, text)]


def restatement_findings(
    restatements: Sequence[Restatement], pasts: Sequence[PastIntensities]
) -> list[Finding]:
    found = [
        Finding(
            "warning",
            "not_restated",
            "",
            f"not restated: {past.problem}; the ledger's emissions remain valid",
        )
        for past in pasts
        if past.problem
    ]
    for one in restatements:
        without = one.share_of("")
        if without >= _LEAST_RATIO:
            text = (
                f"neither {one.past.provider} nor the run has an intensity for {100 * without:.0f} "
                "% of the energy: "
                f"it is not in the restated {one.past.basis} emissions; add a fallback with "
                "--carbon G/KWH"
            )
            found.append(Finding("warning", "restated_missing", "", text))
        actual = one.share_of("actual")
        unknown = one.share_of(UNKNOWN)
        if unknown >= _LEAST_RATIO:
            text = (
                f"{100 * unknown:.0f} % of the energy is restated by {one.past.basis} intensities "
                "of "
                f"{one.past.provider} without a quality; add a column quality (actual, estimated, "
                "forecast, static)"
            )
            found.append(Finding("note", "restated_unknown", "", text))
        if actual + unknown < 1 - _LEAST_RATIO:
            text = (
                f"{100 * actual:.0f} % of the energy is restated by actual {one.past.basis} "
                "intensities, the rest is "
                "not: actual ones may arrive up to a day later, and a file may end earlier"
            )
            found.append(Finding("note", "restated_partly", "", text))
    return found
