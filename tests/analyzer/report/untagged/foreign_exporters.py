"""Nodes with other exporters and known energy: 60 W, 300 W for ten minutes, 60 W.

Each exporter is written as its own project documents it, units and labels included, and scraped
every 15 s.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests import servers
from tests.analyzer.node import START_S, NodeGpu, scrape_times
from wattline.contract import metrics as m

END_S = START_S + 600
TRUE_ENERGY_J = 300 * 600
UUID = "GPU-3f2a9c1e-0b7d-4e55-9d1a-5a6b7c8d9e0{}"
SCRAPES = scrape_times(15, START_S - 296, END_S + 300)
EXAMPLE_GPU = NodeGpu(
    [(START_S - 10_000, 60), (START_S, 300), (END_S, 60)], name="NVIDIA H100 80GB HBM3", limit_w=700
)

Sample = tuple[str, dict[str, str], float]
Exporter = Callable[[float], Iterable[Sample]]


def uuid(index=0):
    return UUID.format(index)


def read_at(t, every_s, offset_s=0.0):
    """Return the last time before `t` at which an exporter with its own clock read its sensors."""
    return (t - offset_s) // every_s * every_s + offset_s


def fluctuating_power_w(node_gpu, t):
    """Return the value with a changing last digit, as of a real sensor."""
    return node_gpu.power_w(t) + 0.1 * (int(t) % 7)


def utilization(node_gpu, t):
    return 0.98 if node_gpu.power_w(t) > 100 else 0.0


def dcgm(
    t,
    node_gpu=EXAMPLE_GPU,
    *,
    index=0,
    host="Hostname",
    node="gpu01",
    mig=(),
    refresh_s=0.0,
    **more,
):
    """GPU; `mig` are the profiles of its instances, which repeat the GPU's values."""
    at = read_at(t, refresh_s, 7.3) if refresh_s else t
    own_labels = {
        "gpu": str(index),
        "UUID": uuid(index),
        "device": f"nvidia{index}",
        "modelName": node_gpu.name,
        host: node,
        **more,
    }
    rows = (
        [own_labels]
        if not mig
        else [
            {**own_labels, "GPU_I_PROFILE": profile, "GPU_I_ID": str(i)}
            for i, profile in enumerate(mig)
        ]
    )
    for labels in rows:
        yield "DCGM_FI_DEV_POWER_USAGE", labels, fluctuating_power_w(node_gpu, at)
        yield "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", labels, round(node_gpu.energy_j(at) * 1_000)
        yield "DCGM_FI_DEV_POWER_MGMT_LIMIT", labels, node_gpu.limit_w
        yield "DCGM_FI_DEV_GPU_UTIL", labels, 100 * utilization(node_gpu, at)
        yield "DCGM_FI_DEV_SM_CLOCK", labels, 1_980.0
        yield "DCGM_FI_DEV_FB_USED", labels, 40_960.0


def nvidia_gpu_exporter(t, node_gpu=EXAMPLE_GPU, index=0, nvml=True):
    own_labels = {"uuid": uuid(index).removeprefix("GPU-")}
    info = {
        "name": node_gpu.name,
        "index": str(index),
        "driver_version": "560.35",
        "pci_bus_id": "00000000:71:00.0",
    }
    yield "nvidia_smi_gpu_info", {**own_labels, **info}, 1.0
    yield "nvidia_smi_power_draw_watts", own_labels, fluctuating_power_w(node_gpu, t)
    yield "nvidia_smi_enforced_power_limit_watts", own_labels, node_gpu.limit_w
    yield "nvidia_smi_utilization_gpu_ratio", own_labels, utilization(node_gpu, t)
    if nvml:
        yield "nvidia_smi_energy_joules_total", own_labels, node_gpu.energy_j(t)


def kepler(t, node_gpu=EXAMPLE_GPU, index=0, node="gpu01", gpu=True):
    """The CPU draws half of the GPU's power, 150 W; core and psys overlap with it."""
    at = read_at(t, 5.0, 1.2)
    for zone, share in (("package", 0.5), ("core", 0.3), ("dram", 0.1), ("psys", 0.9)):
        labels = {"zone": zone, "path": "/sys/class/powercap/intel-rapl:0", "node_name": node}
        yield "kepler_node_cpu_joules_total", labels, share * node_gpu.energy_j(at)
        yield "kepler_node_cpu_watts", labels, share * fluctuating_power_w(node_gpu, at)
    if gpu:
        own_labels = {
            "gpu": str(index),
            "gpu_uuid": uuid(index),
            "vendor": "nvidia",
            "node_name": node,
        }
        yield "kepler_node_gpu_info", {**own_labels, "gpu_name": node_gpu.name}, 1.0
        yield "kepler_node_gpu_joules_total", own_labels, node_gpu.energy_j(at)
        yield "kepler_node_gpu_watts", own_labels, fluctuating_power_w(node_gpu, at)


def node_exporter(t, node_gpu=EXAMPLE_GPU, range_j=None, zone_label=False, extra_path=False):
    """Two packages of 150 W and DRAM of 30 W; the counters wrap at `range_j`."""
    for zone, index, share in (
        ("package", 0, 0.5),
        ("package", 1, 0.5),
        ("core", 0, 0.3),
        ("dram", 0, 0.1),
    ):
        energy_j = share * node_gpu.energy_j(t)
        value = energy_j if range_j is None else energy_j % range_j
        labels = {"index": str(index), "path": f"/sys/class/powercap/intel-rapl:{index}"}
        if zone_label:
            yield "node_rapl_joules_total", {**labels, "rapl_zone": zone}, value
        else:
            yield f"node_rapl_{zone}_joules_total", labels, value
            if extra_path and zone == "package":
                mirrored = {**labels, "path": f"/sys/class/powercap/intel-rapl-mmio:{index}"}
                yield "node_rapl_package_joules_total", mirrored, value + 17


