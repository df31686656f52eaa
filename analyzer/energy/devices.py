"""The devices of a run: the ledger's energy, the analyzer's own, idle power, and what to know about them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from analyzer.assess import imported
from analyzer.energy import attribution as shares
from analyzer.energy import certainty, doubtful, states
from analyzer.energy import checks as quality
from analyzer.energy import integrate as energy
from analyzer.energy.checks import Finding
from analyzer.model.interval import Interval
from analyzer.model.report import Device
from analyzer.model.samples import Row, RunFrames, Samples, last, rests_s, samples
from analyzer.model.timeline import OtherRun, Window, free_of, other_runs
from exporter.contract import metrics as m
from exporter.contract.power_sensors import systematic_band

SIMULATED = certainty.SIMULATED


@dataclass(frozen=True, slots=True)
class Signals:
    """The raw series of one GPU; empty where they are `mixed`, of two times that cannot be told apart.

    `missing_s`: for how long after the run's begin the source knows nothing, which only a ledger does.
    """

    power: Samples
    counter: Samples
    utilization: Samples
    limit: Samples
    mixed: bool = False
    missing_s: float = 0.0

    @property
    def highest_limit_w(self) -> float | None:
        """A cap may come and go while we look."""
        return float(self.limit.value.max()) if len(self.limit) else None


def assess_devices(frames: RunFrames, windows: Mapping[str, Window]) -> tuple[list[Device], list[Finding]]:
    """The devices in the order of instance, component and number, and the findings about them."""
    others = other_runs(frames)
    found: list[Device] = []
    findings: list[Finding] = []
    for row in sorted(last(frames.ledger, m.RUN_ENERGY, run_id=frames.run_id), key=lambda row: _order(frames, row)):
        if row.instance not in windows:
            continue
        window = windows[row.instance]
        beside = [run for run in others if run.instance == row.instance and run.overlaps(window)]
        device = _from_ledger(frames, row, window, several=len(windows) > 1, beside=beside)
        findings += quality.coverage_findings(device.label, device.covered_ratio)
        if device.component == "gpu":
            device, more = _gpu(frames, device, window, others)
            findings += more
        else:
            device = replace(device, budget=certainty.of_other(device))
        device = _divided(frames, device)
        findings += quality.method_findings(device.label, device.methods)
        findings += _shared_findings(device, beside)
        found.append(device)
    return found, findings


def _order(frames: RunFrames, row: Row) -> tuple[str, int, int, str]:
    component = ("gpu", "cpu", "dram").index(row.labels["component"])
    number = _gpu_number(frames, row) if component == 0 else row.labels["device"]
    return row.instance, component, int(number) if number.isdecimal() else 0, row.labels["device"]


def _gpu_number(frames: RunFrames, row: Row) -> str:
    """The GPU's index; its UUID where the exporter does not say."""
    rows = last(frames.ledger, m.RUN_GPU_INFO, uuid=row.labels["device"])
    rows += last(frames.raw, m.GPU_INFO, uuid=row.labels["device"])
    return next((r.labels["gpu"] for r in rows if r.instance == row.instance), row.labels["device"])


def _value(frames: RunFrames, metric: m.Metric, instance: str, **labels: str) -> float | None:
    rows = last(frames.ledger, metric, run_id=frames.run_id, instance=instance, **labels)
    return rows[0].value if rows else None


