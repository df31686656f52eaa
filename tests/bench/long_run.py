"""Stored series of a long run of eight GPUs, scraped each second.

The true energy is known in closed form: each GPU draws a square wave.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric, escape

GPUS = 8
MARGIN_S = 130
RUN_ID = "long"
_LOW_W, _HIGH_W, _HALF_S = 150.0, 450.0, 60.0
_IDLE_W = 60.0
_LINE_SAMPLES = 10_000

_ALL = slice(None)

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StoredSeries:
    """One series: scrape times (Unix milliseconds) and values."""

    metric: Metric
    labels: Mapping[str, str]
    t_ms: npt.NDArray[np.int64]
    value: FloatArray


def uuid(gpu: int) -> str:
    return f"GPU-{gpu:08d}"


def energy_j(gpu: int, since_start_s: FloatArray, duration_s: float) -> FloatArray:
    """Return the energy of one GPU since the start of the run; half of each two minutes is at high
    power.
    """
    inside = np.clip(since_start_s, 0.0, duration_s)
    full_lines, rest = np.divmod(inside, 2 * _HALF_S)
    high_s = full_lines * _HALF_S + np.minimum(rest, _HALF_S)
    outside_s = since_start_s - inside
    return high_s * (_HIGH_W + gpu) + (inside - high_s) * (_LOW_W + gpu) + outside_s * _IDLE_W


def power_w(gpu: int, since_start_s: FloatArray, duration_s: float) -> FloatArray:
    """Return the power with a ripple of a watt, since a constant value would look stuck."""
    on = (since_start_s >= 0) & (since_start_s < duration_s)
    high = np.mod(since_start_s, 2 * _HALF_S) < _HALF_S
    steady = np.where(on, np.where(high, _HIGH_W + gpu, _LOW_W + gpu), _IDLE_W)
    return np.round(steady + np.sin(7 * since_start_s + gpu), 3)


def power(start_s: float, duration_s: int) -> Iterator[StoredSeries]:
    """Return the power of all GPUs within the run."""
    since = np.arange(duration_s, dtype=np.float64)
    for gpu in range(GPUS):
        labels = {"gpu": str(gpu), "uuid": uuid(gpu), "instance": "node-1:9847", "job": "wattline"}
        yield StoredSeries(
            m.GPU_POWER, labels, _ms(start_s + since), power_w(gpu, since, duration_s)
        )


def run(start_s: float, duration_s: int) -> Iterator[StoredSeries]:
    """Yield all series of the node and its run that the analyzer reads."""
    since = np.arange(-MARGIN_S, duration_s + MARGIN_S, dtype=np.float64) + 0.25
    times, on = _ms(start_s + since), since >= 0
    ended = since >= duration_s
    node = {"instance": "node-1:9847", "job": "wattline"}
    run_labels = {"run_id": RUN_ID, **node}

    def stored(
        metric: Metric,
        labels: Mapping[str, str],
        values: FloatArray | float,
        when: slice | npt.NDArray[np.bool_] = _ALL,
    ) -> StoredSeries:
        every = np.broadcast_to(np.asarray(values, dtype=np.float64), since.shape)
        return StoredSeries(metric, labels, times[when], every[when])

    yield stored(m.BUILD_INFO, {**node, "version": "0.1.0"}, 1.0)
    for source in ("nvml", "rapl", "host"):
        yield stored(m.SOURCE_UP, {**node, "source": source}, 1.0)
        yield stored(m.SOURCE_READ_TIMESTAMP, {**node, "source": source}, start_s + since - 0.1)
    for gpu in range(GPUS):
        yield from _gpu(gpu, since, duration_s, node, stored)
    yield stored(m.CPU_POWER, {**node, "package": "0", "zone": "package"}, 90 + np.sin(since))
    yield stored(m.CPU_ENERGY_METHOD, {**node, "package": "0", "method": "rapl"}, 1.0)
    yield stored(m.RUN_INFO, {**run_labels, "workload": "train"}, 1.0, on)
    yield stored(m.RUN_START, run_labels, start_s, on)
    yield stored(m.RUN_DURATION, run_labels, np.clip(since, 0, duration_s), on)
    yield stored(
        m.RUN_PHASE_SECONDS, {**run_labels, "phase": "measure"}, np.clip(since, 0, duration_s), on
    )
    yield stored(m.RUN_END, run_labels, start_s + duration_s, ended)
    yield stored(m.RUN_OUTCOME, {**run_labels, "outcome": "ok"}, 1.0, ended)
    yield stored(m.RUN_WORK, {**run_labels, "unit": "steps"}, np.clip(since, 0, duration_s), on)
    for gpu in range(GPUS):
        joules = energy_j(gpu, np.clip(since, 0, duration_s), duration_s)
        device = {**run_labels, "component": "gpu", "device": uuid(gpu)}
        yield stored(m.RUN_GPU_INFO, {**run_labels, "gpu": str(gpu), "uuid": uuid(gpu)}, 1.0, on)
        yield stored(m.RUN_ENERGY, device, joules, on)
        yield stored(m.RUN_ENERGY_UNCERTAINTY, device, 100.0, on)
        yield stored(m.RUN_COVERED_RATIO, device, 1.0, on)


def _gpu(
    gpu: int,
    since: FloatArray,
    duration_s: int,
    node: Mapping[str, str],
    stored: Callable[[Metric, Mapping[str, str], FloatArray | float], StoredSeries],
) -> Iterator[StoredSeries]:
    gpu_labels = {**node, "gpu": str(gpu), "uuid": uuid(gpu)}
    info = {
        "name": "NVIDIA H100 80GB HBM3",
        "architecture": "hopper",
        "pci_bus_id": f"0000:0{gpu}:00.0",
    }
    yield stored(m.GPU_INFO, {**gpu_labels, **info, "driver_version": "570.1"}, 1.0)
    yield stored(m.GPU_POWER, gpu_labels, power_w(gpu, since, duration_s))
    yield stored(m.GPU_ENERGY, gpu_labels, 1e6 + energy_j(gpu, since, duration_s))
    yield stored(m.GPU_ENERGY_METHOD, {**gpu_labels, "method": "counter"}, 1.0)
    yield stored(m.GPU_POWER_LIMIT, {**gpu_labels, "kind": "enforced"}, 700.0)
    busy = (since >= 0) & (since < duration_s)
    yield stored(m.GPU_UTILIZATION, {**gpu_labels, "engine": "gpu"}, np.where(busy, 0.97, 0.0))


def _ms(t_s: FloatArray) -> npt.NDArray[np.int64]:
    return np.rint(t_s * 1_000).astype(np.int64)


def json_lines(series: Iterator[StoredSeries]) -> Iterator[str]:
    """Yield lines for VictoriaMetrics's /api/v1/import."""
    for each in series:
        head = json.dumps({"__name__": each.metric.name, **each.labels})
        for first in range(0, len(each.t_ms), _LINE_SAMPLES):
            part = slice(first, first + _LINE_SAMPLES)
            values, times = each.value[part].tolist(), each.t_ms[part].tolist()
            yield f'{{"metric":{head},"values":{json.dumps(values)},"timestamps":{json.dumps(times)}}}\n'


def openmetrics(series: Iterator[StoredSeries], path: Path) -> int:
    """Write series of one metric for promtool and return the number of samples."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for each in series:
            if not count:
                file.write(f"# TYPE {each.metric.name} {each.metric.kind}\n")
            inner = ",".join(f'{name}="{escape(text)}"' for name, text in each.labels.items())
            start = f"{each.metric.name}{{{inner}}} "
            pairs = zip(each.value.tolist(), (each.t_ms / 1_000).tolist(), strict=True)
            file.writelines(f"{start}{value!r} {t_s:.3f}\n" for value, t_s in pairs)
            count += len(each.t_ms)
        file.write("# EOF\n")
    return count
