"""Report of a run, from its facts, its raw samples and the inputs of the user.

The headline is the ledger's figure, since the exporter reads the energy at the start and end of the
run more precisely than any scrape. The analyzer's figure from raw samples is a check.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from wattline.contract.metrics import GPU_INFO
from wattline.contract.power_sensors import sensor_window
from wattline.contract.run import COMPONENTS, Run, RunDevice
from wattline.contract.work import SHARE_POLICY
from wattline.figures import Figure, sum_of_correlated, sum_of_one_job
from wattline_analyzer.carbon.best_start import Profile, power_profile
from wattline_analyzer.carbon.checks import (
    carbon_findings,
    places_with_intensity,
    restatement_findings,
)
from wattline_analyzer.carbon.emissions import (
    emissions_at,
    given_intensity_findings,
    ledger_emissions,
    sci_findings,
    software_carbon_intensity,
)
from wattline_analyzer.carbon.intensity import carbon_slots
from wattline_analyzer.carbon.restate import EnergyOverTime, emissions_by_slot, restate
from wattline_analyzer.core.conditions import is_unused
from wattline_analyzer.core.devices import (
    SCRAPED,
    DeviceKey,
    GpuModel,
    ReportDevice,
    UncertaintyBudget,
)
from wattline_analyzer.core.emissions import CarbonSlot, Emission, Hardware, Restatement, Sci
from wattline_analyzer.core.phases import measurable_phases
from wattline_analyzer.core.recorded_run import RecordedRun, RunScrapes
from wattline_analyzer.core.run_report import (
    FORMAT_LABEL,
    NO_INPUTS,
    Boundary,
    Calibrated,
    Finding,
    Report,
    ReportPhase,
    RunEnergies,
    RunOrigin,
    UserInputs,
    Work,
    ordered_findings,
)
from wattline_analyzer.core.timeline import RunTimes, Window
from wattline_analyzer.report import aliasing
from wattline_analyzer.report.assess_imported import averaging_s, import_findings
from wattline_analyzer.report.boundaries import energy_boundaries
from wattline_analyzer.report.calibration import calibrate, calibration_findings
from wattline_analyzer.report.checks import coverage_findings, device_findings, gpu_findings
from wattline_analyzer.report.clock import clock_findings, clock_offsets, usable_samples
from wattline_analyzer.report.devices import (
    DeviceSignals,
    RawSeries,
    Signals,
    device_order,
    is_summed,
    measure_device,
)
from wattline_analyzer.report.energy_over_time import energy_tracks
from wattline_analyzer.report.error_budget import device_budget, gpu_budget
from wattline_analyzer.report.suspicions import suspect_findings, suspicions


class NoEnergyError(Exception):
    """Running run without the energy of any device."""


@dataclass(frozen=True, slots=True)
class _Measured:
    """The recorded facts of a run, its energies by ledger and raw samples, and the findings about
    both.
    """

    run: Run
    scrapes: RunScrapes
    origin: RunOrigin
    times: RunTimes
    raw: RawSeries
    devices: tuple[DeviceSignals, ...]
    energies: RunEnergies
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Checks:
    """The uncertainty budgets, and the findings about devices and intensities."""

    budgets: Mapping[DeviceKey, UncertaintyBudget]
    findings: tuple[Finding, ...]


def assess(recorded: RecordedRun, inputs: UserInputs = NO_INPUTS) -> Report:
    """Return the report. Raises NoEnergyError, and CalibrationError if the calibrations are all of
    other GPUs.
    """
    measured = _measure(recorded)
    energies = measured.energies
    times = measured.times
    work = tuple(_done_work(measured.run, energies, times))
    over_time = _energy_over_time(measured)
    counted = _recorded_emissions(measured, over_time, inputs.grams_per_kwh)
    restated = tuple(_restated(over_time, counted, inputs))
    uncounted = emissions_by_slot(over_time) if measured.origin.untagged else []
    emissions = (*counted, *uncounted, *(one for each in restated for one in each.emissions))
    calibrated = calibrate(energies, work, inputs.calibrations) if inputs.calibrations else None
    checks = _check(measured, over_time.slots, calibrated, inputs)
    boundaries = energy_boundaries(energies, work, times, inputs.pue)
    sci = _intensities(measured, boundaries, emissions, restated, inputs.hardware)
    findings = [
        *measured.findings,
        *(
            calibration_findings(energies.gpus, calibrated, inputs.calibrations)
            if calibrated
            else []
        ),
        *checks.findings,
        *given_intensity_findings(inputs.grams_per_kwh),
        *restatement_findings(restated, inputs.past),
        *(sci_findings(sci) if inputs.hardware else []),
    ]
    return Report(
        run=measured.run,
        origin=measured.origin,
        times=times,
        energies=energies,
        work=work,
        emissions=emissions,
        carbon_slots=over_time.slots,
        budgets=checks.budgets,
        findings=ordered_findings(findings),
        boundaries=boundaries,
        price=inputs.price,
        restated=restated,
        sci=sci,
        calibrated=calibrated,
    )


def _measure(recorded: RecordedRun) -> _Measured:
    run = recorded.run
    scrapes = recorded.scrapes
    offsets = clock_offsets(scrapes, recorded.raw)
    known = offsets.windows(scrapes)
    mean_s = averaging_s(run.labels)
    raw = RawSeries(
        usable_samples(recorded.raw, known),
        recorded.exact,
        recorded.age_s,
        recorded.untagged,
        mean_s,
    )
    devices = tuple(
        measure_device(recorded, device, raw, known)
        for device in sorted(run.devices, key=lambda device: device_order(run, device, raw))
        if device.energy_j.value is not None
    )
    if not devices and run.state != "ended":
        raise _no_energy(recorded)
    times = RunTimes(known)
    energies, phase_findings = _run_energies(
        run,
        [one.device for one in devices],
        is_sampled=recorded.untagged or FORMAT_LABEL in run.labels,
    )
    findings = (
        *_run_findings(recorded, times, energies),
        *import_findings(run, energies),
        *_record_findings(recorded),
        *clock_findings(known, offsets, recorded.clock_set_s, recorded.source),
        *phase_findings,
    )
    origin = RunOrigin(recorded.source, recorded.untagged)
    return _Measured(run, scrapes, origin, times, raw, devices, energies, findings)


def _run_energies(
    run: Run, devices: Sequence[ReportDevice], *, is_sampled: bool
) -> tuple[RunEnergies, list[Finding]]:
    """Return the energies by ledger and devices, and a finding about phases that are too short."""
    estimated = {device.component for device in devices if device.estimated}
    working = {phase.name for phase in run.phases if any(phase.work.values())}
    phases, findings = measurable_phases(tuple(_phases(run, estimated)), devices, working)
    unknown = tuple(device for device in run.devices if device.energy_j.value is None)
    by_component: dict[str, Figure] = {
        component: sum_of_one_job(
            [
                *(_with_accuracy(device) for device in devices if device.component == component),
                *(device.energy_j for device in unknown if device.component == component),
            ]
        )
        for component in COMPONENTS
        if any(device.component == component for device in devices)
    }
    gpus = [device for device in devices if device.component == "gpu"]
    sampled = [gpu.from_raw_samples for gpu in gpus if gpu.from_raw_samples]
    energies = RunEnergies(
        devices=tuple(devices),
        by_component=by_component,
        phases=phases,
        from_raw_samples=sum_of_correlated(sampled)
        if sampled and len(sampled) == len(gpus) and not unknown
        else None,
        is_sampled=is_sampled,
        unknown=unknown,
    )
    return energies, findings


def _with_accuracy(device: ReportDevice) -> Figure:
    """Return the energy of a device with the systematic error of its sensor, which only that of
    GPUs has.
    """
    if device.component != "gpu":
        return device.energy
    return GpuModel(device.name, device.architecture).with_accuracy(device.energy)


def _phases(run: Run, estimated: Collection[str]) -> Iterator[ReportPhase]:
    """Yield the phases; `estimated` components have no interval, since the error of a model is not
    a sensor's.
    """
    for phase in run.phases:
        energies = {
            component: replace(energy, half_width=None) if component in estimated else energy
            for component, energy in phase.energies_j.items()
        }
        yield ReportPhase(phase.name, phase.duration_s, energies)


def _done_work(run: Run, energies: RunEnergies, times: RunTimes) -> Iterator[Work]:
    """Yield the work by unit with its rate and energy per unit.

    During the run, the amounts by phase lag behind the total.
    """
    measured = _measured_run(run, energies, times)
    durations_s = {phase.name: phase.duration_s for phase in measured.phases}
    for unit, amount in run.amounts.items():
        phases = measured.phases_of_unit(unit, shortest_phase_s=0.0)
        each = measured.unit_energy(unit, shortest_phase_s=0.0)
        duration_s = times.duration_s
        if phases:
            duration_s = math.fsum(durations_s[name] for name in phases)
        yield Work(
            unit,
            amount,
            amount / duration_s if duration_s > 0 else None,
            each.energy if each else None,
            phases,
            each.whole_device if each else None,
        )


def _measured_run(run: Run, energies: RunEnergies, times: RunTimes) -> Run:
    """Return the run with the energies of the report.

    Each component is one device, since the sum of its devices depends on how they were measured.
    Phases that are too short for a sensor have no energy already.
    """
    in_phases = {phase.name: phase.energy for phase in energies.phases}
    return replace(
        run,
        state="running" if times.ended_at_s is None else "ended",
        duration_s=times.duration_s,
        devices=tuple(
            RunDevice(
                component,
                "",
                energies.by_component[component],
                attributed_j=energies.shares.get(component, {}).get(SHARE_POLICY),
            )
            for component in COMPONENTS
            if component in energies.by_component
        ),
        phases=tuple(
            replace(phase, energies_j=in_phases.get(phase.name, {})) for phase in run.phases
        ),
    )


def _no_energy(recorded: RecordedRun) -> NoEnergyError:
    return NoEnergyError(
        f"run {recorded.run_id} has no energy at {recorded.source}: {_missing_energy(recorded)}"
    )


def _missing_energy(recorded: RecordedRun) -> str:
    """Return the cause for which a run has no energy."""
    has_gpus = GPU_INFO.name in recorded.raw.distinct("metric")
    gpus = (
        "none of its processes used a GPU"
        if has_gpus
        else "the exporter found no GPU on this machine"
    )
    return f"{gpus}, and CPU energy is not readable"


def _unknown_devices(run: Run, energies: RunEnergies) -> Iterator[Finding]:
    """Yield a finding for each device that a sum of energies lacks."""
    for device in energies.unknown:
        gpu = run.gpu(device.device_id)
        name = f"GPU {gpu.gpu}" if gpu else f"{device.component.upper()} {device.device_id}"
        subject = f"{name} ({device.node})" if device.node else name
        text = f"its energy is unknown: {device.energy_j.reason}; sums are lower limits"
        yield Finding("warning", "energy_unknown", subject, text)


def _run_findings(
    recorded: RecordedRun, times: RunTimes, energies: RunEnergies
) -> Iterator[Finding]:
    run = recorded.run
    if energies.simulated:
        names = sorted({gpu.name for gpu in energies.gpus})
        text = f"SIMULATED hardware ({', '.join(names)}): the figures do not describe a real GPU"
        yield Finding("warning", "simulated", "", text)
    if times.ended_at_s is None:
        cause = "the run has not ended" if recorded.is_open else "the end of the run is unknown"
        yield Finding("warning", "not_ended", "", f"{cause}: the figures are from its last scrape")
    if recorded.requests:
        text = (
            f"{recorded.requests} were reported; their energies: "
            f"analyzer requests --run-id {run.run_id}"
        )
        yield Finding("note", "requests", "", text)
    headline = energies.headline
    is_covered = all(
        device.is_covered
        for device in energies.devices
        if device.component == energies.headline_component
    )
    if (
        headline
        and is_covered
        and headline.half_width is not None
        and 0 < headline.number <= headline.half_width
    ):
        text = (
            "the run is too short to measure: its uncertainty is larger than its energy; run "
            "it for longer"
        )
        yield Finding("warning", "run_too_short", "", text)
    if not energies.devices:
        text = (
            "no energy: the imported files hold no power; import them together with a power log of "
            "that time"
            if FORMAT_LABEL in run.labels
            else f"no energy was measured: {_missing_energy(recorded)}; see exporter check on the "
            "node"
        )
        yield Finding("warning", "no_energy", "", text)
    if energies.devices:
        yield from _unknown_devices(run, energies)
    for note in run.notes:  # series have none: those of `combine`
        yield Finding("warning", "emissions_left_out", "", note)
    yield from _outcome_findings(run, recorded.scrapes)


def _outcome_findings(run: Run, scrapes: RunScrapes) -> Iterator[Finding]:
    """Yield a finding for a run that did not succeed, on several nodes for each of them."""
    words = {"failed": "failed", "interrupted": "was interrupted"}
    if len(scrapes.windows) == 1:
        if run.outcome in words:
            text = f"the run {words[run.outcome]}: its work may be incomplete"
            yield Finding("warning", "outcome", "", text)
        return
    open_on = [node for node, window in scrapes.windows.items() if not window.ended]
    rest = f", and has not ended on {', '.join(open_on)}" if open_on else ""
    for node, outcome in scrapes.outcomes.items():
        if outcome in words:
            text = f"the run {words[outcome]} on this node{rest}: its work may be incomplete"
            yield Finding("warning", "outcome", node, text)


def _record_findings(recorded: RecordedRun) -> Iterator[Finding]:
    for unit in recorded.run.misreported_work:
        text = (
            f"the run reported {unit} as work: a score or a time is a result, so it has no "
            "energy per unit"
        )
        yield Finding("note", "work_is_result", unit, text)
    scrapes = recorded.scrapes
    for alias, first in scrapes.aliases.items():
        text = f"same GPUs or start as {first}: it is the same node and is not counted again"
        if alias in scrapes.moved_at:
            text = f"earlier address of {first}: both are one node, which is counted once"
        yield Finding("warning", "alias", alias, text)


def _energy_over_time(measured: _Measured) -> EnergyOverTime:
    windows = measured.times.windows
    tracks = energy_tracks(measured.raw, measured.run.run_id, measured.energies.devices, windows)
    windows_s = {instance: (window.start_s, window.end_s) for instance, window in windows.items()}
    slots = tuple(carbon_slots(measured.raw.table, tracks, windows_s))
    return EnergyOverTime(measured.energies, windows, tracks, slots)


def _recorded_emissions(
    measured: _Measured, over_time: EnergyOverTime, grams_per_kwh: float | None
) -> list[Emission]:
    """Return the emissions that the exporters counted, and those by the user's intensity.

    The exporter counts the emissions of a running run some seconds later than its energy. Those of
    its slots replace them where the intensities are known.
    """
    energies = measured.energies
    counted = ledger_emissions(measured.run.emissions, energies.by_component, energies.estimated)
    if measured.times.ended_at_s is None and not measured.origin.untagged:
        by_slot = emissions_by_slot(over_time)
        known = {(one.component, one.basis) for one in by_slot}
        counted = [
            *(one for one in counted if (one.component, one.basis) not in known),
            *by_slot,
        ]
    if grams_per_kwh is None:
        return counted
    return [*counted, *emissions_at(energies.by_component, grams_per_kwh, energies.estimated)]


def _restated(
    over_time: EnergyOverTime, recorded: Sequence[Emission], inputs: UserInputs
) -> Iterator[Restatement]:
    for past in inputs.past:
        if not past.problem:
            fallback = inputs.grams_per_kwh if past.basis == "average" else None
            yield restate(over_time, past, recorded, fallback)


def _intensities(
    measured: _Measured,
    boundaries: Sequence[Boundary],
    emissions: Sequence[Emission],
    restated: Sequence[Restatement],
    hardware: Hardware | None,
) -> tuple[Sci, ...]:
    """Return the Software Carbon Intensities; none without the user's hardware."""
    if hardware is None:
        return ()
    embodied_g = hardware.embodied_g(measured.times.duration_s)
    return software_carbon_intensity(measured.energies, boundaries, emissions, restated, embodied_g)


