"""Samples of other exporters by test case, which is a label, so that one server holds all cases."""

from tests.analyzer.node import START_S, NodeGpu
from tests.analyzer.report.untagged import foreign_exporters as foreign
from tests.analyzer.report.untagged.foreign_exporters import (
    EXAMPLE_GPU,
    SCRAPES,
    Exporter,
    prometheus_text_of_scrapes,
    uuid,
)
from wattline.contract import metrics as m

FLAT = NodeGpu([(START_S - 10_000, 200.0)], limit_w=400.0)
HALF_WAY = [t for t in SCRAPES if t < START_S + 300]


def shared_by_pods(t):
    """Time slicing: each pod's row repeats the GPU; the second pod starts in the middle of the
    range.
    """
    pods = ["training"] if t < START_S + 200 else ["training", "notebook"]
    for pod in pods:
        yield from foreign.dcgm(t, exported_pod=pod, pod="dcgm-exporter-x7k2p")


def wattline_with_run(t):
    yield from foreign.wattline(t)
    if START_S + 100 <= t <= START_S + 400:
        yield m.RUN_START.name, {"run_id": "train-7"}, START_S + 100
        yield m.RUN_END.name, {"run_id": "train-7"}, START_S + 200
        yield m.RUN_GPU_INFO.name, {"run_id": "train-7", "gpu": "0", "uuid": uuid()}, 1.0


def no_utilization(t):
    return (row for row in foreign.dcgm(t, FLAT) if row[0] != "DCGM_FI_DEV_GPU_UTIL")


def counter_with_unit(unit):
    """Return the exporter's values, which are `unit` times the energy in J."""
    return lambda t: (
        (name, labels, EXAMPLE_GPU.energy_j(t) * unit if "ENERGY" in name else value)
        for name, labels, value in foreign.dcgm(t)
    )


CASES: dict[str, list[tuple[Exporter, str]]] = {
    "dcgm": [(foreign.dcgm, "gpu01:9400")],
    "dcgm-lower": [(lambda t: foreign.dcgm(t, host="hostname"), "10.0.0.7:9400")],
    "dcgm-cached": [(lambda t: foreign.dcgm(t, refresh_s=30.0), "gpu01:9400")],
    "mig": [(lambda t: foreign.dcgm(t, mig=("1g.10gb", "1g.10gb", "3g.40gb")), "gpu01:9400")],
    "pods": [(shared_by_pods, "gpu01:9400")],
    "nvml": [(foreign.nvidia_gpu_exporter, "gpu01:9835")],
    "smi": [(lambda t: foreign.nvidia_gpu_exporter(t, nvml=False), "gpu01:9835")],
    "kepler": [(foreign.kepler, "10.0.0.9:28282")],
    "rapl": [(foreign.node_exporter, "gpu01:9100")],
    "rapl-zones": [(lambda t: foreign.node_exporter(t, zone_label=True), "gpu01:9100")],
    "rapl-mirrored": [(lambda t: foreign.node_exporter(t, extra_path=True), "gpu01:9100")],
    "rapl-wraps": [(lambda t: foreign.node_exporter(t, range_j=16_384.0), "gpu01:9100")],
    "all-smi": [(foreign.all_smi, "gpu01:9090")],
    "all-smi-hardware": [(lambda t: foreign.all_smi(t, hardware=True), "gpu01:9090")],
    "wattline": [(foreign.wattline, "gpu01:9847")],
    "ours-and-theirs": [
        (foreign.wattline, "gpu01:9847"),
        (foreign.dcgm, "gpu01:9400"),
        (foreign.nvidia_gpu_exporter, "gpu01:9835"),
    ],
    "two-others": [
        (lambda t: foreign.nvidia_gpu_exporter(t, nvml=False), "gpu01:9835"),
        (foreign.all_smi, "gpu01:9090"),
    ],
    "two-cpus": [
        (lambda t: foreign.kepler(t, gpu=False, node="gpu01.example.org"), "10.0.0.9:28282"),
        (foreign.node_exporter, "gpu01:9100"),
    ],
    "who-is-who": [
        (lambda t: foreign.kepler(t, gpu=False), "10.0.0.9:28282"),
        (foreign.node_exporter, "10.0.0.5:9100"),
    ],
    "two-nodes": [
        (foreign.dcgm, "gpu01:9400"),
        (lambda t: foreign.dcgm(t, index=1, node="gpu02"), "gpu02:9400"),
        (foreign.node_exporter, "gpu01:9100"),
        (foreign.node_exporter, "gpu02:9100"),
        (foreign.node_exporter, "cpu03:9100"),
    ],
    "two-cards": [(lambda t: [*foreign.dcgm(t), *foreign.dcgm(t, index=1)], "gpu01:9400")],
    "tagged": [(wattline_with_run, "gpu01:9847")],
    "no-utilization": [(no_utilization, "gpu01:9400")],
    "no-counter-in-truth": [(counter_with_unit(0.0), "gpu01:9400")],
    "counter-in-joules": [(counter_with_unit(1.0), "gpu01:9400")],
}
STOPS = {"stops": (foreign.dcgm, "gpu01:9400"), "smi-stops": (CASES["smi"][0][0], "gpu01:9835")}


def lines():
    """Return all cases as OpenMetrics."""
    for case, exporters in CASES.items():
        for exporter, instance in exporters:
            yield from prometheus_text_of_scrapes(exporter, instance, case=case)
    for case, (exporter, instance) in STOPS.items():
        yield from prometheus_text_of_scrapes(exporter, instance, HALF_WAY, case=case)
