"""State of nodes and runs, and its live table."""

import numpy as np
import pytest

from tests.analyzer.node import START_S, NodeGpu, NodeRun, scrape, series_of_scrapes
from wattline.contract import metrics as m
from wattline_analyzer.core.sample_table import table_of
from wattline_analyzer.core.terminal import console
from wattline_analyzer.watch.output import live_document, live_table
from wattline_analyzer.watch.watch import live_state, lost_state

OPEN = NodeRun(end_s=None)
NOW_S = START_S + 10.0


def frame_of(gpus, run, times, extra=lambda _: (), instance="node:9847"):
    series = series_of_scrapes(
        ((t, [*scrape(gpus, run, t, intensity=200.0), *extra(t)]) for t in times), instance
    )
    return table_of(
        (entry.labels, *np.array(entry.samples, dtype=np.float64).T) for entry in series
    )


def gpu(index="0", watts=300.0):
    return NodeGpu(
        [(START_S - 100, 60), (START_S, watts)], index=index, limit_w=400.0, utilization=0.5
    )


def clock_events(t):
    """Clock event seconds: power cap for 0.8 s of each second, thermal slowdown for 0.01 s, idle
    throughout.
    """
    for reason, share in (("sw_power_cap", 0.8), ("sw_thermal_slowdown", 0.01), ("gpu_idle", 1.0)):
        yield (
            m.GPU_CLOCK_EVENT_SECONDS,
            {"gpu": "0", "uuid": "GPU-00000000", "reason": reason},
            share * (t - START_S),
        )


def seconds(first, last):
    return [START_S + t for t in range(first, last + 1)]


def text_of(result, width=80, trouble=""):
    terminal = console(plain_columns=width)
    with terminal.capture() as captured:
        terminal.print(live_table(result, "here", width, trouble))
    return captured.get()


def test_exporter_at_rest_after_a_run_is_not_stale():
    """A minute after a run, the samples of an exporter's history are 15 s apart instead of one."""
    at_rest = live_state(frame_of([gpu()], OPEN, seconds(0, 10), instance=""), START_S + 25.0, {})
    silent = live_state(frame_of([gpu()], OPEN, seconds(0, 10), instance=""), START_S + 35.0, {})
    scraped = live_state(frame_of([gpu()], OPEN, seconds(0, 10)), START_S + 25.0, {})

    assert [state.nodes[0].stale for state in (at_rest, silent, scraped)] == [False, True, True]


def test_live_gpu_has_values_of_the_newest_scrape():
    result = live_state(frame_of([gpu()], OPEN, seconds(0, 10), clock_events), NOW_S, {})
    (entry,) = result.gpus

    assert (entry.power_w, entry.limit_w, entry.utilization) == (300.0, 400.0, 0.5)
    assert (entry.energy_j, entry.energy_of, entry.runs) == (
        3_000.0,
        "train-1",
        ("train-1",),
    )  # 300 W x 10 s
    assert entry.clock_events == ("sw_power_cap",)


def test_live_run_has_energy_per_unit_and_recent_rate():
    def work(t):  # 10 tokens a second, 30 in the last ten seconds
        return [
            (
                m.RUN_WORK,
                {"run_id": "train-1", "unit": "generated_tokens"},
                10 * min(t, 10) + 30 * max(t - 10, 0),
            )
        ]

    run = NodeRun(end_s=None, work={})
    frame = frame_of([gpu()], run, seconds(0, 20), lambda t: work(t - START_S))
    (result,) = live_state(frame, START_S + 20, {}).runs

    assert (result.state, result.duration_s, result.amount) == ("running", 20.0, 400.0)
    assert result.energy["gpu"].value == 6_000.0  # 300 W x 20 s
    assert result.energy_per_unit.value == 15.0  # 6,000 J / 400
    assert result.energy_per_unit.half_width == 0.025  # 10 J / 400
    assert result.per_second == 30.0


def test_live_table_energies_have_the_digits_that_the_sensor_leaves():
    """3,057 J in 10 s by a sensor of -2.9 to +6.4 %: 195 J, of which two digits are known."""
    run = NodeRun(end_s=None, work={"steps": 7.0})
    result = live_state(frame_of([gpu("0", 305.7)], run, seconds(0, 10)), NOW_S, {})

    (row,) = [line for line in text_of(result, 120).splitlines() if line.startswith("train-1")]
    assert " 3,060 J 437 ± 28 J/step " in row  # 3,057 J / 7 = 436.7 J, 195 J / 7 = 27.9 J
    (run,) = live_document(result, "here")["runs"]
    assert run["energy_per_unit_joules"] == pytest.approx(3_057 / 7)
    assert run["energy_per_unit_uncertainty_joules"] == pytest.approx(10 / 7)