def _check(
    measured: _Measured,
    slots: Sequence[CarbonSlot],
    calibrated: Calibrated | None,
    inputs: UserInputs,
) -> _Checks:
    raw = measured.raw
    budgets: dict[DeviceKey, UncertaintyBudget] = {}
    calibrated_gpus = calibrated.gpus if calibrated else {}
    findings: list[Finding] = []
    for one in measured.devices:
        device = one.device
        findings += coverage_findings(device, untagged=raw.untagged)
        budget = device_budget(device)
        if one.signals is not None:
            budget, more = _check_gpu(device, raw, one.window, one.signals)
            if device.key in calibrated_gpus:
                budget = replace(budget, residual_j=calibrated_gpus[device.key].residual_j)
            findings += more
        if budget is not None:
            budgets[device.key] = budget
        findings += device_findings(device, one.other_runs)
        is_one_of_several = one.signals is not None and len(measured.energies.gpus) > 1
        if is_one_of_several and is_unused(raw.table, device, one.window):
            text = (
                "its utilization was 0 %, but its energy counts for the run: name the GPUs "
                "that are used with --gpus"
            )
            findings.append(Finding("warning", "unused_gpu", device.label, text))
    emitting = places_with_intensity(raw.table) if raw.untagged else measured.scrapes.emitting
    is_given = inputs.grams_per_kwh is not None
    findings += carbon_findings(raw.table, measured.times.windows, slots, emitting, given=is_given)
    return _Checks(budgets, tuple(findings))


