"""Liveness of GPUs while the exporter itself is stopped, as by SIGSTOP, and counters of XID
errors.
"""

import pytest

from wattline.contract.metrics import GPU_XID_ERRORS, GPU_XID_TIMESTAMP
from wattline_exporter.polling.health import HARDWARE_XIDS, GpuHealth
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.polling.meters import SavedTotals
from wattline_exporter.sensors.nvml.schedule import FAST_S
from wattline_exporter.sensors.readings import (
    ClockReading,
    Device,
    GpuCount,
    GpuInfo,
    Poll,
    XidError,
    XidReporting,
)

GPU = Device("gpu", "GPU-0")


def live_at(read_s: float) -> tuple[LiveState, GpuHealth]:
    live = LiveState()
    gpu = GpuHealth(GpuInfo("0", GPU.id, "test", "", "", ""), GPU, read_s)
    live.gpus[GPU.id] = gpu
    return live, gpu


def up_at_each_check(live: LiveState, gpu: GpuHealth, *instants_s: float) -> list[bool]:
    states = []
    for now_s in instants_s:
        live.age(now_s)
        states.append(gpu.up)
    return states


def test_silent_gpu_is_down_after_three_seconds() -> None:
    live, gpu = live_at(100.0)

    assert up_at_each_check(live, gpu, 100.0, 101.0, 102.0, 103.0) == [True, True, True, False]


def test_stopped_exporter_gives_its_gpus_time_to_answer() -> None:
    live, gpu = live_at(100.0)

    assert up_at_each_check(live, gpu, 100.0, 101.0, 106.0, 107.0, 108.0) == [True] * 5
    assert up_at_each_check(live, gpu, 109.0) == [False]  # 3 s after the stop


def test_energy_of_overdue_poll_is_left_out_until_next_poll() -> None:
    """The exporter was stopped for 3.3 s, as on a busy node: the energy of the latest poll is not
    that of now.
    """
    now = ClockReading(100.0, 1_000.0, 100.0)
    live = LiveState(clock=lambda: now)
    live.gpus[GPU.id] = GpuHealth(GpuInfo("0", GPU.id, "test", "", "", ""), GPU, 100.0)
    live.energy.set_period(FAST_S)
    energies_j = []
    for poll_s, now_s in ((100.0, 100.1), (100.1, 100.4), (100.1, 103.4), (103.4, 103.5)):
        now = ClockReading(now_s, 900.0 + now_s, now_s)
        poll = Poll(GPU, poll_s, poll_s, counter_j=700.0 * poll_s, instant_w=700.0, average_w=700.0)
        live.take_worker([poll])
        [gpu] = live.snapshot().gpus
        assert gpu.up
        assert gpu.energy
        energies_j.append(gpu.energy.energy_j)

    assert energies_j == pytest.approx([0.0, 70.0, None, 2_380.0])  # 700 W for 0.1 s and 3.4 s


@pytest.mark.parametrize(
    ("name", "architecture", "is_short"),
    [("NVIDIA H100 PCIe", "Hopper", True), ("Tesla T4", "Turing", False)],
)
def test_window_of_a_model_is_noted_when_its_gpu_answers(name, architecture, is_short) -> None:
    live = LiveState()

    live.take_worker([GpuCount(1), GpuInfo("0", GPU.id, name, architecture, "", "")])

    assert live.energy.meters[GPU].windows.is_short_by_model is is_short


def test_xid_counters_of_a_gpu_that_reports_errors_start_at_0() -> None:
    live, _ = live_at(100.0)
    assert live.snapshot().xid_errors == ()

    live.take_worker([XidReporting(GPU.id)])
    assert {r.labels[2]: r.value for r in live.snapshot().xid_errors} == dict.fromkeys(
        map(str, HARDWARE_XIDS), 0.0
    )

    live.take_worker([XidError(GPU.id, 79), XidError(GPU.id, 13)])
    errors = [r for r in live.snapshot().xid_errors if r.metric is GPU_XID_ERRORS]
    counted = {r.labels[2]: r.value for r in errors}
    assert len(counted) == len(errors) == len(HARDWARE_XIDS) + 1
    assert (counted["79"], counted["13"], counted["48"]) == (1.0, 1.0, 0.0)


def test_time_of_an_xid_is_that_of_its_latest_error_and_is_saved() -> None:
    now = ClockReading(100.0, 1_000.0, 100.0)
    live = LiveState(clock=lambda: now)
    live.gpus[GPU.id] = GpuHealth(GpuInfo("0", GPU.id, "test", "", "", ""), GPU, 100.0)
    for at in (1_000.0, 1_060.0):
        now = ClockReading(100.0, at, 100.0)
        live.take_worker([XidError(GPU.id, 79)])
    saved = {series: total for series, total in live.counters.take_changed().items() if total}
    restarted = LiveState(SavedTotals(counters=saved))
    for state in (live, restarted):
        times = {
            r.labels: r.value for r in state.snapshot().xid_errors if r.metric is GPU_XID_TIMESTAMP
        }
        assert times == {("0", GPU.id, "79"): 1_060.0}
