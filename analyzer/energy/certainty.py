"""How sure one GPU's energy is: its error budget, and whether its sensor could be fooled by the load. Pure."""

from __future__ import annotations

from analyzer.energy import aliasing, states
from analyzer.energy import integrate as energy
from analyzer.energy.checks import Finding
from analyzer.energy.error_budget import Budget, gap_limits_j, sampling_half_j, sensor_limits_j
from analyzer.model.report import Device
from analyzer.model.samples import GAP_FACTOR, Samples, gaps, median_spacing_s
from analyzer.model.timeline import Window
from exporter.contract.power_sensors import sensor_window, systematic_band

SIMULATED = "SIMULATED"


def of_gpu(
    device: Device, power: Samples, window: Window, *, summed: bool, suspected: bool
) -> tuple[Budget, list[Finding]]:
    """`power` is that during the run. `summed` says that the energy is the integral of these samples and no ledger's;
    `suspected` that the exporter has said already that the load may fool the sensor.
    """
    simulated = device.name.startswith(SIMULATED)
    beat = None if suspected else aliasing.find(power)
    findings = []
    if not simulated and not suspected:
        seen, counted = sensor_window(device.name, device.architecture), _is_counted(device)
        findings = aliasing.findings(device.label, beat, seen, power, counted=counted)
    band = systematic_band(device.name, device.architecture)
    budget = Budget(
        device.energy.value,
        edges_j=device.energy.half,
        sensor_j=None if simulated else sensor_limits_j(device.energy.value, band),
    )
    if not summed:
        return budget, findings
    spacing_s = median_spacing_s(power)
    longest_s = None if spacing_s is None else max(GAP_FACTOR * spacing_s, energy.SENSOR_S)
    holes = [gap for gap in gaps(power, window.start_s, window.end_s) if gap.duration_s > energy.SENSOR_S]
    return Budget(
        budget.energy_j,
        budget.edges_j,
        sampling_half_j(power, longest_s),
        gap_limits_j(power, holes),
        budget.sensor_j,
        beat.most_ratio * device.energy.value if beat and findings else None,
    ), findings


def _is_counted(device: Device) -> bool:
    return not {"integral", states.SCRAPED} & set(device.methods)


def of_other(device: Device) -> Budget | None:
    """Of a CPU or memory: the ledger's interval is all that is known."""
    return None if device.energy.half is None else Budget(device.energy.value, edges_j=device.energy.half)