def _check_gpu(
    device: ReportDevice, raw: RawSeries, window: Window, signals: Signals
) -> tuple[UncertaintyBudget, list[Finding]]:
    findings = list(gpu_findings(device, raw, window, signals))
    suspected = suspicions(raw.table, window, device.instance, device.device)
    power = signals.power.between(window.start_s, window.end_s)
    beat = None
    about_aliasing = []
    if "aliasing" not in suspected and not device.simulated:
        beat = aliasing.find_beat(power)
        sensor = sensor_window(device.name, device.architecture)
        counted = not {"integral", SCRAPED} & set(device.methods)
        about_aliasing = aliasing.aliasing_findings(
            device.label, beat, sensor, power, counted=counted
        )
    summed_s = (raw.mean_s or 0.0) if is_summed(device.methods, imported=raw.imported) else None
    suspected_beat = beat if about_aliasing else None
    budget = gpu_budget(device, signals.power, window, suspected_beat, summed_s)
    return budget, [*findings, *about_aliasing, *suspect_findings(device.label, suspected)]


def run_power_profile(recorded: RecordedRun, report: Report) -> Profile | None:
    """Return the energy over time within the widest measured boundary; None without a boundary or a
    duration.
    """
    measured = [boundary for boundary in report.boundaries if boundary.pue is None]
    if not measured:
        return None
    raw = RawSeries(recorded.raw, recorded.exact)
    tracks = energy_tracks(raw, report.run_id, report.devices, report.times.windows)
    return power_profile(report.times, measured[-1], tracks)
