"""Energy between the marks of a run without processes."""

import math
import random
from types import SimpleNamespace

import pytest

from wattline_exporter.meter.meter import DeviceMeter
from wattline_exporter.meter.totals import LastPoll, MeterTotals
from wattline_exporter.meter.uncertainty import DoubtfulWindow, EnergyMark, energy_between
from wattline_exporter.runs import marks as run_marks
from wattline_exporter.runs.run_record import Cut, RunRecord
from wattline_exporter.sensors.readings import Device, Poll, Slot

GPU = Device("gpu", "GPU-0")
BEGIN_S, END_S = 100.0, 110.0


def slots(grams_per_kwh):
    return (Slot(0.0, 1_800.0, grams_per_kwh, "GB", "gb", "average", "actual"),)


def run_of(*cuts):
    return RunRecord(
        run_id="run-1",
        workload="test",
        labels={},
        request="",
        devices=[GPU],
        gpus={},
        discovers=False,
        begin_s=BEGIN_S,
        started_at=1_790_000_000.0,
        lease_s=60.0,
        lease_until_s=1e9,
        alive_s=BEGIN_S,
        cuts=list(cuts),
    )


def line_until(until_s, watts=lambda t: 300.0):
    """Return a meter with a counter that updates every 0.1 s, polled every 47 ms."""
    line, joules, done_s = DeviceMeter(period_s=0.047), 0.0, 95.0
    for k in range(int((until_s - 95.0) / 0.047) + 1):
        t = 95.0 + 0.047 * k
        while done_s + 0.1 <= t:
            joules, done_s = joules + 0.1 * watts(done_s + 0.05), done_s + 0.1
        line.push(Poll(GPU, t, t, counter_j=joules, instant_w=watts(t)))
    return line


def bursts(t):
    return 640.0 if t % 1.73 < 0.865 else 72.0


def ended(*cuts, watts=bursts):
    run, lines = run_of(*cuts), {GPU: line_until(END_S + 0.4, watts)}
    run_marks.settle(run, lines, BEGIN_S + 6)
    run.end_s, run.ended_at, run.outcome = END_S, 1_790_000_010.0, "ok"
    run_marks.finish(run, lines)
    return run, energy_between(run.begin[GPU], run.final[GPU])


def test_phases_from_the_start_add_up_to_the_run():
    cuts = [
        Cut(BEGIN_S + s, name)
        for s, name in ((0, "a"), (0.02, "b"), (0.03, "a"), (4.0, "c"), (9.99, "b"))
    ]
    run, energy = ended(*cuts)

    assert math.fsum(phase.joules[GPU] for phase in run.phases) == pytest.approx(
        energy.joules, rel=1e-9
    )
    assert math.fsum(phase.seconds for phase in run.phases) == pytest.approx(10.0)
    assert [phase.name for phase in run.phases] == ["a", "b", "c"]
    assert run.cuts == []


def true_j(begin_s, end_s):
    """Return the energy of `bursts`, whose power is constant for each 0.1 s."""
    edges = [95.0 + 0.1 * k for k in range(200)]
    overlaps = ((min(end_s, a + 0.1) - max(begin_s, a), bursts(a + 0.05)) for a in edges)
    return math.fsum(seconds * watts for seconds, watts in overlaps if seconds > 0)


def test_phase_energy_interval_contains_true_energy():
    rng, covering, phases = random.Random(5), 0, 0
    for _ in range(30):
        first_s, second_s = sorted(BEGIN_S + rng.uniform(0.2, 9.8) for _ in range(2))
        run, _ = ended(Cut(BEGIN_S, "a"), Cut(first_s, "b"), Cut(second_s, "a"))
        truths = {
            "a": true_j(BEGIN_S, first_s) + true_j(second_s, END_S),
            "b": true_j(first_s, second_s),
        }
        for phase in run.phases:
            covering += abs(phase.joules[GPU] - truths[phase.name]) <= phase.half_widths_j[GPU]
            phases += 1
            assert (
                0 < phase.half_widths_j[GPU] < 4 * 0.1 * 640
            )  # at most a sensor period at each of its edges
    assert phases == 60
    assert covering >= 0.95 * phases


def test_emissions_use_the_slot_of_each_joule():
    # 300 W: 4 s at 100 g/kWh and 6 s at 200 g/kWh are 1,200 J and 1,800 J: (120,000 + 360,000) /
    # 3.6e6 g
    run, _ = ended(
        Cut(BEGIN_S, None, slots(100.0)),
        Cut(BEGIN_S + 4.0, None, slots(200.0)),
        watts=lambda _: 300.0,
    )

    (emission,) = run.emissions
    assert emission.grams == pytest.approx(480_000 / 3.6e6, rel=0.001)
    assert run.phases == []


def test_take_marks_is_not_below_earlier_marks():
    lines = {GPU: line_until(105.0)}
    run = run_of(Cut(BEGIN_S, None))
    above = run_marks.take_marks(run, lines, 103.0, {})

    assert run_marks.take_marks(run, lines, 102.0, above)[GPU].joules == above[GPU].joules


def test_settle_waits_until_devices_were_read_after_the_cut():
    run = run_of(Cut(BEGIN_S, None))
    lines = {GPU: line_until(99.9)}
    run_marks.settle(run, lines, BEGIN_S + 6.0)
    assert not run.begin_settled

    run_marks.settle(run, {GPU: line_until(106.0)}, BEGIN_S + 6.0)
    assert run.begin_settled
    assert run.begin[GPU].joules == pytest.approx(300.0 * 5.0, abs=1.0)


