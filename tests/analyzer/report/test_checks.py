import numpy as np

from wattline_analyzer.core.samples import Samples, clean
from wattline_analyzer.report.checks import stuck_findings, stuck_spans

NO_SAMPLES = Samples(np.empty(0), np.empty(0))
SECONDS = np.arange(0.0, 120.0)


def constant(value):
    return clean(SECONDS, np.full(120, float(value)))


def test_stuck_constant_power_under_load_is_reported():
    (finding,) = stuck_findings(
        "GPU 0", constant(46.19), constant(0.9), NO_SAMPLES, simulated=False
    )

    assert finding.level == "bad"
    assert finding.text.startswith("stuck sensor: exactly 46.19 W for 119 s in 120 samples")


def test_stuck_power_with_small_changes_is_not_reported():
    power = clean(SECONDS, 46.19 + 0.01 * (SECONDS % 30 == 0))

    assert stuck_spans(power) == []


def test_stuck_idle_gpu_with_agreeing_counter_is_not_reported():
    counter = clean(SECONDS, 46.19 * SECONDS)

    assert stuck_findings("GPU 0", constant(46.19), constant(0), counter, simulated=False) == []


def test_stuck_idle_gpu_with_different_counter_is_reported():
    counter = clean(SECONDS, 80.0 * SECONDS)

    assert stuck_findings("GPU 0", constant(46.19), constant(0), counter, simulated=False)


def test_stuck_simulated_gpu_with_counter_is_not_reported():
    counter = clean(SECONDS, 300.0 * SECONDS)

    assert stuck_findings("GPU 0", constant(300), constant(1), counter, simulated=True) == []
    assert stuck_findings("GPU 0", constant(300), constant(1), NO_SAMPLES, simulated=True)
