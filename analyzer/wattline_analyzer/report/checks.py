"""Checks of a device's energy, each with its findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from wattline.contract import metrics as m
from wattline.contract.power_sensors import band_limits_j, systematic_band
from wattline.figures import short_joules_text, short_text
from wattline_analyzer.core import integrate
from wattline_analyzer.core.devices import ESTIMATE, SCRAPED, ReportDevice
from wattline_analyzer.core.run_report import Finding
from wattline_analyzer.core.sample_table import SampleTable, rows_of
from wattline_analyzer.core.samples import Gap, Samples, Stretch, distinct, gaps
from wattline_analyzer.core.timeline import OtherRun, Window
from wattline_analyzer.report.devices import RawSeries, Signals, counted_span, is_summed

STUCK_SECONDS = 60.0
_STUCK_SAMPLES = 10
_DISAGREEMENT = 0.05
_JUDGED_FROM_S = 60.0
_MAX_TO_LIMIT = 1.5  # power above this multiple of the limit is impossible
_SHORT_GAP_S = 0.05


def device_findings(device: ReportDevice, other_runs: Sequence[OtherRun]) -> list[Finding]:
    """Return estimates and other users of the device."""
    return [*_estimate_findings(device), *_sharing_findings(device, other_runs)]


def _estimate_findings(device: ReportDevice) -> list[Finding]:
    methods = device.methods
    if ESTIMATE not in methods:
        return []
    part = (
        ""
        if set(methods) == {ESTIMATE}
        else f" for a part of the run (by {', then '.join(methods)})"
    )
    text = (
        f"its energy is an estimate from utilization{part}, by the exporter's --cpu.power-model, "
        "not a measurement: "
        "its uncertainty is unknown"
    )
    return [Finding("warning", "estimate", device.label, text)]


def _sharing_findings(device: ReportDevice, other_runs: Sequence[OtherRun]) -> list[Finding]:
    is_gpu = device.component == "gpu"
    whole = "the whole device" if is_gpu else "the whole node"
    share = "; the run's attributed share is listed as well" if device.divided else ""
    if device.shared:
        names = ", ".join(
            sorted(run.run_id for run in other_runs if not is_gpu or device.device in run.gpus)
        )
        text = f"energy of {whole}, also used by {names}{share}"
        return [Finding("warning", "shared", device.label, text)]
    if device.divided:
        text = (
            f"energy of {whole}: other processes used it, or held it before the exporter "
            f"attributed it{share}"
        )
        return [Finding("note", "divided", device.label, text)]
    return []


def gpu_findings(
    device: ReportDevice, raw: RawSeries, window: Window, signals: Signals
) -> Iterator[Finding]:
    """Yield the findings about a GPU's raw samples."""
    label = device.label
    start_s = window.start_s
    during = signals.power.between(start_s, window.end_s)
    possible = signals.power_range or integrate.ANY_POWER
    restarts_s = integrate.restart_times(signals.counter, possible, raw.age_s.get(device.device))
    yield from stuck_findings(
        label, during, signals.utilization, signals.counter, simulated=device.simulated
    )
    yield from _impossible_findings(label, during, signals.highest_limit_w)
    yield from [_mixed_finding(label, untagged=raw.untagged)] if signals.mixed else []
    yield from _missing_start_findings(label, signals.missing_s)
    yield from _reset_findings(
        label, [t for t in restarts_s if start_s < t <= window.end_s], start_s
    )
    yield from _disagreement_findings(device, window.duration_s)
    yield from _outside_findings(device)
    if not device.simulated:
        yield _band_finding(device)
    if signals.mixed:
        return
    if len(signals.power) or not raw.imported:  # a file with a counter may have no power at all
        yield from _gap_findings(device, raw, window, signals)
    yield from _duplicate_findings(device, raw.table, window)


def _band_finding(device: ReportDevice) -> Finding:
    band = systematic_band(device.name, device.architecture)
    low, high = band_limits_j(100.0, band)
    text = (
        f"systematic error of the sensor: the true energy is {low:+.0f} to {high:+.0f} % from the "
        "reading "
        f"(architecture: {band.architecture}): not part of the interval, and the same for all runs "
        "on one GPU"
    )
    return Finding("note", "systematic_band", device.label, text)


