"""Energy of runs that end with their exporter, from the last poll that was saved."""

import pytest

from tests.exporter.meter.polls import GPU, poll
from wattline_exporter.meter.meter import LIMIT_MARGIN, DeviceMeter
from wattline_exporter.meter.totals import LastPoll, MeterTotals
from wattline_exporter.meter.uncertainty import energy_between
from wattline_exporter.runs.marks import marks_of_totals


def averaged_w(t_s):
    """Return the mean power of the last second, of a load that rises from 100 W to 600 W at 9.5 s."""
    return 100.0 + 500.0 * min(max(t_s - 9.5, 0.0), 1.0)


def test_marks_of_averaged_power_include_its_delay():
    meter = DeviceMeter(period_s=0.1)
    meter.max_w = LIMIT_MARGIN * 700.0
    for k in range(101):
        meter.push(poll(k / 10, average_w=averaged_w(k / 10)))
    begin = meter.mark(5.0)
    end = marks_of_totals({GPU: meter.totals}, {GPU: meter.last_poll()})(10.1)[GPU]
    energy = energy_between(begin, end)

    # the power lags by (0.1 + 1.0) / 2 s, and a reading is up to 0.1 s old: 700 W since 9.35 s
    assert end.half_width_j == pytest.approx(700.0 * 0.75)
    true_j = 4.5 * 100.0 + 0.6 * 600.0
    assert true_j - energy.joules > 250.0
    assert abs(energy.joules - true_j) <= energy.half_width_j


def test_marks_after_a_peak_above_the_limit_use_the_peak():
    totals = {GPU: MeterTotals(1_000.0, peak_w=750.0)}
    mark = marks_of_totals(totals, {GPU: LastPoll(100.0, 700.0, 99.9)})(101.9)[GPU]

    assert mark.half_width_j == pytest.approx(750.0 * 2.0)
    assert mark.most_w == 750.0


def test_marks_of_a_device_that_was_not_polled_are_unknown():
    assert marks_of_totals({GPU: MeterTotals(1_000.0, peak_w=300.0)}, {})(100.0) == {}