class CountingMeter(DeviceMeter):
    """Meter that counts its marks."""

    marked = 0

    def mark(self, t_s):
        self.marked += 1
        return super().mark(t_s)


def test_settle_takes_marks_once_after_their_polls_and_once_when_final():
    run = run_of(Cut(BEGIN_S, None))
    line = CountingMeter(period_s=0.047)
    marked = []
    for age_s in (0.2, 0.7, 1.7, 4.9, 5.7):
        line.push(Poll(GPU, BEGIN_S + age_s, BEGIN_S + age_s, counter_j=300.0 * age_s))
        run_marks.settle(run, {GPU: line}, BEGIN_S + age_s)
        marked.append(line.marked)

    assert marked == [0, 1, 1, 1, 2]
    assert run.begin_settled


def test_settle_silent_device_is_waited_for_30_s():
    run = run_of(Cut(BEGIN_S, None))
    run_marks.settle(run, {GPU: line_until(99.9)}, BEGIN_S + 31.0)

    assert run.begin_settled


def test_end_without_later_polls_is_inside_its_interval():
    """The power rises from 72 to 700 W, the limit, 1.4 s before the end, after the last poll."""
    run = run_of(Cut(BEGIN_S, None))
    line = line_until(END_S - 1.4, lambda _: 72.0)
    line.max_w = 1.5 * 700.0
    run_marks.settle(run, {GPU: line}, BEGIN_S + 6)
    run.end_s, run.ended_at, run.outcome = END_S, 1_790_000_010.0, "ok"
    run_marks.finish(run, {GPU: line})
    energy = energy_between(run.begin[GPU], run.final[GPU])

    assert abs(energy.joules - (72.0 * 8.6 + 700.0 * 1.4)) <= energy.half_width_j
    assert any("energy after that is missing" in note for note in run.notes)


def test_take_marks_keeps_known_mark_without_polls():
    run = run_of(Cut(BEGIN_S, None))
    early = run_marks.take_marks(run, {GPU: line_until(103.0)}, BEGIN_S, {})
    late = run_marks.take_marks(run, {GPU: line_until(160.0)}, BEGIN_S, {}, previous=early)

    assert late == early


def test_phase_work_repeated_totals_never_decrease_it():
    run = run_of(Cut(BEGIN_S, "train"))
    run.add_work("rank-0", {"flop": 0.1}, 0.0)
    run.add_work("rank-1", {"flop": 0.7}, 0.0)
    done = [run.phase_work["train"]["flop"]]
    for _ in range(100):
        run.add_work("rank-1", {"flop": 0.7}, 0.0)
        done.append(run.phase_work["train"]["flop"])

    assert done == sorted(done)


# -- half-widths worked out by hand


@pytest.mark.parametrize(("peak_w", "half_width_j"), [(800.0, 8_083.0), (600.0, 7_073.0)])
def test_marks_of_totals_half_width_is_the_highest_power_since_the_poll(peak_w, half_width_j):
    # 10.1 s since 99.9 s at the limit of 700 W or at a peak of 800 W, and 3 J pending
    totals = {GPU: MeterTotals(energy_j=5_000.0, peak_w=peak_w)}
    polls = {GPU: LastPoll(100.0, 700.0, 99.9, 3.0)}

    mark = run_marks.marks_of_totals(totals, polls)(110.0)[GPU]

    assert mark.joules == 5_000.0
    assert mark.half_width_j == pytest.approx(half_width_j)


def ended_at_300_w(line, **fields):
    """Return a run without processes whose last report was at 104 s and that ended at 110 s."""
    run = run_of(Cut(BEGIN_S, None))
    run.alive_s = 104.0
    run_marks.settle(run, {GPU: line}, BEGIN_S + 6)
    run.end_s, run.ended_at, run.outcome = END_S, 1_790_000_010.0, "ok"
    for name, value in fields.items():
        setattr(run, name, value)
    run_marks.finish(run, {GPU: line})
    return run


def test_finish_uncertain_end_half_width_is_the_energy_until_the_latest_end():
    # 2 s at 300 W, and the half-width of the mark at 112 s
    line = line_until(116.0)

    run = ended_at_300_w(line, end_until_s=112.0)

    half_width_j = 600.0 + line.mark(112.0).half_width_j
    assert run.final[GPU].half_width_j == pytest.approx(half_width_j, abs=0.01)


def test_finish_expired_lease_half_width_is_the_energy_since_the_last_report():
    # 6 s at 300 W, and the half-width of the mark at 104 s
    line = line_until(116.0)
    reported_half_j = line.mark(104.0).half_width_j

    run = ended_at_300_w(line, lease_until_s=END_S)

    assert run.final[GPU].half_width_j == pytest.approx(1_800.0 + reported_half_j, abs=0.01)


def test_late_doubt_adds_to_the_half_width_of_the_last_mark():
    # ± 5 J at the end, and doubts of 40 and 20 J about windows that began before it
    windows = [DoubtfulWindow(105.0, 109.0, 40.0, 111.0), DoubtfulWindow(109.0, 112.0, 20.0, 111.0)]
    comparison = SimpleNamespace(detected=lambda after_s, until_s: windows)
    run = run_of()
    run.begin = {GPU: EnergyMark(0.0, 1.0, 0.0, 0.0, 0.0, 0)}
    run.final = {GPU: EnergyMark(3_000.0, 5.0, 0.0, 0.0, 10.0, 0)}
    run.end_s = END_S
    doubts = run_marks.LateDoubts()
    doubts.watch(run, END_S)

    meters = {GPU: SimpleNamespace(comparison=comparison, has_counter=True)}

    assert doubts.check(run, meters, END_S + 1.0)
    assert run.final[GPU].half_width_j == 65.0
