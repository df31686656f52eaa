"""What one should know before believing the numbers: each check gives findings, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analyzer.energy.states import ESTIMATE
from analyzer.model.samples import Gap, Samples, Stretch
from exporter.contract.power_sensors import SystematicBand

Level = Literal["note", "warning", "bad"]
STUCK_SECONDS = 60.0
_STUCK_SAMPLES = 10
_DISAGREEMENT = 0.05
_JUDGED_FROM_S = 60.0


@dataclass(frozen=True, slots=True)
class Finding:
    """`code` is stable, for scripts; `subject` is what it is about (`GPU 0`), empty for the run as a whole."""

    level: Level
    code: str
    subject: str
    text: str


def band_finding(subject: str, band: SystematicBand) -> Finding:
    text = (
        f"sensor's systematic band {band.low_percent:+.0f} to {band.high_percent:+.0f} % (architecture: "
        f"{band.architecture}): not part of the interval, and the same for all runs on one card"
    )
    return Finding("note", "systematic_band", subject, text)


_SUSPICIONS: Mapping[str, tuple[Level, str]] = {
    "frozen": ("bad", "its counter stood still while power flowed, so that its energy is too low: do not use it"),
    "implausible": (
        "warning",
        "its counter jumped by more than the card can draw: the jump is left out, and power over time fills the gap",
    ),
    "aliasing": (
        "warning",
        "no counter, and a sensor that sees a part of the time: up to 80 % off where the load's period is near its own",
    ),
    "disagrees": (
        "warning",
        "its counter, whose energy this is, and its averaged power were over 5 % apart for two minutes: one is wrong",
    ),
}


def suspect_findings(subject: str, reasons: Mapping[str, float | None]) -> list[Finding]:
    """What the exporter itself saw; `reasons` with how long after the run's begin, None where that is not known."""
    found = []
    for reason, after_s in reasons.items():
        level, meaning = _SUSPICIONS.get(reason, ("warning", f"the exporter does not trust its energy ({reason})"))
        when = "" if after_s is None else f" (seen {after_s:.0f} s after the run's begin)"
        found.append(Finding(level, f"suspect_{reason}", subject, f"{meaning}{when}; see: nvidia-smi -q -d POWER"))
    return found


def method_findings(subject: str, methods: Sequence[str]) -> list[Finding]:
    if ESTIMATE not in methods:
        return []
    part = "" if set(methods) == {ESTIMATE} else f" for a part of the run (by {', then '.join(methods)})"
    text = (
        f"its energy is an estimate from utilization{part}, by the exporter's --cpu.power-model, and no measurement: "
        "nobody knows its interval"
    )
    return [Finding("warning", "estimate", subject, text)]


def mixed_findings(subject: str, *, mixed: bool) -> list[Finding]:
    if not mixed:
        return []
    text = (
        "its samples are of two times that a clock which was set back laid over each other, or of two exporters that "
        "write one series (the counter rises faster than the card can draw): nothing is taken from raw samples; the "
        "energy is the ledger's and stands"
    )
    return [Finding("warning", "clock_mixed", subject, text)]


def gap_findings(subject: str, found: list[Gap], start_s: float, *, bridged: bool = True) -> list[Finding]:
    """One finding for all gaps of a series: a scrape that is often late would else fill the page.

    `bridged` says that the energy is a counter's, which goes on while no one reads it.
    """
    if not found:
        return []
    longest = max(found, key=lambda gap: gap.duration_s)
    text = (
        f"{len(found)} gap{'s' if len(found) > 1 else ''} between samples, the longest {longest.duration_s:.1f} s, "
        f"{max(longest.start_s - start_s, 0):.0f} s after the run's begin; "
        f"{'the counter bridges them, the plot does not' if bridged else 'no energy is counted in them'}"
    )
    return [Finding("warning", "gap", subject, text)]


def reset_findings(subject: str, reset_at_s: list[float], start_s: float) -> list[Finding]:
    return [
        Finding(
            "warning",
            "counter_reset",
            subject,
            f"the energy counter fell {t - start_s:.0f} s after the run's begin; its new value was added, and what it "
            "had not yet shown before the fall is missing from the analyzer's own figure",
        )
        for t in reset_at_s
    ]


