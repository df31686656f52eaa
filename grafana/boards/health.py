"""Dashboard of the exporters' health and cost."""

from __future__ import annotations

from grafana.board import CLUSTER, GPU_LEGEND, NODE, NODE_KEY, NODE_LEGEND, Board, selector
from grafana.panel import Panel, Query, lines
from wattline.contract import metrics as m

_NOT_OK = 'outcome!="ok"'
_READ = selector(m.SOURCE_READ_TIMESTAMP)
_STATE_CALCS = ("lastNotNull", "min")
_UP = lines(
    "Sources",
    "1 if the last read succeeded and is not late. A source that is down has no other series.",
    "short",
    selector(m.SOURCE_UP),
    NODE_LEGEND + " {{source}}",
).with_calcs(*_STATE_CALCS)
_GPUS = Panel(
    "Responding GPUs",
    "A GPU that does not respond has wattline_gpu_up 0 and no other series.",
    "short",
    (
        Query(f"sum by ({NODE_KEY}) ({selector(m.GPU_UP)})", NODE_LEGEND + " up"),
        Query(
            f"count by ({NODE_KEY}) ({selector(m.GPU_UP)}) - sum by ({NODE_KEY}) "
            f"({selector(m.GPU_UP)})",
            NODE_LEGEND + " down",
        ),
    ),
    calcs=_STATE_CALCS,
)
_AGE = lines(
    "Age of the last read",
    "Age of each source's last read at scrape time.",
    "s",
    f"timestamp({_READ}) - {_READ}",
    NODE_LEGEND + " {{source}}",
)
_FAILED = lines(
    "Failed or late reads",
    "Rate by source and outcome.",
    "suffix:/s",
    f"rate({selector(m.SOURCE_READS, _NOT_OK)}[$__rate_interval])",
    NODE_LEGEND + " {{source}} {{outcome}}",
)
_SUSPECT = lines(
    "Suspect energy counters",
    "1 while a counter stands still, jumps or contradicts the power; the run's report has a "
    "finding as well.",
    "short",
    selector(m.GPU_ENERGY_SUSPECT),
    GPU_LEGEND + " {{reason}}",
).with_calcs("lastNotNull", "max")
_APART = lines(
    "Counter against integral",
    "Deviation of the integral of averaged power from the energy counter, over ten minutes.",
    "percentunit",
    f"increase({selector(m.GPU_INTEGRATED_ENERGY)}[10m]) / "
    f"(increase({selector(m.GPU_ENERGY)}[10m]) > 0) - 1",
    GPU_LEGEND,
)
_CPU = lines(
    "CPU of the exporters",
    "Share of one core.",
    "percentunit",
    f"sum by ({NODE_KEY}, role) (rate({selector(m.PROCESS_CPU)}[$__rate_interval]))",
    NODE_LEGEND + " {{role}}",
)
_MEMORY = lines(
    "Memory of the exporters",
    "Resident memory.",
    "bytes",
    selector(m.PROCESS_MEMORY),
    NODE_LEGEND + " {{role}}",
)
_STATE = lines(
    "Writable state database",
    "0 if the disk is full or read-only; the exporter then serves from memory.",
    "short",
    selector(m.STATE_UP),
    NODE_LEGEND,
).with_calcs(*_STATE_CALCS)
_VERSIONS = Panel(
    "Versions",
    "Version of each exporter.",
    "none",
    (Query(f"max by ({NODE_KEY}, version) ({selector(m.BUILD_INFO)})"),),
    "table",
    columns={"instance": "node", "cluster": "cluster", "version": "version", "Value": ""},
)

HEALTH = Board(
    "wattline-health",
    "Wattline: exporters",
    "Sources, responding GPUs, suspect energy counters, and CPU and memory of the exporters.",
    (CLUSTER, NODE),
    (
        ("Sources", (_UP, _GPUS, _AGE, _FAILED)),
        ("Plausibility", (_SUSPECT, _APART)),
        ("Cost", (_CPU, _MEMORY, _STATE, _VERSIONS)),
    ),
    since="now-3h",
)