def test_live_table_names_report_of_ended_run():
    ended = NodeRun(end_s=START_S + 8)

    assert "ended: analyzer report --run-id train-1" in text_of(
        live_state(frame_of([gpu()], ended, seconds(0, 10)), NOW_S, {})
    )
    assert "ended: " not in text_of(live_state(frame_of([gpu()], OPEN, seconds(0, 10)), NOW_S, {}))


def test_live_energy_without_run_counts_from_table_start():
    idle = NodeRun(start_s=START_S + 9_999)
    first = live_state(frame_of([gpu()], idle, seconds(0, 4)), START_S + 4, {})
    (entry,) = live_state(frame_of([gpu()], idle, seconds(0, 10)), NOW_S, first.counters_j).gpus

    assert (entry.energy_j, entry.energy_of) == (1_800.0, "")  # 300 W x 6 s
    assert first.gpus[0].energy_j is None


def test_live_carbon_is_present_power_times_intensity():
    result = live_state(frame_of([gpu("0"), gpu("1", 100.0)], OPEN, seconds(0, 10)), NOW_S, {})

    assert [(entry.grams_per_kwh, entry.component) for entry in result.carbon] == [(200.0, "gpu")]
    assert result.carbon[0].grams_per_hour == pytest.approx(80.0)  # 0.4 kW x 200 g/kWh


def test_live_state_stale_node_has_no_values():
    result = live_state(frame_of([gpu()], OPEN, seconds(0, 10)), NOW_S + 42, {})
    stdout = text_of(result)

    assert result.nodes[0].stale
    assert (result.gpus[0].power_w, result.power_w, result.runs[0].state) == (None, None, "stale")
    assert "no sample for 42 s" in stdout
    assert "300" not in stdout


def test_live_state_vanished_node_is_kept_as_stale():
    before = live_state(frame_of([gpu()], OPEN, seconds(0, 10)), NOW_S, {})
    empty = table_of([])

    assert live_state(empty, NOW_S + 600, {}, before).gpus[0].gpu == "0"
    assert "no sample for 10 min" in text_of(live_state(empty, NOW_S + 600, {}, before))
    assert lost_state(before, NOW_S + 1).power_w is None


def test_live_gpu_without_response_is_down_and_has_no_power():
    def gpu_up(t):
        yield m.GPU_UP, {"gpu": "0", "uuid": "GPU-00000000"}, float(t < START_S + 8)
        yield m.GPU_UP, {"gpu": "1", "uuid": "GPU-00000001"}, 1.0

    frame = frame_of([gpu("0"), gpu("1", 100.0)], OPEN, seconds(0, 10), gpu_up)
    missing = frame.where("uuid", ["GPU-00000000"]) & frame.where("metric", [m.GPU_POWER.name])
    missing &= frame.t >= START_S + 8
    result = live_state(frame.take(~missing), NOW_S, {})

    assert [(entry.up, entry.power_w) for entry in result.gpus] == [(False, None), (True, 100.0)]
    assert result.power_w == 100.0
    assert "no response from GPU 0" in text_of(result)


def test_live_state_run_id_shows_that_run_and_its_gpus():
    def other_run(t):
        yield m.RUN_START, {"run_id": "other"}, START_S
        yield m.RUN_GPU_INFO, {"run_id": "other", "gpu": "7", "uuid": "GPU-00000007"}, 1.0
        yield m.GPU_POWER, {"gpu": "7", "uuid": "GPU-00000007"}, 50.0

    result = live_state(
        frame_of([gpu()], OPEN, seconds(0, 10), other_run), NOW_S, {}, None, "train-1"
    )

    assert [run.run_id for run in result.runs] == ["train-1"]
    assert [entry.gpu for entry in result.gpus] == ["0"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_live_table_fits_width_and_keeps_figures_whole(width):
    long = NodeRun("a-run-with-a-name-of-a-length-that-no-terminal-of-80-columns-has", end_s=None)
    lines = text_of(
        live_state(frame_of([gpu()], long, seconds(0, 10), clock_events), NOW_S, {}), width
    ).splitlines()

    assert max(map(len, lines)) <= width
    row = next(line for line in lines if line.startswith("0 "))
    assert "300 / 400" in row
    assert "3,000 J" in row
    assert "power cap" in row
