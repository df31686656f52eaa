"""Report of a run in four stages: measured, attributed, checked, extended.

The headline is the ledger's figure, since the exporter reads the energy at the start and end of the
run more precisely than any scrape. The analyzer's figure from raw samples is a check. The last
stage adds the user's inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from wattline.contract.metrics import GPU_INFO
from wattline.contract.power_sensors import sensor_window
from wattline_analyzer.carbon.best_start import Profile, power_profile
from wattline_analyzer.carbon.checks import (
    carbon_findings,
    places_with_intensity,
    restatement_findings,
)
from wattline_analyzer.carbon.emissions import (
    emissions_at,
    given_intensity_findings,
    sci_findings,
    software_carbon_intensity,
)
from wattline_analyzer.carbon.intensity import carbon_slots
from wattline_analyzer.carbon.restate import emissions_by_slot, restate
from wattline_analyzer.core.conditions import is_unused
from wattline_analyzer.core.devices import (
    SCRAPED,
    DeviceKey,
    ReportDevice,
    UncertaintyBudget,
    fields_of,
)
from wattline_analyzer.core.emissions import Emission, Restatement
from wattline_analyzer.core.run_ledger import RunLedger, parse_ledger
from wattline_analyzer.core.run_report import (
    FORMAT_LABEL,
    NO_INPUTS,
    AttributedRun,
    Calibrated,
    Finding,
    MeasuredRun,
    Report,
    UserInputs,
    ordered_findings,
)
from wattline_analyzer.core.sample_table import RunFrames
from wattline_analyzer.core.timeline import EnergyTracks, Window, other_runs, windows
from wattline_analyzer.report import aliasing
from wattline_analyzer.report.assess_imported import averaging_s, import_findings
from wattline_analyzer.report.boundaries import energy_boundaries
from wattline_analyzer.report.calibration import calibrate, calibration_findings
from wattline_analyzer.report.checks import coverage_findings, device_findings, gpu_findings
from wattline_analyzer.report.clock import clock_findings, clock_offsets
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
from wattline_analyzer.report.measure import RunOrigin, attributed_run, measured_run
from wattline_analyzer.report.suspicions import suspect_findings, suspicions


class NoEnergyError(Exception):
    """Running run without the energy of any device, or a run without a start on any node."""


@dataclass(frozen=True, slots=True)
class _Measured:
    """The first stage: the run, its devices with their signals, and findings about the run."""

    ledger: RunLedger
    raw: RawSeries
    windows: Mapping[str, Window]
    devices: tuple[DeviceSignals, ...]
    run: MeasuredRun
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Attributed:
    """The second stage: the run with shares, work and emissions, and its energies over time."""

    run: AttributedRun
    tracks: EnergyTracks


@dataclass(frozen=True, slots=True)
class _Checked:
    """The third stage: the uncertainty budgets and the findings."""

    budgets: Mapping[DeviceKey, UncertaintyBudget]
    findings: tuple[Finding, ...]
    carbon_findings: tuple[Finding, ...]


def assess(frames: RunFrames, inputs: UserInputs = NO_INPUTS) -> Report:
    """Return the report. Raises NoEnergyError, and CalibrationError if the calibrations are all of
    other GPUs.
    """
    measured = _measure(frames)
    attributed = _attribute(measured, inputs)
    calibrated = calibrate(attributed.run, inputs.calibrations) if inputs.calibrations else None
    checked = _check(measured, attributed.run, calibrated, inputs)
    return _extend(measured, attributed, checked, calibrated, inputs)


def _measure(frames: RunFrames) -> _Measured:
    ledger = parse_ledger(frames.ledger, frames.run_id, untagged=frames.untagged)
    offsets = clock_offsets(ledger, frames.raw)
    known = offsets.windows(ledger)
    mean_s = averaging_s(ledger.labels)
    raw = RawSeries(offsets.usable(frames.raw), frames.exact, frames.age_s, frames.untagged, mean_s)
    others = other_runs(frames.others, frames.run_id)
    devices = tuple(
        measure_device(device, raw, known[device.instance], others, several=len(known) > 1)
        for device in sorted(ledger.devices, key=lambda device: device_order(device, raw))
        if device.instance in known
    )
    if not devices and not (known and all(window.ended for window in known.values())):
        raise NoEnergyError(
            f"run {frames.run_id} has no energy at {frames.source}: {_missing_energy(frames)}"
        )
    found = [one.device for one in devices]
    run, phase_findings = measured_run(
        ledger, RunOrigin(frames.source, frames.untagged), known, found
    )
    findings = (
        *_run_findings(run, frames),
        *import_findings(run),
        *_ledger_findings(ledger),
        *clock_findings(ledger, offsets, frames.clock_set_s, frames.source),
        *phase_findings,
    )
    return _Measured(ledger, raw, known, devices, run, findings)


def _missing_energy(frames: RunFrames) -> str:
    """Return the cause for which a run has no energy."""
    has_gpus = GPU_INFO.name in frames.raw.distinct("metric")
    gpus = (
        "none of its processes used a GPU"
        if has_gpus
        else "the exporter found no GPU on this machine"
    )
    return f"{gpus}, and CPU energy is not readable"


def _run_findings(run: MeasuredRun, frames: RunFrames) -> Iterator[Finding]:
    if run.simulated:
        names = sorted({device.name for device in run.devices if device.component == "gpu"})
        text = f"SIMULATED hardware ({', '.join(names)}): the figures do not describe a real GPU"
        yield Finding("warning", "simulated", "", text)
    if run.ended_at_s is None:
        cause = "the run has not ended" if frames.is_open else "the end of the run is unknown"
        yield Finding("warning", "not_ended", "", f"{cause}: the figures are from its last scrape")
    if frames.requests:
        text = (
            f"{frames.requests} were reported; their energies: analyzer requests --run-id "
            f"{run.run_id}"
        )
        yield Finding("note", "requests", "", text)
    headline, mine = run.headline, next(iter(run.energy), "")
    is_covered = all(device.is_covered for device in run.devices if device.component == mine)
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
    if not run.devices:
        text = (
            "no energy: the imported files hold no power; import them together with a power log of "
            "that time"
            if FORMAT_LABEL in run.labels
            else f"no energy was measured: {_missing_energy(frames)}; see exporter check on the "
            "node"
        )
        yield Finding("warning", "no_energy", "", text)
    if run.outcome in ("failed", "interrupted"):
        ended = "failed" if run.outcome == "failed" else "was interrupted"
        yield Finding("warning", "outcome", "", f"the run {ended}: its work may be incomplete")


def _ledger_findings(ledger: RunLedger) -> Iterator[Finding]:
    for unit in ledger.misreported_work:
        text = (
            f"the run reported {unit} as work: a score or a time is a result, so it has no "
            "energy per unit"
        )
        yield Finding("note", "work_is_result", unit, text)
    for alias, first in ledger.aliases.items():
        text = f"same GPUs or start as {first}: it is the same node and is not counted again"
        yield Finding("warning", "alias", alias, text)


def _attribute(measured: _Measured, inputs: UserInputs) -> _Attributed:
    run, ledger = measured.run, measured.ledger
    tracks = energy_tracks(measured.raw, run.run_id, run.devices, measured.windows)
    windows_s = {
        instance: (window.start_s, window.end_s) for instance, window in measured.windows.items()
    }
    slots = tuple(carbon_slots(measured.raw.table, tracks, windows_s))
    by_user: list[Emission] = []
    if inputs.grams_per_kwh is not None:
        by_user = emissions_at(run.energy, inputs.grams_per_kwh, run.estimated)
    attributed = attributed_run(run, ledger, slots, by_user)
    if run.ended_at_s is None and not run.untagged:
        attributed = replace(
            attributed, emissions=_present_emissions(attributed, measured.windows, tracks)
        )
    return _Attributed(attributed, tracks)


def _present_emissions(
    run: AttributedRun, windows: Mapping[str, Window], tracks: EnergyTracks
) -> tuple[Emission, ...]:
    """Return the emissions of a run without an end, of the same time as its energy.

    The exporter counts the emissions of a running run some seconds later than its energy. Those of
    its slots replace them where the intensities are known.
    """
    by_slot = emissions_by_slot(run, windows, tracks)
    known = {(one.component, one.basis) for one in by_slot}
    late = [
        one
        for one in run.emissions
        if one.origin == "ledger" and (one.component, one.basis) not in known
    ]
    return (*late, *by_slot, *(one for one in run.emissions if one.origin != "ledger"))


def _check(
    measured: _Measured, run: AttributedRun, calibrated: Calibrated | None, inputs: UserInputs
) -> _Checked:
    budgets: dict[DeviceKey, UncertaintyBudget] = {}
    calibrated_gpus = calibrated.gpus if calibrated else {}
    findings: list[Finding] = []
    for one in measured.devices:
        device = one.device
        findings += coverage_findings(device, untagged=run.untagged)
        budget = device_budget(device)
        if one.signals is not None:
            budget, more = _check_gpu(device, measured.raw, one.window, one.signals)
            if device.key in calibrated_gpus:
                budget = replace(budget, residual_j=calibrated_gpus[device.key].residual_j)
            findings += more
        if budget is not None:
            budgets[device.key] = budget
        findings += device_findings(device, one.other_runs)
        is_one_of_several = (
            one.signals is not None
            and len([gpu for gpu in run.devices if gpu.component == "gpu"]) > 1
        )
        if is_one_of_several and is_unused(measured.raw.table, device, one.window):
            text = (
                "its utilization was 0 %, but its energy counts for the run: name the GPUs "
                "that are used with --gpus"
            )
            findings.append(Finding("warning", "unused_gpu", device.label, text))
    raw = measured.raw.table
    emitting = places_with_intensity(raw) if measured.raw.untagged else measured.ledger.emitting
    about = carbon_findings(
        raw, measured.windows, run.carbon_slots, emitting, given=inputs.grams_per_kwh is not None
    )
    return _Checked(budgets, tuple(findings), tuple(about))


def _check_gpu(
    device: ReportDevice,
    raw: RawSeries,
    window: Window,
    signals: Signals,
) -> tuple[UncertaintyBudget, list[Finding]]:
    findings = list(gpu_findings(device, raw, window, signals))
    suspected = suspicions(raw.table, window, device.instance, device.device)
    power = signals.power.between(window.start_s, window.end_s)
    beat, about_aliasing = None, []
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


def _extend(
    measured: _Measured,
    attributed: _Attributed,
    checked: _Checked,
    calibrated: Calibrated | None,
    inputs: UserInputs,
) -> Report:
    run = attributed.run
    boundaries = energy_boundaries(run, inputs.pue)
    restated = tuple(_restated(measured, attributed, inputs))
    uncounted = emissions_by_slot(run, measured.windows, attributed.tracks) if run.untagged else []
    emissions = (
        *run.emissions,
        *uncounted,
        *(emission for one in restated for emission in one.emissions),
    )
    sci = (
        software_carbon_intensity(run, boundaries, emissions, restated, inputs.hardware)
        if inputs.hardware
        else ()
    )
    findings = [
        *measured.findings,
        *(calibration_findings(run.devices, calibrated, inputs.calibrations) if calibrated else []),
        *checked.findings,
        *checked.carbon_findings,
        *given_intensity_findings(inputs.grams_per_kwh),
        *restatement_findings(restated, inputs.past),
        *(sci_findings(sci) if inputs.hardware else []),
    ]
    stage = fields_of(run) | {"emissions": emissions}
    return Report(
        **stage,
        findings=ordered_findings(findings),
        budgets=checked.budgets,
        boundaries=boundaries,
        price=inputs.price,
        restated=restated,
        sci=sci,
        calibrated=calibrated,
    )


def _restated(
    measured: _Measured, attributed: _Attributed, inputs: UserInputs
) -> Iterator[Restatement]:
    for past in inputs.past:
        if not past.problem:
            fallback = inputs.grams_per_kwh if past.basis == "average" else None
            yield restate(attributed.run, measured.windows, attributed.tracks, past, fallback)


def run_power_profile(frames: RunFrames, report: Report) -> Profile | None:
    """Return the energy over time within the widest measured boundary; None without a boundary or a
    duration.
    """
    measured = [boundary for boundary in report.boundaries if boundary.pue is None]
    if not measured:
        return None
    raw = RawSeries(frames.raw, frames.exact)
    on = windows(frames.ledger, frames.run_id)
    tracks = energy_tracks(raw, frames.run_id, report.devices, on)
    return power_profile(report, measured[-1], on, tracks)
