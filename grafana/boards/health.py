"""Whether the exporters themselves are well, and what they cost."""

from __future__ import annotations

from exporter.contract import metrics as m
from grafana.board import CLUSTER, NODE, NODE_KEY, Board, selector
from grafana.panel import Panel, Query

_NOT_OK = 'outcome!="ok"'
_UP = Panel(
    "Sources",
    "1 where the last read succeeded and is not late. A source that is down has no other series.",
    "short",
    (Query(selector(m.SOURCE_UP), "{{instance}} {{source}}"),),
)
_GPUS = Panel(
    "GPUs that answer",
    "Those that do not have wattline_gpu_up 0 and no other series.",
    "short",
    (
        Query(f"sum by ({NODE_KEY}) ({selector(m.GPU_UP)})", "{{instance}} up"),
        Query(
            f"count by ({NODE_KEY}) ({selector(m.GPU_UP)}) - sum by ({NODE_KEY}) ({selector(m.GPU_UP)})",
            "{{instance}} down",
        ),
    ),
)
_AGE = Panel(
    "Age of the last read",
    "Of each source.",
    "s",
    (Query(f"time() - {selector(m.SOURCE_READ_TIMESTAMP)}", "{{instance}} {{source}}"),),
)
_FAILED = Panel(
    "Reads that failed or were late",
    "By source and outcome.",
    "suffix:/s",
    (
        Query(
            f"rate({selector(m.SOURCE_READS, _NOT_OK)}[$__rate_interval])",
            "{{instance}} {{source}} {{outcome}}",
        ),
    ),
)
_SUSPECT = Panel(
    "Energy that is not to be trusted",
    "1 while a counter stands still, jumps, or disagrees with the power; the run's report says so as well.",
    "short",
    (Query(selector(m.GPU_ENERGY_SUSPECT), "{{instance}} GPU {{gpu}} {{reason}}"),),
)
_APART = Panel(
    "Counter against integral",
    "How far the integral of the averaged power is from the energy counter, over ten minutes.",
    "percentunit",
    (
        Query(
            f"increase({selector(m.GPU_INTEGRATED_ENERGY)}[10m]) / (increase({selector(m.GPU_ENERGY)}[10m]) > 0) - 1",
            "{{instance}} GPU {{gpu}}",
        ),
    ),
)
_CPU = Panel(
    "CPU of the exporters",
    "Of one core.",
    "percentunit",
    (Query(f"sum by ({NODE_KEY}, role) (rate({selector(m.PROCESS_CPU)}[$__rate_interval]))", "{{instance}} {{role}}"),),
)
_MEMORY = Panel(
    "Memory of the exporters", "Resident.", "bytes", (Query(selector(m.PROCESS_MEMORY), "{{instance}} {{role}}"),)
)
_STATE = Panel(
    "State that can be written",
    "0 where the disk is full or read-only: the exporter serves on from memory.",
    "short",
    (Query(selector(m.STATE_UP), "{{instance}}"),),
)
_VERSIONS = Panel(
    "Versions",
    "Of the exporters.",
    "none",
    (Query(f"max by ({NODE_KEY}, version) ({selector(m.BUILD_INFO)})"),),
    "table",
    columns={"instance": "node", "cluster": "cluster", "version": "version", "Value": ""},
)

HEALTH = Board(
    "wattline-health",
    "Wattline: exporters",
    "Sources, GPUs that answer, energy that is not to be trusted, and what the exporters cost.",
    (CLUSTER, NODE),
    (
        ("Sources", (_UP, _GPUS, _AGE, _FAILED)),
        ("Trust", (_SUSPECT, _APART)),
        ("Cost", (_CPU, _MEMORY, _STATE, _VERSIONS)),
    ),
    since="now-3h",
)