def _from_ledger(frames: RunFrames, row: Row, window: Window, *, several: bool, beside: list[OtherRun]) -> Device:
    component, device = row.labels["component"], row.labels["device"]
    where = {"component": component, "device": device}
    is_gpu = component == "gpu"
    info = last(frames.raw, m.GPU_INFO, instance=row.instance, uuid=device) if is_gpu else []
    number = _gpu_number(frames, row) if is_gpu else device
    methods = states.methods(frames, window, row.instance, component, device)
    half_j = None if states.ESTIMATE in methods else _value(frames, m.RUN_ENERGY_UNCERTAINTY, row.instance, **where)
    covered_ratio = _value(frames, m.RUN_COVERED_RATIO, row.instance, **where)
    return Device(
        instance=row.instance,
        component=component,
        device=device,
        label=f"{row.instance + ' ' if several else ''}{component.upper()} {number}",
        name=info[0].labels.get("name", "") if info else "",
        energy=Interval(row.value, half_j),
        duration_s=window.duration_s * imported.told_share(frames, covered_ratio),
        integral_j=_value(frames, m.RUN_INTEGRATED_ENERGY, row.instance, uuid=device) if is_gpu else None,
        max_power_w=_value(frames, m.RUN_POWER_MAX, row.instance, uuid=device) if is_gpu else None,
        covered_ratio=covered_ratio,
        shared=any(not is_gpu or device in run.gpus for run in beside),
        methods=methods,
        architecture=info[0].labels.get("architecture", "") if info else "",
    )


def _divided(frames: RunFrames, device: Device) -> Device:
    attributed_j = shares.attributed(frames, device.instance, device.component, device.device)
    mean_w = device.mean_power_w.value if device.mean_power_w else 0.0
    is_divided = shares.is_divided(device.energy, attributed_j, mean_w, device.max_power_w)
    return replace(device, attributed_j=attributed_j, divided=is_divided)


def _shared_findings(device: Device, beside: list[OtherRun]) -> list[Finding]:
    is_gpu = device.component == "gpu"
    what = "the whole device" if is_gpu else "the whole node"
    share = "; the run's share stands beside it" if device.divided else ""
    if device.shared:
        names = ", ".join(sorted(run.run_id for run in beside if not is_gpu or device.device in run.gpus))
        text = f"energy of {what}: it was in use by {names} at the same time{share}"
        return [Finding("warning", "shared", device.label, text)]
    if device.divided:
        text = f"energy of {what}: others than this run's processes used it, or held it before they were seen{share}"
        return [Finding("note", "divided", device.label, text)]
    return []


def signals(frames: RunFrames, instance: str, uuid: str) -> Signals:
    where = {"instance": instance, "uuid": uuid}
    return Signals(
        replace(samples(frames.raw, m.GPU_POWER, **where), exact=frames.exact.get((instance, uuid))),
        samples(frames.raw, m.GPU_ENERGY, **where),
        samples(frames.raw, m.GPU_UTILIZATION, engine="gpu", **where),
        samples(frames.raw, m.GPU_POWER_LIMIT, kind="enforced", **where),
    )


def _looked_at(frames: RunFrames, device: Device, window: Window, *, of_file: bool) -> Signals:
    seen = signals(frames, device.instance, device.device)
    possible = energy.power_range(seen.power, seen.highest_limit_w)
    if possible is not None and not energy.is_one_line(seen.counter, possible):
        nothing = samples(frames.raw.iloc[:0], m.GPU_POWER)
        return Signals(nothing, nothing, nothing, nothing, mixed=True)
    if of_file or frames.untagged:
        return seen
    return replace(seen, missing_s=doubtful.missing_begin_s(seen.counter if len(seen.counter) else seen.power, window))


def _own(frames: RunFrames, device: Device, window: Window, seen: Signals) -> Interval | None:
    """By the raw counter; an integrated one trails the power by up to a second."""
    possible = energy.power_range(seen.power, seen.highest_limit_w)
    if possible is None or seen.missing_s or "integral" in device.methods:
        return None
    age_s = frames.age_s.get(device.device)
    return energy.counter_energy(seen.counter, window.start_s, window.end_s, possible, age_s)


