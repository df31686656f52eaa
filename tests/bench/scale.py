"""Cost and polling rate per GPU for many GPUs and slow drivers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.bench.node import make_node
from tests.bench.program import ProgramError, cpu_spent_s
from tests.bench.wattline import Exporter, start_exporter
from wattline_exporter.sensors.nvml.messages import decode_items, encode_order, read_frames
from wattline_exporter.sensors.readings import Poll, SamplingOrder
from wattline_exporter.simulation import clock_s

SIZES = (8, 16, 32, 64)
LATENCIES_S = (0.0, 50e-6, 1e-3)
FAST_S = 0.047
SETTLE_S = 2.0


@dataclass(frozen=True, slots=True)
class Scale:
    """Figures with an open run.

    `cpu` is the exporter's share of one core, `received_hz` its polls of one GPU per second. Of the
    sampler alone: `polled_hz` of a GPU, the longest time between two polls, and the largest age of
    a poll when it is sent.
    """

    gpus: int
    latency_s: float
    cpu: float
    received_hz: float
    polled_hz: float
    gap_s: float
    age_s: float

    @property
    def cpu_per_gpu(self) -> float:
        return self.cpu / self.gpus


def measure(folder: Path, span_s: float, stopped: threading.Event) -> tuple[list[Scale], list[str]]:
    """Return the figures and the failures."""
    result: list[Scale] = []
    trouble: list[str] = []
    for gpus in SIZES:
        node = make_node(folder / f"scale-{gpus}", gpus=gpus)
        exporter = start_exporter(node.environment, node.folder)
        try:
            with exporter.program:
                exporter.until_ready(gpus)
                exporter.begin("bench", pids=[os.getpid()])
                for latency_s in LATENCIES_S:
                    node.simulation.set_call_latency(latency_s)
                    cpu, received_hz = _of_exporter(exporter, gpus, span_s, stopped)
                    result.append(
                        Scale(
                            gpus,
                            latency_s,
                            cpu,
                            received_hz,
                            *_of_sampler(node.environment, span_s, node.folder),
                        )
                    )
                    if stopped.is_set():
                        return result, trouble
        except (ProgramError, OSError) as error:
            trouble.append(f"{gpus} GPUs: {error}")
        finally:
            node.simulation.close()
    return result, trouble


def _of_exporter(
    exporter: Exporter, gpus: int, span_s: float, stopped: threading.Event
) -> tuple[float, float]:
    stopped.wait(SETTLE_S)
    before, reads, begin_s = exporter.program.cpu_s(), exporter.reads("nvml"), clock_s()
    stopped.wait(span_s)
    took_s = clock_s() - begin_s
    cpu = cpu_spent_s(exporter.program, before) / took_s
    return cpu, (exporter.reads("nvml") - reads) / took_s / gpus


def _of_sampler(
    environment: Mapping[str, str], span_s: float, folder: Path
) -> tuple[float, float, float]:
    """Return polls per second of a GPU, the longest gap between two, and the greatest age of the
    newest.
    """
    command = [sys.executable, "-P", "-m", "wattline_exporter.sensors.nvml.worker"]
    sampler = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert sampler.stdin
    assert sampler.stdout
    ender = threading.Timer(3 * span_s + 20, sampler.kill)  # a sampler without output
    ender.start()
    try:
        sampler.stdin.write(encode_order(SamplingOrder(period_s=FAST_S, processes_every_s=1.0)))
        sampler.stdin.flush()
        last_s: dict[str, float] = {}
        polls, gap_s, age_s = 0, 0.0, 0.0
        begin_s = clock_s() + 2 * SETTLE_S  # each GPU is attached by then
        for content in read_frames(sampler.stdout):
            now_s = clock_s()
            polled = [item for item in decode_items(content) if isinstance(item, Poll)]
            result = [(poll.device.id, poll.after_s) for poll in polled]
            for uuid, after_s in result:
                if after_s >= begin_s and uuid in last_s:
                    polls, gap_s = polls + 1, max(gap_s, after_s - last_s[uuid])
                last_s[uuid] = after_s
            if result and now_s >= begin_s:
                age_s = max(age_s, now_s - max(after_s for _, after_s in result))
            if now_s > begin_s + span_s:
                return polls / (now_s - begin_s) / len(last_s), gap_s, age_s
        raise ProgramError("the sampler ended unexpectedly")
    finally:
        ender.cancel()
        with suppress(BrokenPipeError):
            sampler.stdin.close()
        sampler.kill()
        sampler.wait()
        sampler.stdout.close()
