"""A sensor that sees 25 ms of each 100: which loads fool it, and is that told?"""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.assess.run import assess
from analyzer.energy.aliasing import aliasing_findings, find_beat, updates
from analyzer.importers import assemble as assembled
from analyzer.importers import recognize
from analyzer.importers import write_history as history_file
from analyzer.importers.content import ReadOptions
from analyzer.model.samples import Exact, Samples, clean
from analyzer.sources.history import HistorySource
from analyzer.sources.runs.load import Clock, load_run
from exporter.contract.power_sensors import SensorWindow, sensor_window
from tests.analyzer import loads
from tests.analyzer.node import START_S

QUARTER = SensorWindow(0.1, 0.025)
NOTHING = Samples(np.empty(0), np.empty(0))


def any_square(rng, duration_s):
    """Of periods from 20 ms to 1 s."""
    levels_w = rng.uniform(50, 150), rng.uniform(200, 400)
    return loads.square(rng.uniform(0.02, 1), rng.uniform(0.2, 0.8), levels_w, duration_s, rng.random())


def test_nine_of_ten_loads_of_which_the_sensor_is_more_than_two_percent_off_are_told_and_how_far_at_most():
    rng, told, held = np.random.default_rng(11), [], []
    while len(told) < 60:
        load = any_square(rng, 20)
        power = loads.log(load, 20, rng)
        error = abs(loads.integral_w(power, 20) / load.mean_w(20) - 1)
        if error > 0.02:
            beat = find_beat(power)
            told.append(beat is not None)
            held += [error <= beat.most_ratio] if beat else []

    assert np.mean(told) >= 0.9
    assert np.mean(held) >= 0.95


@pytest.mark.parametrize(
    "made",
    [
        lambda rng, s: loads.steady(rng.uniform(80, 400), s),
        lambda rng, s: loads.ramp(rng.uniform(60, 200), rng.uniform(200, 400), s),
        lambda rng, s: loads.telegraph(rng, 10 ** rng.uniform(-2.3, 0.7), 100, 300, s),
    ],
    ids=["steady", "ramp", "random telegraph"],
)
@pytest.mark.parametrize("duration_s", [10, 60])
def test_of_loads_without_a_period_no_more_than_one_in_twenty_is_told(made, duration_s):
    rng = np.random.default_rng(12)

    told = [find_beat(loads.log(made(rng, duration_s), duration_s, rng)) is not None for _ in range(40)]

    assert np.mean(told) <= 0.05


def test_the_limit_that_is_told_holds_the_error():
    """52 ms of each 104 ms at 300 W, else 100 W: 200 W in truth."""
    rng, beyond = np.random.default_rng(13), []
    for phase in np.arange(0, 1, 0.1):
        load = loads.square(0.104, 0.5, (100, 300), 8, phase)
        power = loads.log(load, 8, rng)
        beyond.append(abs(loads.integral_w(power, 8) / load.mean_w(8) - 1) > find_beat(power).most_ratio)

    assert not any(beyond)


def test_a_slow_load_that_jumps_is_none_that_beats():
    load = loads.square(4.0, 0.5, (100, 300), 20, 0.3)

    assert find_beat(loads.log(load, 20, np.random.default_rng(14))) is None


def test_the_update_period_is_found_from_the_samples_themselves():
    load = loads.square(0.13, 0.5, (100, 300), 20, 0)

    found = updates(loads.log(load, 20, np.random.default_rng(15)))

    assert found.period_s == pytest.approx(loads.UPDATE_S, rel=1e-3)


def test_a_log_with_a_hole_of_a_year_in_it_is_not_judged():
    power = loads.log(loads.square(0.13, 0.5, (100, 300), 20, 0), 20, np.random.default_rng(15))
    later = np.where(power.t > 10, power.t + 31_536_000, power.t)

    assert updates(clean(later, power.value)) is None


@given(st.lists(st.tuples(st.floats(0.001, 0.2), st.floats(0, 700)), min_size=2, max_size=300), st.integers(1, 12))
def test_any_log_is_judged_without_an_error(steps, held):
    """Values are held for so many samples, as a fast log holds those of a sensor."""
    times = np.cumsum([step for step, _ in steps])
    watts = np.repeat([value for _, value in steps], held)[: len(steps)]

    found = find_beat(clean(times, watts))

    assert found is None or 0 < found.most_ratio < 10


