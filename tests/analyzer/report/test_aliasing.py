"""Aliasing of periodic loads by a sensor that samples 25 ms of each 100 ms."""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analyzer.node import START_S
from tests.laboratory import loads, sensor_logs
from wattline.contract.power_sensors import SensorWindow, sensor_window
from wattline_analyzer.core.runs.load import Clock, load_run
from wattline_analyzer.core.samples import Exact, Samples, clean
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.importers import assemble as assembled
from wattline_analyzer.importers import recognize
from wattline_analyzer.importers import write_history as history_file
from wattline_analyzer.importers.content import ReadOptions
from wattline_analyzer.report.aliasing import aliasing_findings, find_beat, updates
from wattline_analyzer.report.assess import assess

QUARTER = SensorWindow(0.1, 0.025)
NO_SAMPLES = Samples(np.empty(0), np.empty(0))


def any_square(rng, duration_s):
    """Square wave with a period from 20 ms to 1 s."""
    levels_w = rng.uniform(50, 150), rng.uniform(200, 400)
    return loads.square_wave(
        rng.uniform(0.02, 1), rng.uniform(0.2, 0.8), levels_w, duration_s, rng.random()
    )


def test_aliasing_error_above_2_percent_is_detected_and_bounded():
    rng, detected, repeats = np.random.default_rng(11), [], []
    while len(detected) < 60:
        load = any_square(rng, 20)
        power = sensor_logs.sensor_log(load, 20, rng)
        error = abs(sensor_logs.integral_w(power, 20) / load.mean_w(20) - 1)
        if error > 0.02:
            beat = find_beat(power)
            detected.append(beat is not None)
            repeats += [error <= beat.most_ratio] if beat else []

    assert np.mean(detected) >= 0.9
    assert np.mean(repeats) >= 0.95


@pytest.mark.parametrize(
    "build",
    [
        lambda rng, s: loads.constant_load(rng.uniform(80, 400), s),
        lambda rng, s: loads.ramp(rng.uniform(60, 200), rng.uniform(200, 400), s),
        lambda rng, s: loads.telegraph(rng, 10 ** rng.uniform(-2.3, 0.7), 100, 300, s),
    ],
    ids=["steady", "ramp", "random telegraph"],
)
@pytest.mark.parametrize("duration_s", [10, 60])
def test_aliasing_aperiodic_loads_have_at_most_5_percent_false_positives(build, duration_s):
    rng = np.random.default_rng(12)

    detected = [
        find_beat(sensor_logs.sensor_log(build(rng, duration_s), duration_s, rng)) is not None
        for _ in range(40)
    ]

    assert np.mean(detected) <= 0.05


def test_aliasing_limit_covers_error_of_square_wave():
    """300 W for 52 ms of each 104 ms, else 100 W: the true mean is 200 W."""
    rng, exceeded = np.random.default_rng(13), []
    for phase in np.arange(0, 1, 0.1):
        load = loads.square_wave(0.104, 0.5, (100, 300), 8, phase)
        power = sensor_logs.sensor_log(load, 8, rng)
        exceeded.append(
            abs(sensor_logs.integral_w(power, 8) / load.mean_w(8) - 1) > find_beat(power).most_ratio
        )

    assert not any(exceeded)


def test_aliasing_slow_square_wave_is_not_flagged():
    load = loads.square_wave(4.0, 0.5, (100, 300), 20, 0.3)

    assert find_beat(sensor_logs.sensor_log(load, 20, np.random.default_rng(14))) is None


def test_updates_period_is_estimated_from_samples():
    load = loads.square_wave(0.13, 0.5, (100, 300), 20, 0)

    result = updates(sensor_logs.sensor_log(load, 20, np.random.default_rng(15)))

    assert result.period_s == pytest.approx(sensor_logs.UPDATE_S, rel=1e-3)


def test_updates_log_with_gap_of_a_year_has_no_estimate():
    power = sensor_logs.sensor_log(
        loads.square_wave(0.13, 0.5, (100, 300), 20, 0), 20, np.random.default_rng(15)
    )
    later = np.where(power.t > 10, power.t + 31_536_000, power.t)

    assert updates(clean(later, power.value)) is None


@given(
    st.lists(st.tuples(st.floats(0.001, 0.2), st.floats(0, 700)), min_size=2, max_size=300),
    st.integers(1, 12),
)
def test_aliasing_any_log_is_checked_without_error(steps, repeats):
    """Values repeat for `repeats` samples, as in a log that is faster than its sensor."""
    times = np.cumsum([step for step, _ in steps])
    watts = np.repeat([value for _, value in steps], repeats)[: len(steps)]

    result = find_beat(clean(times, watts))

    assert result is None or 0 < result.most_ratio < 10