def _mixed_finding(subject: str, *, untagged: bool) -> Finding:
    if untagged:
        text = (
            "its energy counter rises faster than the GPU can draw: its energy is too high; do "
            "not use it"
        )
        return Finding("bad", "clock_mixed", subject, text)
    text = (
        "its energy counter rises faster than the GPU can draw: a clock that was set back mixed "
        "samples of two times, "
        "or two exporters write one series; raw samples are not used, the ledger's energy remains "
        "valid"
    )
    return Finding("warning", "clock_mixed", subject, text)


def _missing_start_findings(subject: str, missing_s: float) -> list[Finding]:
    if not missing_s:
        return []
    text = (
        f"the source's samples start {missing_s:.0f} s after the run (older ones may be beyond the "
        "retention; "
        "Prometheus: --storage.tsdb.retention.time): energy and duration are the ledger's, of the "
        "whole run; power "
        "over time, peak and idle power are of the rest, and there are no limits from raw samples"
    )
    return [Finding("warning", "begin_missing", subject, text)]


def _gap_findings(
    device: ReportDevice, raw: RawSeries, window: Window, signals: Signals
) -> list[Finding]:
    """Return one finding for all gaps, without the missing start. No energy is added to a gap of an
    integral.
    """
    if not window.aligned:
        return []
    least_s = integrate.SENSOR_S if raw.imported else raw.spacing_at_rest_s(device.instance)
    start_s, end_s = counted_span(device, raw, window, signals)
    found = [
        gap
        for gap in gaps(signals.power, start_s, end_s)
        if gap.duration_s > least_s and not (signals.missing_s and gap.start_s <= window.start_s)
    ]
    return gap_findings(
        device.label,
        found,
        window.start_s,
        bridged=not is_summed(device.methods, imported=raw.imported),
    )


def gap_findings(
    subject: str, missing: list[Gap], start_s: float, *, bridged: bool = True
) -> list[Finding]:
    """Return one finding for all gaps; `bridged` says that a counter includes their energy."""
    if not missing:
        return []
    longest = max(missing, key=lambda gap: gap.duration_s)
    text = (
        f"{len(missing)} gap{'s' if len(missing) > 1 else ''} between samples, "
        f"the longest {_seconds(longest.duration_s)} s, {max(longest.start_s - start_s, 0):.0f} s "
        "after the start; "
        + (
            "the counter includes their energy, the plot does not"
            if bridged
            else "their energy is not included"
        )
    )
    return [Finding("warning", "gap", subject, text)]


def _seconds(duration_s: float) -> str:
    return f"{duration_s:.1f}" if duration_s >= _SHORT_GAP_S else f"{duration_s:.1g}"


def _duplicate_findings(
    device: ReportDevice, raw: SampleTable, window: Window
) -> Iterator[Finding]:
    """Yield series with two values at one time."""
    for metric, name in ((m.GPU_ENERGY, "energy"), (m.GPU_POWER, "power")):
        count = _duplicates(
            rows_of(raw, metric, instance=device.instance, uuid=device.device), window
        )
        if count:
            text = (
                f"its {name} has two different values at {count} time{'s' if count > 1 else ''}; "
                "the first value "
                "counts: two jobs may scrape it, or two exporters write it; keep one of them"
            )
            yield Finding("warning", "duplicate_samples", device.label, text)


def _duplicates(rows: SampleTable, window: Window) -> int:
    if (rows.t[1:] > rows.t[:-1]).all():
        return 0
    order = np.lexsort((rows.value, rows.t))
    t = rows.t[order]
    value = rows.value[order]
    during = (t[1:] >= window.start_s) & (t[1:] <= window.end_s)
    return len(distinct(t[1:][during & (np.diff(t) == 0) & (np.diff(value) != 0)]))


def _reset_findings(subject: str, reset_at_s: list[float], start_s: float) -> list[Finding]:
    text = (
        "the energy counter was reset {:.0f} s after the start; its new value was added, but "
        "energy between the last "
        "scrape and the reset is missing from the analyzer's own figure"
    )
    return [
        Finding("warning", "counter_reset", subject, text.format(t - start_s)) for t in reset_at_s
    ]


def stuck_spans(power: Samples) -> list[Stretch]:
    """Return the stretches of at least 60 s and ten samples in which the power does not change in
    any digit.
    """
    if power.exact:
        return [span for span in power.exact.stretches if span.count >= _STUCK_SAMPLES]
    if not len(power):
        return []
    changes = np.flatnonzero(np.diff(power.value) != 0)
    firsts = np.concatenate([[0], changes + 1])
    finals = np.concatenate([changes, [len(power) - 1]])
    return [
        Stretch(
            float(power.t[first]),
            float(power.t[final]),
            float(power.value[first]),
            int(final - first) + 1,
        )
        for first, final in zip(firsts, finals, strict=True)
        if power.t[final] - power.t[first] >= STUCK_SECONDS and final - first + 1 >= _STUCK_SAMPLES
    ]