def _gpu(frames: RunFrames, device: Device, window: Window, others: list[OtherRun]) -> tuple[Device, list[Finding]]:
    """The device with what the raw samples add, and the findings about those samples."""
    of_file = imported.is_of_file(frames)
    seen = _looked_at(frames, device, window, of_file=of_file)
    beside = [run for run in others if run.instance == device.instance and device.device in run.gpus]
    idle_w = None if device.shared else energy.idle_power(seen.power, seen.utilization, _free(seen, window, beside))
    during_w = seen.power.between(window.start_s, window.end_s).value
    least_s = rests_s(device.instance, untagged=frames.untagged)
    integral = energy.trapezoid(seen.power, window.start_s, window.end_s, least_s)
    seen_throughout = integral.covered_s > 0.999 * (window.end_s - window.start_s)
    limits_w = seen.limit.between(window.start_s, window.end_s).value
    peaks_w = [*([] if device.max_power_w is None else [device.max_power_w]), *during_w.tolist()]
    measured = replace(
        device,
        integral_j=integral.energy_j if device.integral_j is None and seen_throughout else device.integral_j,
        own=_own(frames, device, window, seen),
        idle_power_w=idle_w,
        net=energy.net_energy(device.energy, idle_w, device.duration_s) if idle_w else None,
        max_power_w=max(peaks_w, default=None),
        power_limit_w=float(limits_w[-1]) if len(limits_w) else None,
    )
    findings = _gpu_findings(measured, window, seen)
    if not seen.mixed and (len(seen.power) or not of_file):  # beside a file's own counter there may be no power at all
        missing = doubtful.Missing(seen.missing_s, energy.SENSOR_S if of_file else least_s)
        findings += doubtful.gap_findings(measured, window, seen.power, missing, of_file=of_file)
    findings += doubtful.contradiction_findings(frames, device, window) if not seen.mixed else []
    suspicions = states.suspicions(frames, window, device.instance, device.device)
    budget, more = certainty.of_gpu(
        measured,
        seen.power.between(window.start_s, window.end_s),
        window,
        summed=states.SCRAPED in device.methods or (of_file and "integral" in device.methods),
        suspected="aliasing" in suspicions,
    )
    findings += [*more, *quality.suspect_findings(device.label, suspicions)]
    return replace(measured, budget=budget), findings


def _free(seen: Signals, window: Window, others: list[OtherRun]) -> list[tuple[float, float]]:
    """The stretches before and after the run in which the GPU was in no other."""
    if not len(seen.power):
        return []
    taken = [(run.start_s, run.end_s) for run in others]
    before = free_of(float(seen.power.t[0]), window.start_s, taken)
    after = free_of(window.end_s, float(seen.power.t[-1]), taken) if window.ended else []
    return [*before[-1:], *after[:1]]


def _gpu_findings(device: Device, window: Window, seen: Signals) -> list[Finding]:
    label, start_s, end_s = device.label, window.start_s, window.end_s
    simulated = device.name.startswith(SIMULATED)
    during = seen.power.between(start_s, end_s)
    limits_j = device.own.ends if device.own else None
    falls = seen.counter.t[1:][np.diff(seen.counter.value) < 0]
    findings = [
        *quality.stuck_findings(label, during, seen.utilization, seen.counter, simulated=simulated),
        *quality.impossible_findings(label, during, seen.highest_limit_w),
        *quality.mixed_findings(label, mixed=seen.mixed),
        *doubtful.missing_begin_findings(label, seen.missing_s),
        *quality.reset_findings(label, [float(t) for t in falls if start_s < t <= end_s], start_s),
        *quality.disagreement_findings(label, device.energy.value, device.integral_j, window.duration_s),
        *quality.outside_findings(label, device.energy.value, device.energy.half, limits_j),
    ]
    if not simulated:
        findings.append(quality.band_finding(label, systematic_band(device.name, device.architecture)))
    return findings


def energy_lines(frames: RunFrames, found: list[Device]) -> dict[str, list[Samples]]:
    """By instance, the counters of the run's GPUs, made to rise; those without two samples are left out."""
    lines: dict[str, list[Samples]] = {}
    for device in found:
        seen = signals(frames, device.instance, device.device)
        possible = energy.power_range(seen.power, seen.highest_limit_w)
        if device.component == "gpu" and possible and len(seen.counter) > 1:
            line = energy.unwrap(seen.counter, possible)
            lines.setdefault(device.instance, []).append(Samples(line.t, line.energy_j))
    return lines
