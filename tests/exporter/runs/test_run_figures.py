"""Figures of running runs."""

import math
from copy import deepcopy

import pytest

from wattline.contract.api import NO_GPU_FOUND, RunGpu
from wattline.figures import unknown
from wattline_exporter.meter.meter import LIMIT_MARGIN, DeviceMeter
from wattline_exporter.meter.totals import ZERO_TOTALS, MeterTotals
from wattline_exporter.meter.uncertainty import mark_at_totals
from wattline_exporter.runs import marks
from wattline_exporter.runs.run_figures import run_with_figures
from wattline_exporter.runs.run_record import Cut, RunRecord
from wattline_exporter.sensors.processes.procfs import ProcessKey
from wattline_exporter.sensors.readings import Device, Poll

GPU, CPU = Device("gpu", "GPU-1"), Device("package", "0")
BEGIN_S, PHASE_S = 100.0, 110.0


def record(**changes):
    """Return a run on a GPU that began at BEGIN_S."""
    fields = {
        "run_id": "run",
        "workload": "test",
        "labels": {},
        "request": "",
        "devices": [GPU],
        "gpus": {GPU.id: RunGpu(gpu="0", uuid=GPU.id, name="test")},
        "discovers": False,
        "begin_s": BEGIN_S,
        "started_at": 1.79e9,
        "lease_s": 1e9,
        "lease_until_s": 1e12,
        "alive_s": 1e12,
    }
    return RunRecord(**(fields | changes))


def test_phase_energy_while_another_device_is_silent_never_falls():
    """The CPU is not read after the second phase began, whose start is then final 30 s later
    only.
    """
    run = record(devices=[GPU, CPU])
    meters = {GPU: DeviceMeter(ZERO_TOTALS), CPU: DeviceMeter(ZERO_TOTALS, update_s=0.001)}
    shown_j = []
    for step in range(800):
        t_s = BEGIN_S - 10 + step / 10
        meters[GPU].push(Poll(GPU, t_s, t_s, 300.0 * t_s, 300.0, 300.0))
        if t_s < PHASE_S:
            meters[CPU].push(Poll(CPU, t_s, t_s, 100.0 * t_s, counter_range_j=1e6))
        if t_s >= BEGIN_S and not run.begin:
            first = Cut(BEGIN_S, "first")
            run.begin = first.marks = marks.take_marks(run, meters, BEGIN_S, {})
            run.cuts.append(first)
        if t_s >= PHASE_S and len(run.cuts) + len(run.phases) == 1:
            marks.start_phase(run, meters, Cut(PHASE_S, "second"))
        if run.begin:
            marks.settle(run, meters, t_s)
            phases = run_with_figures(run, meters, t_s, None).phases
            shown_j += [
                phase.energies_j["gpu"].number if phase.energies_j else 0.0
                for phase in phases
                if phase.name == "first"
            ]

    assert [p.name for p in run.phases] == ["first"]  # it is final
    assert shown_j == sorted(shown_j)
    assert abs(shown_j[-1] - 300 * (PHASE_S - BEGIN_S)) < 20


def test_energies_at_end_bounded_by_power_limit_do_not_fall():
    """The run began in a stop of the exporter, which was killed before it read the sensors: its
    mark lacks 1 MJ.
    """
    meters = {GPU: DeviceMeter(MeterTotals(energy_j=1e6))}
    meters[GPU].max_w = LIMIT_MARGIN * 700.0
    before_stop = mark_at_totals(MeterTotals(energy_j=234_567.123))
    run = record(
        begin={GPU: before_stop},
        begin_settled=True,
        cuts=[Cut(BEGIN_S, "first", marks={GPU: before_stop}, settled=True)],
    )
    for step in range(1_000):
        t_s = BEGIN_S + step * 0.047
        meters[GPU].push(Poll(GPU, t_s, t_s, 300.0 * t_s, 300.0, 300.0))
        shown = run_with_figures(run, meters, t_s, None)
        ended = deepcopy(run)
        ended.end_s = t_s
        marks.finish(ended, meters)
        final = run_with_figures(ended, meters, t_s, None)
        assert final.energy().number >= shown.energy().number
        assert all(
            final.phases[0].energies_j["gpu"].number >= phase.energies_j["gpu"].number
            for phase in shown.phases
        )

    assert final.energy().number == pytest.approx(700.0 * (t_s - BEGIN_S))


def test_energy_so_far_is_known_from_the_first_second():
    run = record(alive_s=BEGIN_S, processes=[ProcessKey(1, 1.0)])
    meters = {GPU: DeviceMeter(ZERO_TOTALS)}
    for step in range(int(10.5 / 0.047)):
        t_s = BEGIN_S - 10 + step * 0.047
        meters[GPU].push(Poll(GPU, t_s, t_s, 300.0 * math.floor(t_s * 10) / 10, 300.0, 300.0))
    run.begin = marks.take_marks(run, meters, BEGIN_S, {})
    run.cuts.append(Cut(BEGIN_S, "first", marks=run.begin))
    (device,) = run_with_figures(run, meters, BEGIN_S + 0.5, None, so_far=True).devices

    energy = device.energy_j
    assert abs(energy.number - 300 * 0.5) <= energy.half_width < 300
    assert energy.bias == pytest.approx(  # the sensor reads -9 to +3 %
        [energy.number * (1 / ratio - 1) for ratio in (1.03, 0.91)]
    )
    assert run_with_figures(run, meters, BEGIN_S + 0.5, None).devices == ()


def test_energy_of_a_gpu_that_is_not_read_in_the_run_is_unknown():
    """The other one is read at 300 W for 2 s, so that both used at least 600 J."""
    other = Device("gpu", "GPU-2")
    gpus = {each.id: RunGpu(str(n), each.id, "test") for n, each in enumerate((GPU, other))}
    run = record(devices=[GPU, other], gpus=gpus)
    meters = {GPU: DeviceMeter(), other: DeviceMeter()}
    for step in range(81):
        t_s = BEGIN_S - 5 + step / 10
        meters[GPU].push(Poll(GPU, t_s, t_s, 300.0 * t_s, 300.0, 300.0))
    run.begin = marks.take_marks(run, meters, BEGIN_S, {})
    run.cuts.append(Cut(BEGIN_S, "measure", marks=run.begin))
    run.end_s, run.ended_at, run.outcome = BEGIN_S + 2.0, run.started_at + 2.0, "ok"
    marks.finish(run, meters)

    ended = run_with_figures(run, meters, BEGIN_S + 3.0, None)

    first, second = ended.devices
    assert first.energy_j.number == pytest.approx(600.0, abs=first.energy_j.known_half_width)
    assert second.energy_j == unknown("not read during the run")
    assert ended.energy("gpu").state == "partial"
    assert ended.phases[0].energies_j["gpu"].state == "partial"
    assert ended.notes == ("gpu GPU-2: not read during the run; its energy is unknown",)


def test_run_on_no_gpu_is_noted_after_a_minute_while_it_runs():
    """GPU on which none of its processes has been found yet; the note goes when one is found."""
    run = record(discovers=True)
    notes = [run_with_figures(run, {}, BEGIN_S + age_s, None).notes for age_s in (59.0, 61.0)]
    run.seen_on.append(GPU.id)

    assert notes == [(), (NO_GPU_FOUND,)]
    assert run_with_figures(run, {}, BEGIN_S + 61.0, None).notes == ()