def stuck_findings(
    subject: str, power: Samples, utilization: Samples, counter: Samples, *, simulated: bool
) -> list[Finding]:
    """Return stuck sensors: constant power, unless the GPU is idle or simulated and its counter
    agrees.
    """
    findings = []
    for span in stuck_spans(power):
        power_w = span.value
        busy = utilization.between(span.start_s, span.end_s)
        idle = len(busy) > 0 and float(busy.value.max()) <= _DISAGREEMENT
        agrees = _agrees(counter.between(span.start_s, span.end_s), power_w)
        if agrees is not False and (idle or (simulated and agrees)):
            continue
        text = (
            f"stuck sensor: exactly {power_w:g} W for {span.duration_s:.0f} s in {span.count} "
            "samples; "
            "do not use this device's energy; reload the driver or reset the GPU, and repeat the "
            "run"
        )
        findings.append(Finding("bad", "stuck_sensor", subject, text))
    return findings


def _agrees(counter: Samples, power_w: float) -> bool | None:
    """Return True where the counter rises at this power to 5 %, None where it has too few
    samples.
    """
    if len(counter) < 2 or counter.t[-1] - counter.t[0] < STUCK_SECONDS / 2:
        return None
    mean_w = float((counter.value[-1] - counter.value[0]) / (counter.t[-1] - counter.t[0]))
    return abs(mean_w - power_w) <= _DISAGREEMENT * max(power_w, mean_w)


def _impossible_findings(subject: str, power: Samples, limit_w: float | None) -> list[Finding]:
    if limit_w is None or not len(power) or power.value.max() <= _MAX_TO_LIMIT * limit_w:
        return []
    text = (
        f"a power of {power.value.max():.0f} W at a limit of {limit_w:.0f} W is impossible: do "
        "not use this sensor"
    )
    return [Finding("bad", "impossible_power", subject, text)]


def _disagreement_findings(device: ReportDevice, duration_s: float) -> list[Finding]:
    """Compare counter and integral over a minute or longer; missing samples explain a deficit of
    the integral.
    """
    energy_j = device.energy.number
    integral_j = device.integral_j
    if integral_j is None or duration_s < _JUDGED_FROM_S or max(energy_j, integral_j) <= 0:
        return []
    difference = integral_j / energy_j - 1 if energy_j > 0 else float("inf")
    missing = 0.0 if device.covered_ratio is None else 1 - device.covered_ratio
    if -_DISAGREEMENT - missing <= difference <= _DISAGREEMENT:
        return []
    text = (
        f"energy counter and integrated power differ by {100 * difference:+.1f} % (limit 5 %); "
        "one is inaccurate"
    )
    return [Finding("warning", "counter_integral_apart", device.label, text)]


def coverage_findings(device: ReportDevice, *, untagged: bool = False) -> list[Finding]:
    """Return a finding about a part without samples, which an untagged range with a counter has
    from its source.
    """
    if device.covered_ratio is None or device.is_covered:
        return []
    if untagged and SCRAPED not in device.methods:
        return []
    text = (
        f"covered for {100 * device.covered_ratio:.1f} % of the run; the power in the gaps is "
        "unknown"
    )
    return [Finding("warning", "coverage", device.label, text)]


def _outside_findings(device: ReportDevice) -> list[Finding]:
    """Compare the ledger's interval with the limits from raw samples; they must overlap."""
    if device.from_raw_samples is None:
        return []
    low_j, high_j = device.from_raw_samples.limits
    energy = device.energy
    if energy.low is None or energy.high is None:
        text = (
            f"the ledger's {short_joules_text(energy.number)} are not compared with the limits "
            "from raw samples, since their uncertainty is unknown"
        )
        return [Finding("note", "bound_not_checked", device.label, text)]
    if energy.high >= low_j and energy.low <= high_j:
        return []
    text = (
        f"the ledger's {short_joules_text(energy.number)} are outside of the limits from raw "
        f"samples ({short_text(low_j)} to {short_joules_text(high_j)}); "
        "check whether the clocks of exporter and server agree"
    )
    return [Finding("warning", "outside_bound", device.label, text)]