def all_smi(t, node_gpu=EXAMPLE_GPU, index=0, host="gpu01", hardware=False):
    at = read_at(t, 3.0, 0.4)
    gpu = {
        "gpu": node_gpu.name,
        "exported_instance": host,
        "gpu_uuid": uuid(index),
        "gpu_index": str(index),
    }
    yield "all_smi_gpu_power_consumption_watts", gpu, fluctuating_power_w(node_gpu, at)
    yield "all_smi_gpu_utilization", gpu, 100 * utilization(node_gpu, at)
    own_labels = {"host": host, "gpu_uuid": uuid(index), "gpu_index": str(index)}
    yield (
        "all_smi_energy_consumed_joules_total",
        {**own_labels, "scope": "gpu"},
        node_gpu.energy_j(at),
    )
    yield (
        "all_smi_energy_consumed_joules_total",
        {"host": host, "scope": "cpu"},
        0.5 * node_gpu.energy_j(at),
    )
    yield (
        "all_smi_energy_consumed_joules_total",
        {"host": host, "scope": "chassis"},
        1.9 * node_gpu.energy_j(at),
    )
    if hardware:
        yield "all_smi_gpu_energy_hw_millijoules_total", gpu, node_gpu.energy_j(at) * 1_000


def wattline(t, node_gpu=EXAMPLE_GPU, index=0):
    labels = {"gpu": str(index), "uuid": uuid(index)}
    info = {
        "name": node_gpu.name,
        "architecture": "hopper",
        "pci_bus_id": "0",
        "driver_version": "560",
    }
    yield m.GPU_INFO.name, {**labels, **info}, 1.0
    yield m.GPU_POWER.name, labels, fluctuating_power_w(node_gpu, t)
    yield m.GPU_ENERGY.name, labels, node_gpu.energy_j(t)
    yield m.GPU_ENERGY_METHOD.name, {**labels, "method": "counter"}, 1.0
    yield m.GPU_POWER_LIMIT.name, {**labels, "kind": "enforced"}, node_gpu.limit_w
    yield m.GPU_UTILIZATION.name, {**labels, "engine": "gpu"}, utilization(node_gpu, t)
    yield m.CPU_ENERGY.name, {"package": "0", "zone": "package"}, 0.5 * node_gpu.energy_j(t)
    yield m.CPU_ENERGY_METHOD.name, {"package": "0", "method": "rapl"}, 1.0


def untyped_exposition(samples: Iterable[Sample]) -> str:
    """Return Prometheus's text format without types."""
    lines = []
    for name, labels, value in samples:
        inner = ",".join(f"{key}={json.dumps(text)}" for key, text in labels.items())
        lines.append(f"{name}{{{inner}}} {value!r}")
    return "\n".join([*lines, ""])


def prometheus_text_of_scrapes(
    exporter: Exporter, instance: str, times=SCRAPES, **target
) -> Iterator[str]:
    """Return OpenMetrics without types, which keeps the names; `target` are labels that the scrape
    adds.
    """
    for k, t in enumerate(times):
        for name, labels, value in exporter(t + 0.004 * (k % 3)):
            both = {**labels, "instance": instance, **target}
            inner = ",".join(f"{key}={json.dumps(text)}" for key, text in both.items())
            yield f"{name}{{{inner}}} {value!r} {t:.3f}"


@contextlib.contextmanager
def prometheus_with(folder: Path, lines: Iterable[str]) -> Iterator[str]:
    """Start a real Prometheus with these samples."""
    promtool, stored = servers.require("promtool"), folder / "prometheus"
    stored.mkdir(parents=True)
    text = folder / "samples.om"
    text.write_text(
        "\n".join([*sorted(lines, key=lambda line: line.rpartition("}")[0]), "# EOF\n"])
    )
    subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", text, stored],
        check=True,
        capture_output=True,
    )
    with servers.prometheus(folder, [], flags=["--storage.tsdb.retention.time=30y"]) as address:
        yield address


@contextlib.contextmanager
def victoria_metrics_with(folder: Path, lines: Iterable[str]) -> Iterator[str]:
    """Start a real VictoriaMetrics with these samples, and wait until they are visible."""
    folder.mkdir(parents=True, exist_ok=True)
    marked = [*lines, f"loaded{{}} 1 {START_S:.3f}"]
    with servers.victoria_metrics(folder, [], flags=["-retentionPeriod=30y"]) as address:
        request = urllib.request.Request(
            f"{address}/api/v1/import/prometheus", data="\n".join([*marked, ""]).encode()
        )
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 204
        with urllib.request.urlopen(f"{address}/internal/force_flush"):
            pass
        _await(
            f"{address}/api/v1/query?"
            + urllib.parse.urlencode({"query": "loaded[5m]", "time": START_S + 1})
        )
        yield address


def _await(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with urllib.request.urlopen(url) as answer:
            if json.load(answer)["data"]["result"]:
                return
        time.sleep(0.2)
    raise AssertionError(f"nothing at {url}")
