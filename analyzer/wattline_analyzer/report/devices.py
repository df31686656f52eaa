"""One device's energy from the ledger, figures from raw samples, and the run's share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from wattline.contract import metrics as m
from wattline.contract.run import COMPONENTS, Run, RunDevice
from wattline.contract.work import SHARE_POLICY
from wattline.figures import Figure, sum_of_independent
from wattline_analyzer.core import integrate
from wattline_analyzer.core.devices import ESTIMATE, SCRAPED, ReportDevice
from wattline_analyzer.core.recorded_run import RecordedRun, recorded_key
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
class DeviceSignals:
    """A device of the run with the raw series of its GPU; other components have none."""

    device: ReportDevice
    window: Window
    other_runs: tuple[OtherRun, ...]
    signals: Signals | None


def measure_device(
    recorded_run: RecordedRun,
    recorded: RunDevice,
    raw: RawSeries,
    windows: Mapping[str, Window],
) -> DeviceSignals:
    """Measure a recorded device of the run."""
    run = recorded_run.run
    others = recorded_run.others
    has_ratio = recorded_key(recorded) not in recorded_run.scrapes.without_ratio
    window = windows[recorded.node]
    other_runs = tuple(
        other for other in others if other.instance == recorded.node and other.overlaps(window)
    )
    is_gpu = recorded.component == "gpu"
    info = _gpu_info(recorded, raw) if is_gpu else {}
    methods = energy_methods(raw.table, window, recorded)
    signals = _signals(raw, recorded, window) if is_gpu else None
    energy = _energy(recorded, raw, window, signals, methods)
    duration_s = window.duration_s * _covered_ratio(recorded, raw, methods)
    shared = any(not is_gpu or recorded.device_id in other.gpus for other in other_runs)
    idle_w = _idle_power_w(recorded, signals, window, others) if signals and not shared else None
    device = ReportDevice(
        instance=recorded.node,
        component=recorded.component,
        device=recorded.device_id,
        label=_label(run, recorded, raw, several=len(windows) > 1),
        name=info.get("name", ""),
        energy=energy,
        duration_s=duration_s,
        integral_j=_integral_j(recorded, raw, window, signals, methods),
        from_raw_samples=_from_raw_samples(recorded, raw, window, signals, methods),
        idle_power_w=idle_w,
        net=_net(energy, idle_w, duration_s, window) if idle_w else None,
        max_power_w=_max_power_w(run.power_max_w.get(recorded.device_id), window, signals),
        power_limit_w=_last_limit_w(signals, window) if signals else None,
        covered_ratio=recorded.energy_j.covered_ratio if has_ratio else None,
        shared=shared,
        methods=methods,
        architecture=info.get("architecture", ""),
        attributed_j=_shares_j(recorded),
    )
    return DeviceSignals(device, window, other_runs, signals)


def device_order(run: Run, recorded: RunDevice, raw: RawSeries) -> tuple[str, int, int, str]:
    """Return a sort key: instance, component and number."""
    component = COMPONENTS.index(recorded.component)
    number = _number(run, recorded, raw)
    return (
        recorded.node,
        component,
        int(number) if number.isdecimal() else 0,
        recorded.device_id,
    )


def _label(run: Run, recorded: RunDevice, raw: RawSeries, *, several: bool) -> str:
    """Return the name of a device, with its instance in a run of several nodes."""
    name = f"{recorded.component.upper()} {_number(run, recorded, raw)}"
    return f"{recorded.node} {name}" if several else name


def _number(run: Run, recorded: RunDevice, raw: RawSeries) -> str:
    """Return the GPU's index, or its UUID if the index is unknown; for other components the
    device.
    """
    if recorded.component != "gpu":
        return recorded.device_id
    gpu = run.gpu(recorded.device_id)
    if gpu is not None:
        return gpu.gpu
    rows = last(raw.table, m.GPU_INFO, instance=recorded.node, uuid=recorded.device_id)
    return rows[0].labels["gpu"] if rows else recorded.device_id


def _shares_j(recorded: RunDevice) -> dict[str, float]:
    """Return the run's share by policy; that of a shared device includes the energy before the
    run's first use of it.
    """
    shares_j = {
        policy: recorded.shares_j[policy] for policy in POLICIES if policy in recorded.shares_j
    }
    if recorded.share_j is not None:
        shares_j[SHARE_POLICY] = recorded.share_j
    return shares_j


def _gpu_info(recorded: RunDevice, raw: RawSeries) -> Mapping[str, str]:
    rows = last(raw.table, m.GPU_INFO, instance=recorded.node, uuid=recorded.device_id)
    return rows[0].labels if rows else {}


def _covered_ratio(recorded: RunDevice, raw: RawSeries, methods: tuple[str, ...]) -> float:
    """Return the part of the run that the energy covers; 1 where an exporter measured it."""
    is_of_samples = raw.untagged or (raw.imported and "integral" in methods)
    return recorded.energy_j.covered_ratio if is_of_samples else 1.0


def _energy(
    recorded: RunDevice,
    raw: RawSeries,
    window: Window,
    signals: Signals | None,
    methods: tuple[str, ...],
) -> Figure:
    """Return the ledger's energy; an integral of samples gets the half-width of its sampling.

    An estimate has no half-width, since the error of a model is not a sensor's.
    """
    half_j = None if ESTIMATE in methods else recorded.energy_j.half_width
    if signals is None or half_j is not None or not is_summed(methods, imported=raw.imported):
        return Figure(recorded.energy_j.number, half_j)
    energy = sum_of_independent(
        [
            Figure(recorded.energy_j.number, integral_half_j(signals.power, window)),
            Figure(0.0, averaging_half_j(signals.power, window, raw.mean_s or 0.0)),
        ]
    )
    return Figure(energy.value, energy.half_width or None)


def energy_methods(raw: SampleTable, window: Window, recorded: RunDevice) -> tuple[str, ...]:
    """Return the sources of the device's energy during the run in the order of time; empty where
    unknown.

    The last scrape before the run shows the method at its start. A scrape after the run counts if
    there is no other. If the clocks disagree, every method around the run counts.
    """
    metric, label = (
        (m.GPU_ENERGY_METHOD, "uuid")
        if recorded.component == "gpu"
        else (m.CPU_ENERGY_METHOD, "package")
    )
    rows = rows_of(raw, metric, instance=recorded.node, **{label: recorded.device_id})
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


def _signals(raw: RawSeries, recorded: RunDevice, window: Window) -> Signals:
    signals = raw_signals(raw, recorded.node, recorded.device_id)
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


def _idle_power_w(
    recorded: RunDevice, signals: Signals, window: Window, others: Sequence[OtherRun]
) -> Figure | None:
    on_gpu = [
        run for run in others if run.instance == recorded.node and recorded.device_id in run.gpus
    ]
    return integrate.idle_power(signals.power, signals.utilization, _free(signals, window, on_gpu))


def _integral_j(
    recorded: RunDevice,
    raw: RawSeries,
    window: Window,
    signals: Signals | None,
    methods: tuple[str, ...],
) -> float | None:
    """Return the ledger's integral of power, else that of the samples where they cover the run;
    None where the energy is that integral.
    """
    if signals is None:
        return recorded.integrated_j
    if is_summed(methods, imported=raw.imported):
        return None
    if recorded.integrated_j is not None:
        return recorded.integrated_j
    integral = integrate.trapezoid(
        signals.power, window.start_s, window.end_s, raw.spacing_at_rest_s(recorded.node)
    )
    is_covered = integral.covered_s > 0.999 * (window.end_s - window.start_s)
    return integral.energy_j if is_covered else None


def _max_power_w(recorded_w: float | None, window: Window, signals: Signals | None) -> float | None:
    """Return the highest power of the record and of the samples; None without any."""
    peaks_w = [] if recorded_w is None else [recorded_w]
    if signals is not None:
        peaks_w += signals.power.between(window.start_s, window.end_s).value.tolist()
    return max(peaks_w, default=None)


def _last_limit_w(signals: Signals, window: Window) -> float | None:
    limits_w = signals.limit.between(window.start_s, window.end_s).value
    return float(limits_w[-1]) if len(limits_w) else None


def _net(energy: Figure, idle_w: Figure, duration_s: float, window: Window) -> Figure | None:
    """Return the energy above idle; None if a running run's is less than the idle energy of its
    sensor's lag.
    """
    net = integrate.net_energy(energy, idle_w, duration_s)
    return (
        net
        if window.ended or net.half_width is not None or net.number > idle_w.number * _SENSOR_LAG_S
        else None
    )


def _from_raw_samples(
    recorded: RunDevice,
    raw: RawSeries,
    window: Window,
    signals: Signals | None,
    methods: tuple[str, ...],
) -> Figure | None:
    """Return the energy from the raw counter; None for an integrated counter, which lags the power
    by up to 1 s.
    """
    if signals is None or signals.power_range is None:
        return None
    if signals.missing_s or "integral" in methods:
        return None
    age_s = raw.age_s.get(recorded.device_id)
    return integrate.counter_energy(
        signals.counter, window.start_s, window.end_s, signals.power_range, age_s
    )


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


def is_summed(methods: Collection[str], *, imported: bool) -> bool:
    """Return True if the energy is the analyzer's integral of the samples, not a figure from an
    exporter.
    """
    return SCRAPED in methods or (imported and "integral" in methods)


def counted_span(
    device: ReportDevice, raw: RawSeries, window: Window, signals: Signals
) -> tuple[float, float]:
    """Return the window; in an untagged range, the part between the samples of the device's
    counter.
    """
    during = signals.counter.between(window.start_s, window.end_s)
    if not raw.untagged or is_summed(device.methods, imported=raw.imported) or not len(during):
        return window.start_s, window.end_s
    return float(during.t[0]), float(during.t[-1])
