"""Phases and emissions of a run's segments."""

from wattline.contract.api import RunGpu
from wattline.contract.run import Emissions
from wattline.figures import Figure
from wattline_exporter.meter.uncertainty import MeasuredEnergy
from wattline_exporter.runs.run_figures import run_with_figures
from wattline_exporter.runs.run_record import Cut, PhaseTotal, RunRecord, add_segment
from wattline_exporter.sensors.readings import Device, Slot

GPU = Device("gpu", "GPU-1")
CPU = Device("package", "0")


def record(*phases):
    """Return a run that began at 100 s, which is Unix time 1.79e9."""
    return RunRecord(
        run_id="run",
        workload="test",
        labels={},
        request="",
        devices=[GPU, CPU],
        gpus={GPU.id: RunGpu(gpu="0", uuid=GPU.id, name="test")},
        discovers=False,
        begin_s=100.0,
        started_at=1.79e9,
        lease_s=1e9,
        lease_until_s=1e12,
        alive_s=1e12,
        phases=list(phases),
    )


def energy(joules, half_width_j):
    return MeasuredEnergy(joules, half_width_j, integrated_j=joules, covered_s=1.0, resets=0)


def test_segment_adds_joules_and_half_widths_to_its_phase():
    """30 ± 2 J and 20 ± 1.5 J: errors at the common edge do not cancel, so that 3.5 J remain."""
    run = record(PhaseTotal("train", 1.79e9, 3.0, {GPU: 30.0}, {GPU: 2.0}))
    energies = {GPU: energy(20.0, 1.5), CPU: energy(5.0, 0.25)}

    (phase,), *_ = add_segment(run, Cut(103.0, "train"), 105.0, energies)

    assert phase.energy_j(GPU) == Figure(50.0, 3.5)
    assert phase.energy_j(CPU) == Figure(5.0, 0.25)
    assert phase.seconds == 5.0
    assert run.phases[0].energy_j(GPU) == Figure(30.0, 2.0)


def test_segment_of_phase_with_unknown_half_width_leaves_it_unknown():
    run = record(PhaseTotal("train", 1.79e9, 3.0, {GPU: 30.0, CPU: 4.0}, {CPU: 0.5}))
    energies = {GPU: energy(20.0, 1.5), CPU: energy(5.0, 0.25)}

    (phase,), *_ = add_segment(run, Cut(103.0, "train"), 105.0, energies)
    (later,), *_ = add_segment(record(phase), Cut(105.0, "train"), 106.0, energies)

    assert phase.energy_j(GPU) == Figure(50.0)
    assert phase.energy_j(CPU) == Figure(9.0, 0.75)
    assert later.energy_j(GPU) == Figure(70.0)


def test_phase_energy_before_its_first_segment_is_zero():
    assert PhaseTotal("train", 1.79e9).energy_j(GPU) == Figure(0.0, 0.0)


def test_emissions_are_covered_as_the_energy_with_an_intensity():
    """36,000 J at 200 g/kWh, then 12,000 J without an intensity: 0.75 of the energy has one."""
    slot = Slot(0.0, 3_600.0, 200.0, "GB", "gb", "average", "actual")
    run = record()
    run.final_settled = True
    first = add_segment(run, Cut(103.0, None, (slot,)), 105.0, {GPU: energy(36e3, 1.0)})
    run.phases, run.emissions, run.segments_j = first
    run.phases, run.emissions, run.segments_j = add_segment(
        run, Cut(105.0, None), 106.0, {GPU: energy(12e3, 1.0)}
    )

    (found,) = run_with_figures(run, {}, 106.0, None).emissions

    assert found == Emissions("gpu", "average", "actual", 2.0, 0.75)


def test_segment_counts_emissions_of_each_slot():
    """36,000 J are 0.01 kWh, at 200 and 300 g/kWh."""
    hour = (0.0, 3_600.0)
    slots = (
        Slot(*hour, 200.0, "GB", "gb", "average", "actual"),
        Slot(*hour, 300.0, "GB", "gb", "marginal", "forecast"),
    )

    _, emissions, _ = add_segment(
        record(), Cut(103.0, None, slots), 105.0, {GPU: energy(36e3, 1.0)}
    )

    assert [(one.basis, one.quality, one.grams) for one in emissions] == [
        ("average", "actual", 2.0),
        ("marginal", "forecast", 3.0),
    ]