def test_samples_as_slow_as_the_sensor_do_not_tell_how_often_it_updates():
    times = np.arange(0, 60, 0.1)

    assert updates(clean(times, np.sin(times))) is None


def test_what_slow_samples_cannot_tell_is_said_where_the_energy_depends_on_it():
    slow = clean(np.arange(0.0, 60), 200 + np.sin(np.arange(0.0, 60)))

    (said,) = aliasing_findings("GPU 0", None, QUARTER, slow, counted=False)

    assert (said.level, said.code) == ("note", "aliasing_unknown")
    assert said.text.startswith(
        "its sensor samples 25 of each 100 ms; whether the load's period is close to that is unknown"
    )
    assert "(samples 1 s apart are too slow)" in said.text
    assert aliasing_findings("GPU 0", None, QUARTER, slow, counted=True) == []


def test_a_fast_log_of_which_samples_were_left_out_is_not_judged_and_that_is_said():
    beating = loads.log(loads.square(0.104, 0.5, (100, 300), 8, 0), 8, np.random.default_rng(18))
    thinned = replace(beating, exact=Exact((0.0, 8.0), loads.LOG_S, 1_600.0, 8.0, (), ()))

    (said,) = aliasing_findings("GPU 0", find_beat(thinned), QUARTER, thinned, counted=False)

    assert find_beat(beating) is not None
    assert "(this log is too long to check it)" in said.text


def test_a_sensor_that_sees_all_of_the_time_cannot_be_fooled():
    beat = find_beat(loads.log(loads.square(0.104, 0.5, (100, 300), 8, 0), 8, np.random.default_rng(16)))

    assert aliasing_findings("GPU 0", beat, QUARTER, NOTHING, counted=False)
    assert aliasing_findings("GPU 0", beat, sensor_window("NVIDIA A40", "ampere"), NOTHING, counted=False) == []


def test_an_integral_of_a_card_that_no_one_has_looked_at_says_so():
    seconds = np.arange(30.0)

    (found,) = aliasing_findings("GPU 0", None, None, Samples(seconds, 300 + seconds % 7), counted=False)

    assert found.code == "aliasing_unknown"
    assert "samples an unknown part of the time (this GPU model was not metered)" in found.text


def reported(folder, power):
    """As nvidia-smi logs it on an A100, imported."""
    lines = ["timestamp, index, uuid, name, power.draw.instant [W]"]
    for t, watts in zip(power.t, power.value, strict=True):
        when = datetime.fromtimestamp(START_S + t, UTC).strftime("%Y/%m/%d %H:%M:%S.%f")[:-3]
        lines.append(f"{when}, 0, GPU-a, NVIDIA A100-SXM4-40GB, {watts:.2f} W")
    log, history = folder / "log.csv", folder / "history.sqlite"
    log.write_text("\n".join([*lines, ""]))
    contents = recognize.read_files([log], "auto", ReadOptions(UTC), lambda _: None)
    found = assembled.assemble_runs(contents, "node", (None, None), "run-1")
    history_file.write_history(history, found, "node")
    source = HistorySource(history)
    try:
        clock = Clock(lambda: START_S + 3_600, lambda _: None)
        return assess(load_run(source, "run-1", 86_400, clock, lambda _: None))
    finally:
        source.close()


@pytest.mark.parametrize(("period_s", "fooled"), [(0.104, True), (4.0, False)])
def test_the_report_of_a_fast_log_warns_of_a_load_near_the_sensors_period(tmp_path, period_s, fooled):
    """100 W and 300 W by turns for 8 s: 1,600 J in truth."""
    wave = loads.square(period_s, 0.5, (100, 300), 8, 0.2)

    report = reported(tmp_path, loads.log(wave, 8, np.random.default_rng(17)).between(0, 8))

    (gpu,) = report.gpus
    limit_j = gpu.budget.aliasing_j or 0.0
    assert ("aliasing" in {finding.code for finding in report.findings}) is fooled
    assert (limit_j > 0) is fooled
    assert abs(gpu.energy.value - wave.mean_w(8) * report.duration_s) <= limit_j + gpu.budget.sampling_j
