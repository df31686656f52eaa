"""One device's energy from the ledger, figures from raw samples, and the run's share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from wattline.contract import metrics as m
from wattline.contract.work import SHARE_POLICY, is_shared
from wattline.figures import Figure, sum_of_independent
from wattline_analyzer.core import integrate
from wattline_analyzer.core.devices import (
    ESTIMATE,
    SCRAPED,
    AttributedDevice,
    MeasuredDevice,
    fields_of,
)
from wattline_analyzer.core.run_ledger import LedgerDevice
from wattline_analyzer.core.sample_table import SampleTable, around, last, rows_of, samples
from wattline_analyzer.core.samples import GAP_FACTOR, Exact, Samples, median_spacing_s, rests_s
from wattline_analyzer.core.timeline import OtherRun, Window, free_spans
from wattline_analyzer.report.error_budget import averaging_half_j, integral_half_j

_LATE_SCRAPE_S = 60.0
"""Longest delay of the first sample that counts as a late scrape, which the counter's limits
include.
"""
_SENSOR_LAG_S = 1.0
"""Longest time by which the energy of a running run is older than its duration."""
POLICIES: Mapping[str, str] = {
    "idle_shared": "its share by load, and of the idle power an equal share among those that hold "
    "the device",
    "idle_apart": "its share by load of the power above idle; the idle power is unattributed",
}
"""Attribution policies and their descriptions."""


@dataclass(frozen=True, slots=True)
class RawSeries:
    """The nodes' series around a run.

    `exact` has figures of GPU power before downsampling, by instance and UUID. `age_s` is the
    greatest age of a scraped counter, by GPU. `mean_s` is the time over which the power of an
    imported run is a mean, None for other runs.
    """

    table: SampleTable
    exact: Mapping[tuple[str, str], Exact] = field(default_factory=dict)
    age_s: Mapping[str, float] = field(default_factory=dict)
    untagged: bool = False
    mean_s: float | None = None

    @property
    def imported(self) -> bool:
        """True if the run is from a file."""
        return self.mean_s is not None

    def spacing_at_rest_s(self, instance: str) -> float:
        """Return the longest spacing of samples that is not a gap in an integral."""
        return rests_s(instance, untagged=self.untagged)


@dataclass(frozen=True, slots=True)
class Signals:
    """The raw series of one GPU; empty if they are `mixed` from two times that cannot be separated.

    `missing_s` is the time after the start of the run for which the source has no samples.
    """

    power: Samples
    counter: Samples
    utilization: Samples
    limit: Samples
    mixed: bool = False
    missing_s: float = 0.0

    @property
    def highest_limit_w(self) -> float | None:
        """The highest limit around the run, since a limit may change at any time."""
        return float(self.limit.value.max()) if len(self.limit) else None

    @property
    def power_range(self) -> integrate.PowerRange | None:
        return integrate.power_range(self.power, self.highest_limit_w)


@dataclass(frozen=True, slots=True)
class MeasuredSignals:
    """A measured device with the raw series of its GPU; other components have none."""

    device: MeasuredDevice
    window: Window
    other_runs: tuple[OtherRun, ...]
    signals: Signals | None


def measure_device(
    ledger: LedgerDevice,
    raw: RawSeries,
    window: Window,
    others: Sequence[OtherRun],
    *,
    several: bool,
) -> MeasuredSignals:
    """Measure a device of the ledger; `others` are all other runs, `several` is True for several
    nodes.
    """
    other_runs = tuple(
        run for run in others if run.instance == ledger.instance and run.overlaps(window)
    )
    device = _from_ledger(ledger, raw, window, other_runs, several=several)
    if device.component != "gpu":
        return MeasuredSignals(device, window, other_runs, None)
    signals = _signals(raw, device, window)
    if is_summed(device, imported=raw.imported) and device.energy.half_width is None:
        energy = sum_of_independent(
            [
                Figure(device.energy.number, integral_half_j(signals.power, window)),
                Figure(0.0, averaging_half_j(signals.power, window, raw.mean_s or 0.0)),
            ]
        )
        device = replace(device, energy=Figure(energy.value, energy.half_width or None))
    on_gpu = [
        run for run in others if run.instance == device.instance and device.device in run.gpus
    ]
    return MeasuredSignals(
        _with_samples(device, raw, window, signals, on_gpu), window, other_runs, signals
    )


def device_order(ledger: LedgerDevice, raw: RawSeries) -> tuple[str, int, int, str]:
    """Return a sort key: instance, component and number."""
    component = ("gpu", "cpu", "dram").index(ledger.component)
    number = _number(ledger, raw)
    return ledger.instance, component, int(number) if number.isdecimal() else 0, ledger.device


def _number(ledger: LedgerDevice, raw: RawSeries) -> str:
    """Return the GPU's index, or its UUID if the index is unknown; for other components the
    device.
    """
    if ledger.component != "gpu" or ledger.gpu_index is not None:
        return ledger.gpu_index or ledger.device
    rows = last(raw.table, m.GPU_INFO, uuid=ledger.device)
    return next(
        (row.labels["gpu"] for row in rows if row.instance == ledger.instance), ledger.device
    )


def _from_ledger(
    ledger: LedgerDevice,
    raw: RawSeries,
    window: Window,
    other_runs: Sequence[OtherRun],
    *,
    several: bool,
) -> MeasuredDevice:
    is_gpu = ledger.component == "gpu"
    info = (
        last(raw.table, m.GPU_INFO, instance=ledger.instance, uuid=ledger.device) if is_gpu else []
    )
    methods = energy_methods(raw.table, window, ledger)
    is_partial = ledger.covered_ratio is not None and (
        raw.untagged or (raw.imported and "integral" in methods)
    )
    return MeasuredDevice(
        instance=ledger.instance,
        component=ledger.component,
        device=ledger.device,
        label=f"{ledger.instance + ' ' if several else ''}{ledger.component.upper()} "
        f"{_number(ledger, raw)}",
        name=info[0].labels.get("name", "") if info else "",
        energy=Figure(ledger.energy_j, None if ESTIMATE in methods else ledger.half_j),
        duration_s=window.duration_s * (ledger.covered_ratio or 0.0 if is_partial else 1.0),
        integral_j=ledger.integral_j,
        max_power_w=ledger.max_power_w,
        covered_ratio=ledger.covered_ratio,
        shared=any(not is_gpu or ledger.device in run.gpus for run in other_runs),
        methods=methods,
        architecture=info[0].labels.get("architecture", "") if info else "",
    )


def energy_methods(raw: SampleTable, window: Window, ledger: LedgerDevice) -> tuple[str, ...]:
    """Return the sources of the device's energy during the run in the order of time; empty where
    unknown.

    The last scrape before the run shows the method at its start. A scrape after the run counts if
    there is no other. If the clocks disagree, every method around the run counts.
    """
    metric, label = (
        (m.GPU_ENERGY_METHOD, "uuid")
        if ledger.component == "gpu"
        else (m.CPU_ENERGY_METHOD, "package")
    )
    rows = rows_of(raw, metric, instance=ledger.instance, **{label: ledger.device})
    if window.aligned:
        rows = around(rows, window.start_s, window.end_s)
        known = rows.take(rows.t <= window.end_s)
        rows = known if len(known) else rows
    return tuple(dict.fromkeys(rows.take(np.argsort(rows.t, kind="stable")).texts("method")))


def raw_signals(raw: RawSeries, instance: str, uuid: str) -> Signals:
    where = {"instance": instance, "uuid": uuid}
    return Signals(
        replace(samples(raw.table, m.GPU_POWER, **where), exact=raw.exact.get((instance, uuid))),
        samples(raw.table, m.GPU_ENERGY, **where),
        samples(raw.table, m.GPU_UTILIZATION, engine="gpu", **where),
        samples(raw.table, m.GPU_POWER_LIMIT, kind="enforced", **where),
    )


def _signals(raw: RawSeries, device: MeasuredDevice, window: Window) -> Signals:
    signals = raw_signals(raw, device.instance, device.device)
    possible = signals.power_range
    if possible is not None and not integrate.is_plausible_counter(signals.counter, possible):
        nothing = Samples(np.empty(0), np.empty(0))
        return Signals(nothing, nothing, nothing, nothing, mixed=True)
    if raw.imported or raw.untagged:
        return signals
    return replace(
        signals,
        missing_s=_missing_s(signals.counter if len(signals.counter) else signals.power, window),
    )


def _missing_s(series: Samples, window: Window) -> float:
    """Return the time after the start for which the source has dropped the samples; 0 for a late
    scrape.
    """
    spacing_s = median_spacing_s(series)
    if spacing_s is None or not window.aligned:
        return 0.0
    missing_s = float(series.t[0]) - window.start_s
    return missing_s if missing_s > max(_LATE_SCRAPE_S, GAP_FACTOR * spacing_s) else 0.0


def _with_samples(
    device: MeasuredDevice,
    raw: RawSeries,
    window: Window,
    signals: Signals,
    on_gpu: Sequence[OtherRun],
) -> MeasuredDevice:
    """Add figures from raw samples to those of the ledger."""
    idle_w = None
    if not device.shared:
        idle_w = integrate.idle_power(
            signals.power, signals.utilization, _free(signals, window, on_gpu)
        )
    integral = integrate.trapezoid(
        signals.power, window.start_s, window.end_s, raw.spacing_at_rest_s(device.instance)
    )
    is_covered = integral.covered_s > 0.999 * (window.end_s - window.start_s)
    during_w = signals.power.between(window.start_s, window.end_s).value
    limits_w = signals.limit.between(window.start_s, window.end_s).value
    peaks_w = [*([] if device.max_power_w is None else [device.max_power_w]), *during_w.tolist()]
    integral_j = (
        integral.energy_j if device.integral_j is None and is_covered else device.integral_j
    )
    return replace(
        device,
        integral_j=None if is_summed(device, imported=raw.imported) else integral_j,
        from_raw_samples=_from_raw_samples(device, raw, window, signals),
        idle_power_w=idle_w,
        net=_net(device, idle_w, window) if idle_w else None,
        max_power_w=max(peaks_w, default=None),
        power_limit_w=float(limits_w[-1]) if len(limits_w) else None,
    )


def _net(device: MeasuredDevice, idle_w: Figure, window: Window) -> Figure | None:
    """Return the energy above idle; None if a running run's is less than the idle energy of its
    sensor's lag.
    """
    net = integrate.net_energy(device.energy, idle_w, device.duration_s)
    return (
        net
        if window.ended or net.half_width is not None or net.number > idle_w.number * _SENSOR_LAG_S
        else None
    )


def _from_raw_samples(
    device: MeasuredDevice, raw: RawSeries, window: Window, signals: Signals
) -> Figure | None:
    """Return the energy from the raw counter; None for an integrated counter, which lags the power
    by up to 1 s.
    """
    possible = signals.power_range
    if possible is None or signals.missing_s or "integral" in device.methods:
        return None
    age_s = raw.age_s.get(device.device)
    return integrate.counter_energy(signals.counter, window.start_s, window.end_s, possible, age_s)


def _free(
    signals: Signals, window: Window, on_gpu: Sequence[OtherRun]
) -> list[tuple[float, float]]:
    """Return the last span before and the first span after the run in which no other run used the
    GPU.
    """
    if not len(signals.power):
        return []
    excluded = [(run.start_s, run.end_s) for run in on_gpu]
    before = free_spans(float(signals.power.t[0]), window.start_s, excluded)
    after = free_spans(window.end_s, float(signals.power.t[-1]), excluded) if window.ended else []
    return [*before[-1:], *after[:1]]


def is_summed(device: MeasuredDevice, *, imported: bool) -> bool:
    """Return True if the energy is the analyzer's integral of the samples, not a figure from an
    exporter.
    """
    return SCRAPED in device.methods or (imported and "integral" in device.methods)


def counted_span(
    device: MeasuredDevice, raw: RawSeries, window: Window, signals: Signals
) -> tuple[float, float]:
    """Return the window; in an untagged range, the part between the samples of the device's
    counter.
    """
    during = signals.counter.between(window.start_s, window.end_s)
    if not raw.untagged or is_summed(device, imported=raw.imported) or not len(during):
        return window.start_s, window.end_s
    return float(during.t[0]), float(during.t[-1])


def attribute_device(device: MeasuredDevice, shares_j: Mapping[str, float]) -> AttributedDevice:
    """Add the run's share by policy; `shares_j` are the ledger's, empty where the exporter does not
    attribute.
    """
    attributed_j = {policy: shares_j[policy] for policy in POLICIES if policy in shares_j}
    return AttributedDevice(
        **fields_of(device),
        attributed_j=attributed_j,
        divided=_is_divided(device, attributed_j.get(SHARE_POLICY)),
    )


def _is_divided(device: MeasuredDevice, attributed_j: float | None) -> bool:
    """Return True if a part of the energy is not the run's, with the idle power attributed to the
    holders.
    """
    return attributed_j is not None and is_shared(
        device.energy.number,
        attributed_j,
        mean_power_w=device.mean_power_w.number if device.mean_power_w else 0.0,
        max_power_w=device.max_power_w or 0.0,
        half_j=device.energy.half_width or 0.0,
    )
