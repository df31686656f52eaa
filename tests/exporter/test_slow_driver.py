"""A driver that takes its time: the sampler polls less often then, and what it has polled it tells at once."""

import json
import subprocess
import sys
from collections import Counter
from statistics import median

import pytest

from exporter.live_state import FAST_S
from exporter.model import boottime
from exporter.nvml_worker.protocol import COALESCE_STEADY_S
from exporter.simulation import FILE_NAME, PRODUCTS, create, make_gpus

GPUS = 64
CALL_S = 0.002
"""A lane has eight GPUs, of each of which a poll makes three calls: with this a round takes longer than a period."""
SEEN_S = 4.0
HELD_UP_S = 0.25
"""What a machine that is busy with something else adds."""
SLOW = """
import sys
import time
import exporter.sources.simulated as simulated
from exporter import sampler

class SlowNvml(simulated.SimulatedNvml):
    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        if name.startswith("nvmlDevice"):
            time.sleep(float(sys.argv[2]))
        return value

simulated.SimulatedNvml = SlowNvml
sampler.main(sys.argv[1:2])
"""


@pytest.fixture
def sampler(tmp_path):
    path = tmp_path / FILE_NAME
    create(path, make_gpus(GPUS, PRODUCTS["H200"]), boottime() - 10)
    command = [sys.executable, "-c", SLOW, str(path), str(CALL_S)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        order = {"period_s": FAST_S, "burst_s": 0.0, "processes_every_s": 5.0}
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        yield process
        process.kill()


def told(sampler):
    """Of each poll of SEEN_S, from when all GPUs are there: its GPU, and how long after it it was told."""
    polls, seen, since_s = [], set(), None
    for line in sampler.stdout:
        now_s = boottime()
        for uuid, _, after_s, *_ in json.loads(line).get("polls", ()):
            seen.add(uuid)
            if since_s is not None:
                polls.append((uuid, now_s - after_s))
        if since_s is None and len(seen) == GPUS:
            since_s = now_s
        elif since_s is not None and now_s - since_s > SEEN_S:
            return polls, now_s - since_s
    pytest.fail("the sampler ended")


def test_a_sampler_that_cannot_keep_up_polls_less_often_and_tells_each_poll_as_soon_as_ever(sampler):
    polls, seconds = told(sampler)
    counts = Counter(uuid for uuid, _ in polls)
    ages_s = [age_s for _, age_s in polls]
    third = len(ages_s) // 3

    assert len(counts) == GPUS
    assert median(counts.values()) / seconds < 0.75 / FAST_S
    assert min(counts.values()) > median(counts.values()) / 2
    assert median(ages_s) < FAST_S + COALESCE_STEADY_S
    assert median(ages_s[-third:]) < median(ages_s[:third]) + HELD_UP_S  # nothing piles up
    assert max(ages_s[-third:]) < FAST_S + COALESCE_STEADY_S + 4 * HELD_UP_S
