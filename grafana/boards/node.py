"""Dashboard of the current state of nodes."""

from __future__ import annotations

from grafana.board import CLUSTER, GPU, GPU_LEGEND, NODE, NODE_KEY, NODE_LEGEND, Board, selector
from grafana.panel import Panel, Query, lines
from wattline.contract import metrics as m

_GPU = 'gpu=~"$gpu"'


def _of(metric: m.Metric, *more: str) -> str:
    return selector(metric, _GPU, *more)


_POWER = Panel(
    "Power of each GPU",
    "Board power as the driver reports it, at each scrape, and the enforced power limit.",
    "watt",
    (
        Query(_of(m.GPU_POWER), GPU_LEGEND),
        Query(_of(m.GPU_POWER_LIMIT, 'kind="enforced"'), "limit, " + GPU_LEGEND),
    ),
    width=24,
)
_ENERGY = Panel(
    "Energy of each GPU",
    "Joules over the time range, from the energy counter. No energy between scrapes is lost.",
    "joule",
    (Query(f"increase({_of(m.GPU_ENERGY)}[$__range])", GPU_LEGEND),),
    "gauges",
)
_GPU_TABLE = Panel(
    "GPUs",
    "Models, UUIDs and driver versions.",
    "none",
    (Query(f"max by ({NODE_KEY}, gpu, uuid, name, driver_version) ({_of(m.GPU_INFO)})"),),
    "table",
    columns={
        "instance": "node",
        "gpu": "GPU",
        "name": "name",
        "uuid": "UUID",
        "driver_version": "driver",
        "cluster": "cluster",
        "Value": "",
    },
)
_UTILIZATION = lines(
    "Utilization",
    "Share of time in which a kernel ran. It does not show how much of the GPU the kernel used.",
    "percentunit",
    _of(m.GPU_UTILIZATION, 'engine="gpu"'),
    GPU_LEGEND,
)
_MEMORY = lines(
    "Memory in use", "Memory of the GPU in use.", "bytes", _of(m.GPU_MEMORY_USED), GPU_LEGEND
)
_TEMPERATURE = lines(
    "Temperature",
    "GPU temperature, and memory temperature where the GPU reports it.",
    "celsius",
    _of(m.GPU_TEMPERATURE),
    GPU_LEGEND + " {{sensor}}",
)
_CLOCK = lines(
    "SM clock",
    "The clock falls under a power limit or at a high temperature.",
    "hertz",
    _of(m.GPU_CLOCK, 'domain="sm"'),
    GPU_LEGEND,
)
_MEMORY_CLOCK = lines(
    "Memory clock",
    "Clock of the GPU's memory.",
    "hertz",
    _of(m.GPU_CLOCK, 'domain="memory"'),
    GPU_LEGEND,
)
_EVENT_S = _of(m.GPU_CLOCK_EVENT_SECONDS)
_THROTTLED = lines(
    "Clock event reasons",
    "Share of time in which each reason reduced the clocks; sw_power_cap is the power limit. "
    "Reasons that never applied are left out.",
    "percentunit",
    f"rate({_EVENT_S}[$__rate_interval]) and increase({_EVENT_S}[$__range] @ end()) > 0",
    GPU_LEGEND + " {{reason}}",
).without(data="No clock event in the time range.")
_CPU_POWER = Panel(
    "Power of CPUs",
    "RAPL power of packages and of memory (dram). Zones overlap, so their values must not be "
    "added.",
    "watt",
    (
        Query(selector(m.CPU_POWER, 'zone="package"'), NODE_LEGEND + " package {{package}}"),
        Query(selector(m.CPU_POWER, 'zone="dram"'), NODE_LEGEND + " dram {{package}}"),
    ),
    remedy="No RAPL data. Run exporter check to see the cause and the remedy.",
)
_HOST = Panel(
    "Host",
    "Share of CPU time that was not idle, and share of memory that is not available.",
    "percentunit",
    (
        Query(selector(m.HOST_CPU_UTILIZATION), NODE_LEGEND + " CPU"),
        Query(
            f"{selector(m.HOST_MEMORY_USED)} / {selector(m.HOST_MEMORY_TOTAL)}",
            NODE_LEGEND + " memory",
        ),
    ),
)

NODE_BOARD = Board(
    "wattline-node",
    "Wattline: live node",
    "Power against limit, energy, utilization, memory, temperature, clocks and clock event "
    "reasons.",
    (CLUSTER, NODE, GPU),
    (
        ("Power and energy", (_POWER, _ENERGY, _GPU_TABLE)),
        (
            "Utilization, temperature and clocks",
            (_UTILIZATION, _MEMORY, _TEMPERATURE, _THROTTLED, _CLOCK, _MEMORY_CLOCK),
        ),
        ("Host", (_CPU_POWER, _HOST)),
    ),
    marks_runs=True,
)
