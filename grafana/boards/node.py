"""What a node draws and does right now."""

from __future__ import annotations

from exporter.contract import metrics as m
from grafana.board import CLUSTER, GPU, GPU_LEGEND, NODE, NODE_KEY, NODE_LEGEND, Board, selector
from grafana.panel import Panel, Query, lines

_GPU = 'gpu=~"$gpu"'


def _of(metric: m.Metric, *more: str) -> str:
    return selector(metric, _GPU, *more)


_POWER = Panel(
    "Power of each GPU",
    "Board power as the driver gives it, at each scrape, and the power limit in force.",
    "watt",
    (
        Query(_of(m.GPU_POWER), GPU_LEGEND),
        Query(_of(m.GPU_POWER_LIMIT, 'kind="enforced"'), "limit, " + GPU_LEGEND),
    ),
    width=24,
)
_ENERGY = Panel(
    "Energy of each GPU",
    "Joules over the time range, from the energy counter: nothing is lost between scrapes.",
    "joule",
    (Query(f"increase({_of(m.GPU_ENERGY)}[$__range])", GPU_LEGEND),),
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
_UTILIZATION = lines(
    "Utilization",
    "Share of time in which a kernel ran. It says nothing of how much of the GPU the kernel used.",
    "percentunit",
    _of(m.GPU_UTILIZATION, 'engine="gpu"'),
    GPU_LEGEND,
)
_MEMORY = lines("Memory in use", "On the board.", "bytes", _of(m.GPU_MEMORY_USED), GPU_LEGEND)
_TEMPERATURE = lines(
    "Temperature",
    "Of the GPU and of its memory, where the card tells it.",
    "celsius",
    _of(m.GPU_TEMPERATURE),
    GPU_LEGEND + " {{sensor}}",
)
_CLOCK = lines(
    "SM clock",
    "It falls under a power limit, or when the card is hot.",
    "hertz",
    _of(m.GPU_CLOCK, 'domain="sm"'),
    GPU_LEGEND,
)
_MEMORY_CLOCK = lines(
    "Memory clock", "Of the board's memory.", "hertz", _of(m.GPU_CLOCK, 'domain="memory"'), GPU_LEGEND
)
_HELD_S = _of(m.GPU_CLOCK_EVENT_SECONDS)
_THROTTLED = lines(
    "Held down by",
    "Share of time for which each reason held the clocks down; sw_power_cap is the power limit at work. "
    "Reasons that never did are left out.",
    "percentunit",
    f"rate({_HELD_S}[$__rate_interval]) and increase({_HELD_S}[$__range] @ end()) > 0",
    GPU_LEGEND + " {{reason}}",
).without(data="Nothing held the clocks down in the time range.")
_CPU_POWER = Panel(
    "Power of CPUs",
    "Of packages, by RAPL. Zones lie in each other, so packages stand alone here, and memory (dram) below.",
    "watt",
    (
        Query(selector(m.CPU_POWER, 'zone="package"'), NODE_LEGEND + " package {{package}}"),
        Query(selector(m.CPU_POWER, 'zone="dram"'), NODE_LEGEND + " dram {{package}}"),
    ),
    remedy="No RAPL is read: exporter check says why, and what to do.",
)
_HOST = Panel(
    "Host",
    "CPU time that was not idle, and memory that is not available to new work, as shares of all there is.",
    "percentunit",
    (
        Query(selector(m.HOST_CPU_UTILIZATION), NODE_LEGEND + " CPU"),
        Query(f"{selector(m.HOST_MEMORY_USED)} / {selector(m.HOST_MEMORY_TOTAL)}", NODE_LEGEND + " memory"),
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