def test_updates_samples_as_slow_as_sensor_have_no_estimate():
    times = np.arange(0, 60, 0.1)

    assert updates(clean(times, np.sin(times))) is None


def test_aliasing_slow_samples_of_integral_give_unknown_note():
    slow = clean(np.arange(0.0, 60), 200 + np.sin(np.arange(0.0, 60)))

    (finding,) = aliasing_findings("GPU 0", None, QUARTER, slow, counted=False)

    assert (finding.level, finding.code) == ("note", "aliasing_unknown")
    assert finding.text.startswith(
        "its sensor samples 25 of each 100 ms; whether the load's period is close to that is "
        "unknown"
    )
    assert "(samples 1 s apart are too slow)" in finding.text
    assert aliasing_findings("GPU 0", None, QUARTER, slow, counted=True) == []


def test_aliasing_downsampled_log_gives_unknown_note():
    beating = sensor_logs.sensor_log(
        loads.square_wave(0.104, 0.5, (100, 300), 8, 0), 8, np.random.default_rng(18)
    )
    downsampled = replace(beating, exact=Exact((0.0, 8.0), sensor_logs.LOG_S, 1_600.0, 8.0, (), ()))

    (finding,) = aliasing_findings(
        "GPU 0", find_beat(downsampled), QUARTER, downsampled, counted=False
    )

    assert find_beat(beating) is not None
    assert "(this log is too long to check it)" in finding.text


def test_aliasing_sensor_with_full_window_has_no_finding():
    beat = find_beat(
        sensor_logs.sensor_log(
            loads.square_wave(0.104, 0.5, (100, 300), 8, 0), 8, np.random.default_rng(16)
        )
    )

    assert aliasing_findings("GPU 0", beat, QUARTER, NO_SAMPLES, counted=False)
    assert (
        aliasing_findings(
            "GPU 0", beat, sensor_window("NVIDIA A40", "ampere"), NO_SAMPLES, counted=False
        )
        == []
    )


def test_aliasing_unknown_gpu_model_gives_unknown_note():
    seconds = np.arange(30.0)

    (result,) = aliasing_findings(
        "GPU 0", None, None, Samples(seconds, 300 + seconds % 7), counted=False
    )

    assert result.code == "aliasing_unknown"
    assert "samples an unknown part of the time (this GPU model was not metered)" in result.text


def imported_report(folder, power):
    """Report of the load as logged by nvidia-smi on an A100 and imported."""
    lines = ["timestamp, index, uuid, name, power.draw.instant [W]"]
    for t, watts in zip(power.t, power.value, strict=True):
        when = datetime.fromtimestamp(START_S + t, UTC).strftime("%Y/%m/%d %H:%M:%S.%f")[:-3]
        lines.append(f"{when}, 0, GPU-a, NVIDIA A100-SXM4-40GB, {watts:.2f} W")
    log, history = folder / "log.csv", folder / "history.sqlite"
    log.write_text("\n".join([*lines, ""]))
    contents = recognize.read_files([log], "auto", ReadOptions(UTC), lambda _: None)
    result = assembled.assemble_runs(contents, "node", (None, None), "run-1")
    history_file.write_history(history, result, "node")
    source = HistorySource(history)
    try:
        clock = Clock(lambda: START_S + 3_600, lambda _: None)
        return assess(load_run(source, "run-1", 86_400, clock, lambda _: None))
    finally:
        source.close()


@pytest.mark.parametrize(("period_s", "aliased"), [(0.104, True), (4.0, False)])
def test_report_fast_log_warns_only_of_load_near_sensor_period(tmp_path, period_s, aliased):
    """100 W and 300 W in turn for 8 s: 1,600 J."""
    wave = loads.square_wave(period_s, 0.5, (100, 300), 8, 0.2)

    report = imported_report(
        tmp_path, sensor_logs.sensor_log(wave, 8, np.random.default_rng(17)).between(0, 8)
    )

    (gpu,) = report.gpus
    budget = report.budgets[gpu.key]
    limit_j = budget.aliasing_j or 0.0
    assert ("aliasing" in {finding.code for finding in report.findings}) is aliased
    assert (limit_j > 0) is aliased
    assert abs(gpu.energy.value - wave.mean_w(8) * report.duration_s) <= limit_j + budget.sampling_j
