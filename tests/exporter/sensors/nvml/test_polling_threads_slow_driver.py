"""Polling rate and message delay with a slow driver."""

import subprocess
import sys
from collections import Counter
from statistics import median

import pytest

from wattline_exporter.sensors.nvml.messages import decode_items, encode_order, read_frames
from wattline_exporter.sensors.nvml.schedule import COALESCE_STEADY_S, FAST_S
from wattline_exporter.sensors.readings import Poll, SamplingOrder, boottime
from wattline_exporter.simulation import FILE_NAME, PRODUCTS, create, make_gpus

GPUS = 64
CALL_S = 0.002
"""Duration of a call: eight GPUs share a thread and a poll makes three calls, so a round exceeds
the period.
"""
OBSERVED_S = 4.0
MACHINE_DELAY_S = 0.25
"""Delay that a busy test machine adds."""
SLOW = """
import sys
import time
import wattline_exporter.simulation.nvml as simulated
from wattline_exporter.sensors.nvml import worker

class SlowNvml(simulated.SimulatedNvml):
    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        if name.startswith("nvmlDevice"):
            time.sleep(float(sys.argv[2]))
        return value

simulated.SimulatedNvml = SlowNvml
worker.main(sys.argv[1:2])
"""


@pytest.fixture
def worker(tmp_path):
    path = tmp_path / FILE_NAME
    create(path, make_gpus(GPUS, PRODUCTS["H200"]), boottime() - 10)
    command = [sys.executable, "-c", SLOW, str(path), str(CALL_S)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(encode_order(SamplingOrder(period_s=FAST_S)))
        process.stdin.flush()
        yield process
        process.kill()


def observed_polls(worker):
    """Return UUID and message delay of the polls of OBSERVED_S after all GPUs are attached, and the
    exact time.
    """
    polls, uuids, since_s = [], set(), None
    for content in read_frames(worker.stdout):
        now_s = boottime()
        for poll in decode_items(content):
            if not isinstance(poll, Poll):
                continue
            uuids.add(poll.device.id)
            if since_s is not None:
                polls.append((poll.device.id, now_s - poll.after_s))
        if since_s is None and len(uuids) == GPUS:
            since_s = now_s
        elif since_s is not None and now_s - since_s > OBSERVED_S:
            return polls, now_s - since_s
    pytest.fail("the worker ended")


def test_worker_slow_driver_polls_less_often_without_a_backlog(worker):
    polls, seconds = observed_polls(worker)
    counts = Counter(uuid for uuid, _ in polls)
    delays_s = [delay_s for _, delay_s in polls]
    third = len(delays_s) // 3

    assert len(counts) == GPUS
    assert median(counts.values()) / seconds < 0.75 / FAST_S
    assert min(counts.values()) > median(counts.values()) / 2
    assert median(delays_s) < FAST_S + COALESCE_STEADY_S
    assert median(delays_s[-third:]) < median(delays_s[:third]) + MACHINE_DELAY_S  # no backlog
    assert max(delays_s[-third:]) < FAST_S + COALESCE_STEADY_S + 4 * MACHINE_DELAY_S
