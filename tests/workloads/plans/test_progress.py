import contextlib
import io

import pytest
from rich.console import Console

from tests.fakes.run_api import RunApi, run_api_server
from wattline.client.api import Api
from wattline_workloads.plans import progress, runner
from wattline_workloads.plans.model import CoolDown
from wattline_workloads.plans.progress import (
    GpuReading,
    LiveReadings,
    LiveTable,
    PlanStatus,
    ProgressLog,
    WorkRates,
)

METRICS = """\
# TYPE wattline_gpu_power_watts gauge
wattline_gpu_power_watts{gpu="0",uuid="GPU-a"} 412.5
wattline_gpu_power_watts{gpu="1",uuid="GPU-b"} 78
# TYPE wattline_gpu_temperature_celsius gauge
wattline_gpu_temperature_celsius{gpu="0",uuid="GPU-a",sensor="gpu"} 61
wattline_gpu_temperature_celsius{gpu="0",uuid="GPU-a",sensor="memory"} 70
wattline_gpu_temperature_celsius{gpu="1",uuid="GPU-b",sensor="gpu"} 33
"""


def _rendered(table: LiveTable) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(table.table())
    return out.getvalue()


def test_parse_gpus_reads_power_and_temperature():
    assert progress.parse_gpus(METRICS) == [
        GpuReading("0", "GPU-a", 412.5, 61),
        GpuReading("1", "GPU-b", 78, 33),
    ]


def test_hottest_celsius_considers_gpus_of_run():
    gpus = progress.parse_gpus(METRICS)

    assert progress.hottest_celsius(gpus, None) == 61
    assert progress.hottest_celsius(gpus, ["1"]) == 33
    assert progress.hottest_celsius(gpus, ["GPU-b", "0"]) == 61
    assert progress.hottest_celsius(gpus, ["2"]) is None


def test_work_rates_are_per_second():
    times = iter([10.0, 12.0])
    with run_api_server(RunApi()) as address:
        api, rates = Api(address), WorkRates()
        api.post("/runs", {"workload": "w", "run_id": "r"})
        api.post("/runs/r/work", {"generated_tokens": 100})
        first = rates.of(api, ["r", "not-begun"], lambda: next(times))
        api.post("/runs/r/work", {"generated_tokens": 400})
        second = rates.of(api, ["r", "not-begun"], lambda: next(times))

    assert first == {}
    assert second == {"generated_tokens": 150}  # 300 in 2 s


def test_progress_unreachable_exporter_shows_nothing(closed_address):
    assert progress.read_gpus(Api(closed_address)) == []
    assert WorkRates().of(Api(closed_address), ["r"]) == {}


def test_live_table_shows_step_rest_power_and_rates():
    readings = LiveReadings(
        lambda: progress.parse_gpus(METRICS),
        lambda _ids: {"steps": 3.0, "generated_tokens": 12_345.6},
    )
    table = LiveTable(readings, now_s=lambda: 0.0)
    table.show(
        PlanStatus(
            2,
            4,
            "gpt2 power_limit_watts=500 repeat 1",
            "runs",
            ["gpt2 power_limit_watts=600 repeat 1"],
            120,
        )
    )

    rendered = _rendered(table)
    assert "2/4" in rendered
    assert "gpt2 power_limit_watts=500 repeat 1: runs" in rendered
    assert "412 W   61 °C" in rendered
    assert rendered.index("generated_tokens/s") < rendered.index("steps/s")
    assert "12,346" in rendered
    assert "1 more, about 2 min; next: gpt2 power_limit_watts=600 repeat 1" in rendered


def test_live_table_missing_value_is_a_dash():
    table = LiveTable(
        LiveReadings(lambda: [GpuReading("0", "GPU-a", 80.0)], lambda _ids: {}), now_s=lambda: 0.0
    )
    table.show(PlanStatus(1, 1, "x", "running"))

    assert "80 W   –" in _rendered(table)


@pytest.fixture
def terminal():
    return Console(file=io.StringIO(), width=100, force_terminal=True, legacy_windows=False)


def _output(terminal: Console) -> str:
    assert isinstance(terminal.file, io.StringIO)
    return terminal.file.getvalue()


def _last_frame(terminal: Console) -> str:
    """Return the last frame; each frame returns to the first line of the previous one."""
    return _output(terminal).rpartition("\x1b[2K")[2]


def _frames_until(terminal: Console, *, stopped: bool = False) -> str:
    """Return all frames of a table over two short steps; the GPU draws 80 W, then 60 W."""
    powers_w = iter([80.0, 60.0])
    readings = LiveReadings(
        lambda: [GpuReading("0", "GPU-a", next(powers_w), 40)], lambda _ids: {"steps": 3.0}
    )
    table = LiveTable(readings, now_s=lambda: 0.0, console=terminal)
    with contextlib.suppress(KeyboardInterrupt), table:
        table.show(PlanStatus(1, 2, "a", "runs", ["b"], 7))
        table.show(PlanStatus(2, 2, "b", "runs", (), 3))
        if stopped:
            raise KeyboardInterrupt
    return _output(terminal)


def test_live_table_draws_each_short_step(terminal):
    frames = _frames_until(terminal)

    assert "1/2" in frames
    assert "a: runs" in frames
    assert "1 more, about 7 s; next: b" in frames
    assert "0/0" not in frames


@pytest.mark.parametrize(("stopped", "ended"), [(False, "b: done"), (True, "b: stopped")])
def test_live_table_last_frame_shows_end(terminal, stopped, ended):
    _frames_until(terminal, stopped=stopped)
    last = _last_frame(terminal)

    assert ended in last
    assert "60 W" in last
    assert "runs" not in last
    assert "steps/s" not in last
    assert "about" not in last


def test_live_table_before_first_step_shows_waiting():
    assert "reading GPUs" in _rendered(LiveTable(LiveReadings(list, lambda _ids: {})))


def test_progress_log_writes_each_change_once(capsys):
    with ProgressLog() as lines:
        for activity in ("pausing", "runs", "runs"):
            lines.show(PlanStatus(1, 2, "sgemm repeat 1", activity))
        lines.say("careful")

    assert capsys.readouterr().err.splitlines() == [
        "wattline: 1/2 sgemm repeat 1: pausing",
        "wattline: 1/2 sgemm repeat 1: runs",
        "wattline: careful",
    ]


def test_cool_down_ends_at_temperature():
    celsius, messages = iter([60.0, 50.0, 42.0]), []
    note = runner.wait_for_cool_down(
        CoolDown(), 40.0, lambda: next(celsius), messages.append, lambda _s: None
    )

    assert note is None
    assert messages == ["cooling down, 60 °C until 42 °C", "cooling down, 50 °C until 42 °C"]


@pytest.mark.parametrize(("first", "now"), [(None, 40.0), (40.0, None)])
def test_cool_down_without_temperature_returns_note(first, now):
    note = runner.wait_for_cool_down(
        CoolDown(), first, lambda: now, lambda _activity: None, lambda _s: None
    )

    assert "no cool-down: the exporter has no temperature" in note


def test_cool_down_timeout_returns_temperature():
    note = runner.wait_for_cool_down(
        CoolDown(to_celsius=30, at_most_seconds=0.01), None, lambda: 55.0, lambda _activity: None
    )

    assert note == "still 55 °C after 0 s of cool-down, not 30 °C; increase at_most_seconds"
