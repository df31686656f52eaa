"""The runs of the golden history: two nodes, an unfinished run, an imported run and three
experiments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.analyzer import experiments
from tests.analyzer.node import (
    NodeGpu,
    NodeRun,
    run_series,
    scrape,
    scrape_times,
    series_of_scrapes,
)
from wattline.contract import metrics as m
from wattline.contract.history import Series

BASE_S = 1_700_000_100.0
LENGTH_S = 120.0
GAP_S = (40.0, 52.0)
"""Seconds after the start of the run in which node b was not scraped."""
RESET_S = 70.0
"""When the counter of GPU 1 of node a restarted at 0."""
SLOT_S = 60.0
"""When the second carbon intensity slot starts."""


def series() -> list[Series]:
    times = scrape_times(1, BASE_S - 60.5, BASE_S + LENGTH_S + 60)
    node_b = [t for t in times if not GAP_S[0] < t - BASE_S < GAP_S[1]]
    later_s = BASE_S + 600
    return [
        *series_of_scrapes(((t, list(_node_a(t))) for t in times), "a:9847"),
        *series_of_scrapes(((t, list(_node_b(t))) for t in node_b), "b:9847"),
        *series_of_scrapes(
            (
                (t, list(_imported(t, later_s)))
                for t in scrape_times(1, later_s - 30.5, later_s + 90)
            ),
            "c:9847",
        ),
        *experiments.series(BASE_S + 3_600),
    ]


def _gpus(watts: Iterable[float], names: Iterable[tuple[str, str]], first: int) -> list[NodeGpu]:
    return [
        NodeGpu(
            [
                (BASE_S - 1_000, 60),
                (BASE_S, power_w),
                (BASE_S + 50, power_w / 2),
                (BASE_S + LENGTH_S, 60),
            ],
            index=str(first + position),
            name=name,
            architecture=architecture,
            utilization=0.0 if power_w == 60 else None,
        )
        for position, (power_w, (name, architecture)) in enumerate(zip(watts, names, strict=True))
    ]


GPUS_A = _gpus((300.0, 250.0), [("NVIDIA A100-SXM4-40GB", "ampere"), ("NVIDIA L40S", "ada")], 0)
GPUS_B = _gpus(
    (500.0, 200.0), [("NVIDIA H100 80GB HBM3", "hopper"), ("Tesla V100-SXM2-16GB", "volta")], 2
)


def _run(t: float, node: str, cpu_j: float) -> NodeRun:
    since_s = min(max(t - BASE_S, 0.0), LENGTH_S)
    steps = (
        (0.0, 10.0, "load"),
        (10.0, 110.0, "measure"),
        (110.0, 110.4, "flush"),
        (110.4, 120.0, "store"),
    )
    phases = {
        name: (min(since_s, end_s) - begin_s, 40.0 * (min(since_s, end_s) - begin_s))
        for begin_s, end_s, name in steps
        if since_s > begin_s
    }
    tokens = 500.0 * min(max(since_s - 10, 0.0), 100.0)
    work = (
        {"generated_tokens": tokens, "prompt_tokens": 4 * tokens, "flop": 3e12 * since_s}
        if node == "a"
        else {}
    )
    units = (
        {"measure": {"generated_tokens": 0.998 * tokens, "prompt_tokens": 4 * tokens}}
        if since_s > 10
        else {}
    )
    return NodeRun(
        "mixed",
        BASE_S,
        BASE_S + LENGTH_S,
        "serve",
        {"model": "tiny", "user": "ann"},
        work=work,
        results={"ttft_seconds_p99": 0.31, "loss": 2.5} if node == "a" else {},
        phases=phases,
        phase_uncertainty_j=12.0,
        phase_work=units if node == "a" else {},
        cpu_j=cpu_j,
        emissions_g=3.1,
        uncertainty_j=15.0,
        covered_ratio=1.0 if node == "a" else 0.93,
        integral_factor=1.0 if node == "a" else 1.08,
    )


def _node_a(t: float) -> Iterator[tuple]:
    run = _run(t, "a", 9_000.0)
    for metric, labels, value in scrape(
        GPUS_A, run, t, intensity=200.0 if t < BASE_S + SLOT_S else 320.0
    ):
        restarted = metric is m.GPU_ENERGY and labels["gpu"] == "1" and t >= BASE_S + RESET_S
        start = metric is m.CARBON_INTENSITY_TIMESTAMP
        before_j = GPUS_A[1].energy_j(BASE_S + RESET_S) if restarted else 0.0
        yield (
            metric,
            labels,
            BASE_S - 1_740 + (1_800 if t >= BASE_S + SLOT_S else 0) if start else value - before_j,
        )
    yield m.CPU_ENERGY, {"package": "0", "zone": "package"}, 50.0 * (t - BASE_S + 1_000)
    yield m.CPU_ENERGY, {"package": "0", "zone": "dram"}, 10.0 * (t - BASE_S + 1_000)
    yield m.CPU_ENERGY_METHOD, {"package": "0", "method": "rapl"}, 1.0
    for source in ("nvml", "carbon"):
        yield m.SOURCE_UP, {"source": source}, 1.0
        yield m.SOURCE_READ_TIMESTAMP, {"source": source}, t - 0.5
    yield m.CARBON_FETCHED_TIMESTAMP, {"provider": "gb", "basis": "average"}, BASE_S - 10_000
    for gpu in GPUS_A:
        labels = {"gpu": gpu.index, "uuid": gpu.uuid}
        yield m.GPU_ENERGY_METHOD, {**labels, "method": "counter"}, 1.0
        yield m.GPU_TEMPERATURE, {**labels, "sensor": "gpu"}, 40.0 + gpu.power_w(t) / 10
    suspect = float(t >= BASE_S + 100)
    reason = {"gpu": GPUS_A[1].index, "uuid": GPUS_A[1].uuid, "reason": "disagrees"}
    yield m.GPU_ENERGY_SUSPECT, reason, suspect
    if t >= BASE_S:
        yield from _shares(run, t)


def _shares(run: NodeRun, t: float) -> Iterator[tuple]:
    """Attributed energy (0.9 of each GPU of node a), DRAM energy, maximum power and marginal
    emissions.
    """
    run_labels, until_s = {"run_id": run.run_id}, min(t, BASE_S + LENGTH_S)
    for gpu in GPUS_A:
        energy_j = gpu.energy_j(until_s) - gpu.energy_j(BASE_S)
        for policy, share in (("idle_shared", 0.9), ("idle_apart", 0.7)):
            labels = {**run_labels, "component": "gpu", "device": gpu.uuid, "policy": policy}
            yield m.RUN_ATTRIBUTED_ENERGY, labels, share * energy_j
        yield (
            m.RUN_POWER_MAX,
            {**run_labels, "gpu": gpu.index, "uuid": gpu.uuid},
            1.02 * gpu.power_w(BASE_S + 1),
        )
    yield (
        m.RUN_ENERGY,
        {**run_labels, "component": "dram", "device": "0"},
        10.0 * (until_s - BASE_S),
    )
    yield m.RUN_ENERGY_UNCERTAINTY, {**run_labels, "component": "dram", "device": "0"}, 2.0
    emission_labels = {**run_labels, "component": "gpu", "basis": "marginal", "quality": "forecast"}
    yield m.RUN_EMISSIONS, emission_labels, 0.05 * (until_s - BASE_S)
    cpu = {**run_labels, "component": "cpu", "basis": "average", "quality": "actual"}
    yield m.RUN_EMISSIONS, cpu, 0.01 * (until_s - BASE_S)


def _node_b(t: float) -> Iterator[tuple]:
    """The CPU is estimated, the V100 is integrated, and another run uses the H100 at the end."""
    yield from scrape(GPUS_B, _run(t, "b", 7_000.0), t)
    yield m.CPU_ENERGY_METHOD, {"package": "0", "method": "model"}, 1.0
    for gpu, method in zip(GPUS_B, ("counter", "integral"), strict=True):
        yield m.GPU_ENERGY_METHOD, {"gpu": gpu.index, "uuid": gpu.uuid, "method": method}, 1.0
    neighbour = NodeRun("beside", BASE_S + 90, BASE_S + 140, "train", {"model": "other"}, work={})
    if t >= neighbour.start_s:
        yield from run_series(GPUS_B[:1], neighbour, t)
    unfinished = NodeRun("unfinished", BASE_S + 150, None, "train", work={"steps": 30.0})
    if t >= unfinished.start_s:
        yield from run_series(GPUS_B[1:], unfinished, t)


def _imported(t: float, begin_s: float) -> Iterator[tuple]:
    """An imported run: its energy is an integral, which its own total and a wall meter
    contradict.
    """
    labels = {
        "import_format": "nvidia-smi",
        "import_file": "power.csv",
        "import_spacing_seconds": "1",
        "import_notes": "whole_log,gpu0_only",
    }
    gpu = NodeGpu(
        [(begin_s - 100, 80), (begin_s, 350), (begin_s + 40, 80)], name="SIMULATED A100", index="7"
    )
    run = NodeRun(
        "imported",
        begin_s,
        begin_s + 40,
        "file",
        labels,
        outcome="interrupted",
        results={
            "claimed_energy_joules": 5_000.0,
            "wall_energy_joules": 20_000.0,
            "wall_covered_ratio": 1.0,
        },
        covered_ratio=0.8,
    )
    yield from scrape([gpu], run, t)
    yield m.GPU_ENERGY_METHOD, {"gpu": gpu.index, "uuid": gpu.uuid, "method": "integral"}, 1.0