def stuck_spans(power: Samples) -> list[Stretch]:
    """Stretches of 60 s and more, of ten samples at least, in which power is the same to the last digit."""
    if power.exact:
        return [span for span in power.exact.stretches if span.count >= _STUCK_SAMPLES]
    if not len(power):
        return []
    changes = np.flatnonzero(np.diff(power.value) != 0)
    firsts, finals = np.concatenate([[0], changes + 1]), np.concatenate([changes, [len(power) - 1]])
    return [
        Stretch(float(power.t[first]), float(power.t[final]), float(power.value[first]), int(final - first) + 1)
        for first, final in zip(firsts, finals, strict=True)
        if power.t[final] - power.t[first] >= STUCK_SECONDS and final - first + 1 >= _STUCK_SAMPLES
    ]


def stuck_findings(
    subject: str, power: Samples, utilization: Samples, counter: Samples, *, simulated: bool
) -> list[Finding]:
    """A sensor that repeats itself is stuck, unless its GPU slept or is simulated, and the counter agrees."""
    findings = []
    for span in stuck_spans(power):
        power_w = span.value
        busy = utilization.between(span.start_s, span.end_s)
        slept = len(busy) > 0 and float(busy.value.max()) <= _DISAGREEMENT
        agrees = _agrees(counter.between(span.start_s, span.end_s), power_w)
        if agrees is not False and (slept or (simulated and agrees)):
            continue
        text = (
            f"stuck sensor: exactly {power_w:g} W for {span.duration_s:.0f} s in {span.count} samples; "
            "do not use this device's energy; reload the driver or reset the GPU, and run again"
        )
        findings.append(Finding("bad", "stuck_sensor", subject, text))
    return findings


def _agrees(counter: Samples, power_w: float) -> bool | None:
    """Does the counter rise at this power, to 5 %? None where there are too few samples to say."""
    if len(counter) < 2 or counter.t[-1] - counter.t[0] < STUCK_SECONDS / 2:
        return None
    mean_w = float((counter.value[-1] - counter.value[0]) / (counter.t[-1] - counter.t[0]))
    return abs(mean_w - power_w) <= _DISAGREEMENT * max(power_w, mean_w)


def impossible_findings(subject: str, power: Samples, limit_w: float | None) -> list[Finding]:
    if limit_w is None or not len(power) or power.value.max() <= 1.5 * limit_w:
        return []
    text = f"{power.value.max():.0f} W was read with a limit of {limit_w:.0f} W: the sensor is not to be trusted"
    return [Finding("bad", "impossible_power", subject, text)]


def disagreement_findings(subject: str, energy_j: float, integral_j: float | None, duration_s: float) -> list[Finding]:
    """Counter against integral, judged over a minute or more: below that the sensors' lag alone explains 5 %."""
    if integral_j is None or duration_s < _JUDGED_FROM_S or max(energy_j, integral_j) <= 0:
        return []
    apart = integral_j / energy_j - 1 if energy_j > 0 else float("inf")
    if abs(apart) <= _DISAGREEMENT:
        return []
    text = f"counter and integral of power are {100 * apart:+.1f} % apart (5 % allowed): one of the two sensors lies"
    return [Finding("warning", "counter_integral_apart", subject, text)]


def coverage_findings(subject: str, covered_ratio: float | None) -> list[Finding]:
    if covered_ratio is None or covered_ratio >= 0.9995:
        return []
    text = f"it was read during {100 * covered_ratio:.1f} % of the run; in the gaps the power is not known"
    return [Finding("warning", "coverage", subject, text)]


def outside_findings(
    subject: str, energy_j: float, half_j: float | None, limits_j: tuple[float, float] | None
) -> list[Finding]:
    """The ledger's interval and what the raw samples allow must meet."""
    if limits_j is None or (energy_j + (half_j or 0) >= limits_j[0] and energy_j - (half_j or 0) <= limits_j[1]):
        return []
    text = (
        f"the ledger's {energy_j:.0f} J lie outside of what the raw samples allow ({limits_j[0]:.0f} to "
        f"{limits_j[1]:.0f} J); do the clocks of exporter and server agree?"
    )
    return [Finding("warning", "outside_bound", subject, text)]
