"""What a node draws and does right now."""

from __future__ import annotations

from exporter.contract import metrics as m
from grafana.board import CLUSTER, GPU, NODE, NODE_KEY, Board, selector
from grafana.panel import Panel, Query

_GPU = 'gpu=~"$gpu"'
_LEGEND = "{{instance}} GPU {{gpu}}"


def _of(metric: m.Metric, *more: str) -> str:
    return selector(metric, _GPU, *more)


_POWER = Panel(
    "Power of each GPU",
    "Board power as the driver gives it, at each scrape, and the power limit in force.",
    "watt",
    (
        Query(_of(m.GPU_POWER), _LEGEND),
        Query(_of(m.GPU_POWER_LIMIT, 'kind="enforced"'), f"limit, {_LEGEND}"),
    ),
    width=24,
)
_ENERGY = Panel(
    "Energy of each GPU",
    "Joules over the time range, from the energy counter: nothing is lost between scrapes.",
    "joule",
    (Query(f"increase({_of(m.GPU_ENERGY)}[$__range])", _LEGEND),),
    "gauges",
)
_CARDS = Panel(
    "GPUs",
    "What they are.",
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
_UTILIZATION = Panel(
    "Utilization",
    "Share of time in which a kernel ran. It says nothing of how much of the GPU the kernel used.",
    "percentunit",
    (Query(_of(m.GPU_UTILIZATION, 'engine="gpu"'), _LEGEND),),
)
_MEMORY = Panel("Memory in use", "On the board.", "bytes", (Query(_of(m.GPU_MEMORY_USED), _LEGEND),))
_TEMPERATURE = Panel(
    "Temperature",
    "Of the GPU and of its memory, where the card tells it.",
    "celsius",
    (Query(_of(m.GPU_TEMPERATURE), f"{_LEGEND} {{{{sensor}}}}"),),
)
_CLOCK = Panel(
    "SM clock",
    "It falls under a power limit, or when the card is hot.",
    "hertz",
    (Query(_of(m.GPU_CLOCK, 'domain="sm"'), _LEGEND),),
)
_MEMORY_CLOCK = Panel(
    "Memory clock", "Of the board's memory.", "hertz", (Query(_of(m.GPU_CLOCK, 'domain="memory"'), _LEGEND),)
)
_THROTTLED = Panel(
    "Held down by",
    "Share of time for which each reason held the clocks down; sw_power_cap is the power limit at work.",
    "percentunit",
    (Query(f"rate({_of(m.GPU_CLOCK_EVENT_SECONDS)}[$__rate_interval]) > 0", f"{_LEGEND} {{{{reason}}}}"),),
)
_CPU_POWER = Panel(
    "Power of CPUs",
    "Of packages, by RAPL. Zones lie in each other, so packages stand alone here, and memory (dram) below.",
    "watt",
    (
        Query(selector(m.CPU_POWER, 'zone="package"'), "{{instance}} package {{package}}"),
        Query(selector(m.CPU_POWER, 'zone="dram"'), "{{instance}} dram {{package}}"),
    ),
)
_HOST = Panel(
    "Host",
    "CPU time that was not idle, and memory that is not available to new work, as shares of all there is.",
    "percentunit",
    (
        Query(selector(m.HOST_CPU_UTILIZATION), "{{instance}} CPU"),
        Query(f"{selector(m.HOST_MEMORY_USED)} / {selector(m.HOST_MEMORY_TOTAL)}", "{{instance}} memory"),
    ),
)

NODE_BOARD = Board(
    "wattline-node",
    "Wattline: live node",
    "Power against limit, energy, utilization, memory, temperature, clocks and what holds them down.",
    (CLUSTER, NODE, GPU),
    (
        ("Power and energy", (_POWER, _ENERGY, _CARDS)),
        ("Work and heat", (_UTILIZATION, _MEMORY, _TEMPERATURE, _THROTTLED, _CLOCK, _MEMORY_CLOCK)),
        ("The host", (_CPU_POWER, _HOST)),
    ),
    marks_runs=True,
)
