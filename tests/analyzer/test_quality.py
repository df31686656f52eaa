import numpy as np

from analyzer.energy.checks import stuck_findings, stuck_spans
from analyzer.model.samples import Gap, Samples, clean, gaps

NOTHING = Samples(np.empty(0), np.empty(0))
SECONDS = np.arange(0.0, 120.0)


def constant(value):
    return clean(SECONDS, np.full(120, float(value)))


def test_a_power_that_never_changes_under_load_is_stuck():
    (finding,) = stuck_findings("GPU 0", constant(46.19), constant(0.9), NOTHING, simulated=False)

    assert finding.level == "bad"
    assert finding.text.startswith("stuck sensor: exactly 46.19 W for 119 s in 120 samples")


def test_a_power_that_changes_by_a_digit_is_not_stuck():
    power = clean(SECONDS, 46.19 + 0.01 * (SECONDS % 30 == 0))

    assert stuck_spans(power) == []


def test_a_sleeping_gpu_whose_counter_agrees_is_not_stuck():
    counter = clean(SECONDS, 46.19 * SECONDS)

    assert stuck_findings("GPU 0", constant(46.19), constant(0), counter, simulated=False) == []


def test_a_sleeping_gpu_whose_counter_disagrees_is_stuck():
    counter = clean(SECONDS, 80.0 * SECONDS)

    assert stuck_findings("GPU 0", constant(46.19), constant(0), counter, simulated=False)


def test_simulated_hardware_without_noise_is_not_stuck():
    counter = clean(SECONDS, 300.0 * SECONDS)

    assert stuck_findings("GPU 0", constant(300), constant(1), counter, simulated=True) == []
    assert stuck_findings("GPU 0", constant(300), constant(1), NOTHING, simulated=True)


def test_a_gap_is_more_than_two_and_a_half_times_the_usual_spacing_and_is_cut_at_the_window():
    series = clean(np.array([0, 1, 2, 3, 6, 7, 8, 9.0]), np.zeros(8))

    assert gaps(series, 0, 9) == [Gap(3, 6)]
    assert gaps(series, 4, 9) == [Gap(4, 6)]
    assert gaps(series, 0, 20) == [Gap(3, 6), Gap(9, 20)]


def test_samples_are_sorted_and_of_the_same_timestamp_the_first_stays():
    series = clean(np.array([2.0, 1, 2, np.nan, 3]), np.array([20.0, 10, 21, 5, np.inf]))

    assert series.t.tolist() == [1, 2]
    assert series.value.tolist() == [10, 20]
