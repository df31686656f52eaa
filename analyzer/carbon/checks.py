"""What one should know before believing the grams. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from analyzer.carbon.intensity import UNKNOWN, CarbonSlot, Past, pieces
from analyzer.carbon.restate import Restatement
from analyzer.energy.checks import Finding
from analyzer.energy.states import around
from analyzer.model.report import Report
from analyzer.model.samples import RunFrames, last, of
from analyzer.model.timeline import Window
from exporter.contract import metrics as m

OLD_S = 2 * 3_600.0
_STATIC = "static"
_LEAST_RATIO = 0.01
_SOON_S = 30.0
"""The grams of a run that goes on follow some seconds behind it."""


def findings(frames: RunFrames, report: Report, windows: Mapping[str, Window]) -> list[Finding]:
    found: list[Finding] = []
    for instance, window in windows.items():
        subject = instance if len(windows) > 1 else ""
        for basis in _configured(frames, instance) if window.aligned else []:
            slots = [slot for slot in report.carbon_slots if (slot.instance, slot.basis) == (instance, basis)]
            found += _missing(frames, instance, basis, window, subject)
            found += _fallback(frames, instance, basis, slots, subject)
            found += _old(frames, instance, basis, window, subject)
    return found


def _configured(frames: RunFrames, instance: str) -> list[str]:
    """The bases that the exporter was told to follow: a source each, of which the second is named by its basis.

    A first one that never answered is taken for one of averages, unless it was seen to be none.
    """
    sources = set(of(frames.raw, m.SOURCE_UP, instance=instance)["source"])
    shown = {*of(frames.raw, m.CARBON_INTENSITY, instance=instance)["basis"]}
    shown |= {*of(frames.raw, m.CARBON_FETCHED_TIMESTAMP, instance=instance)["basis"]}
    if "carbon" in sources and not shown - {"marginal"}:
        shown |= {"marginal"} if "marginal" in shown and "carbon_marginal" not in sources else {"average"}
    return sorted(shown | {source.removeprefix("carbon_") for source in sources if source.startswith("carbon_")})


def _has_grams(frames: RunFrames, instance: str, basis: str) -> bool:
    """Of a range that no run tagged nobody counted grams: they are told by the slots."""
    if frames.untagged:
        return len(of(frames.raw, m.CARBON_INTENSITY, instance=instance, basis=basis)) > 0
    return bool(last(frames.ledger, m.RUN_EMISSIONS, run_id=frames.run_id, instance=instance, basis=basis))


def _missing(frames: RunFrames, instance: str, basis: str, window: Window, subject: str) -> list[Finding]:
    grams = _has_grams(frames, instance, basis)
    whole_s = window.end_s - window.start_s
    if not grams and (window.ended or whole_s > _SOON_S):
        text = (
            f"no grams: a region is configured, but no {basis} carbon intensity was known while the run was on, and "
            "nothing stands in for it; add grams with --carbon G/KWH, and see on the node why: exporter check"
        )
        return [Finding("warning", "carbon_missing", subject, text)]
    run = pieces(frames.raw, instance, basis, (window.start_s, window.end_s))
    unknown_s = math.fsum(piece.duration_s for piece in run if piece.slot is None)
    if not grams or unknown_s < _LEAST_RATIO * whole_s:
        return []
    text = (
        f"no {basis} carbon intensity was known for {100 * unknown_s / whole_s:.0f} % of the run: the energy of that "
        "time is not in the grams"
    )
    return [Finding("warning", "carbon_missing", subject, text)]


def _fallback(frames: RunFrames, instance: str, basis: str, slots: Sequence[CarbonSlot], subject: str) -> list[Finding]:
    """A yearly mean stood in for the provider, which the exporter does only where it has no answer of it."""
    standing_in = [slot for slot in slots if slot.provider == _STATIC]
    others = {
        *of(frames.raw, m.CARBON_FETCHED_TIMESTAMP, instance=instance, basis=basis)["provider"],
        *(slot.provider for slot in slots),
    } - {_STATIC}
    source = "carbon_marginal" if basis == "marginal" else "carbon"
    failed = bool((of(frames.raw, m.SOURCE_UP, instance=instance, source=source)["value"] == 0).any())
    if not standing_in or not (others or failed):
        return []
    who = f"the provider ({', '.join(sorted(others))})" if others else "the provider"
    regions = ", ".join(sorted({slot.region for slot in standing_in}))
    text = (
        f"{who} did not answer: the yearly mean of {regions} (static) stood in for it; "
        f"the energy by quality of the {basis} intensity: {_by_quality(slots)}"
    )
    return [Finding("warning", "carbon_fallback", subject, text)]


def _by_quality(slots: Sequence[CarbonSlot]) -> str:
    """Shares of the GPUs' energy; of the time where they have none."""
    has_energy = any(slot.gpu_energy_j > 0 for slot in slots)
    weights: defaultdict[str, float] = defaultdict(float)
    for slot in slots:
        weights[slot.quality] += slot.gpu_energy_j if has_energy else slot.end_s - slot.start_s
    whole = math.fsum(weights.values())
    return ", ".join(f"{100 * weight / whole:.0f} % {quality}" for quality, weight in weights.items())


def _old(frames: RunFrames, instance: str, basis: str, window: Window, subject: str) -> list[Finding]:
    where = {"instance": instance, "basis": basis}
    keys = ["t", "provider"]
    fetched = around(of(frames.raw, m.CARBON_FETCHED_TIMESTAMP, **where), window.start_s, window.end_s)
    in_force = of(frames.raw, m.CARBON_INTENSITY, **where)[keys].drop_duplicates()
    ages = fetched[[*keys, "value"]].merge(in_force, on=keys)
    oldest_s = float((ages["t"].clip(window.start_s, window.end_s) - ages["value"]).max()) if len(ages) else 0.0
    if oldest_s <= OLD_S:
        return []
    names = ", ".join(sorted(set(ages["provider"])))
    text = (
        f"the {basis} carbon intensity is from an answer of {names} that was up to {oldest_s / 3_600:.1f} h old: "
        "what it had forecast by then"
    )
    return [Finding("warning", "carbon_old", subject, text)]


def about_restated(restatements: Sequence[Restatement], pasts: Sequence[Past]) -> list[Finding]:
    found = [
        Finding("warning", "not_restated", "", f"not restated: {past.problem}; the ledger's grams stand")
        for past in pasts
        if past.problem
    ]
    for one in restatements:
        without = one.share_of("")
        if without >= _LEAST_RATIO:
            text = (
                f"neither {one.past.provider} nor the run knows an intensity for {100 * without:.0f} % of the energy: "
                f"it is not in the restated {one.past.basis} grams; give --carbon G/KWH to stand in"
            )
            found.append(Finding("warning", "restated_missing", "", text))
        actual, unknown = one.share_of("actual"), one.share_of(UNKNOWN)
        if unknown >= _LEAST_RATIO:
            text = (
                f"{100 * unknown:.0f} % of the energy is restated by {one.past.basis} intensities of "
                f"{one.past.provider}, which does not say what they are; add a column quality (actual, "
                "estimated, forecast, static)"
            )
            found.append(Finding("note", "restated_unknown", "", text))
        if actual + unknown < 1 - _LEAST_RATIO:
            text = (
                f"{100 * actual:.0f} % of the energy is restated by actual {one.past.basis} intensities, the rest is "
                "not: actual ones may arrive later (up to a day), and a file may not reach so far"
            )
            found.append(Finding("note", "restated_partly", "", text))
    return found
