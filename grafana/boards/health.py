"""Whether the exporters themselves are well, and what they cost."""

from __future__ import annotations

from exporter.contract import metrics as m
from grafana.board import CLUSTER, GPU_LEGEND, NODE, NODE_KEY, NODE_LEGEND, Board, selector
from grafana.panel import Panel, Query, lines

_NOT_OK = 'outcome!="ok"'
_READ = selector(m.SOURCE_READ_TIMESTAMP)
_STATE_CALCS = ("lastNotNull", "min")
_UP = lines(
    "Sources",
    "1 where the last read succeeded and is not late. A source that is down has no other series.",
    "short",
    selector(m.SOURCE_UP),
    NODE_LEGEND + " {{source}}",
).telling(*_STATE_CALCS)
_GPUS = Panel(
    "GPUs that answer",
    "Those that do not have wattline_gpu_up 0 and no other series.",
    "short",
    (
        Query(f"sum by ({NODE_KEY}) ({selector(m.GPU_UP)})", NODE_LEGEND + " up"),
        Query(
            f"count by ({NODE_KEY}) ({selector(m.GPU_UP)}) - sum by ({NODE_KEY}) ({selector(m.GPU_UP)})",
            NODE_LEGEND + " down",
        ),
    ),
    calcs=_STATE_CALCS,
)
_AGE = lines(
    "Age of the last read",
    "Of each source, when it was scraped.",
    "s",
    f"timestamp({_READ}) - {_READ}",
    NODE_LEGEND + " {{source}}",
)
_FAILED = lines(
    "Reads that failed or were late",
    "By source and outcome.",
    "suffix:/s",
    f"rate({selector(m.SOURCE_READS, _NOT_OK)}[$__rate_interval])",
    NODE_LEGEND + " {{source}} {{outcome}}",
)
_SUSPECT = lines(
    "Energy that is not to be trusted",
    "1 while a counter stands still, jumps, or disagrees with the power; the run's report says so as well.",
    "short",
    selector(m.GPU_ENERGY_SUSPECT),
    GPU_LEGEND + " {{reason}}",
).telling("lastNotNull", "max")
_APART = lines(
    "Counter against integral",
    "How far the integral of the averaged power is from the energy counter, over ten minutes.",
    "percentunit",
    f"increase({selector(m.GPU_INTEGRATED_ENERGY)}[10m]) / (increase({selector(m.GPU_ENERGY)}[10m]) > 0) - 1",
    GPU_LEGEND,
)
_CPU = lines(
    "CPU of the exporters",
    "Of one core.",
    "percentunit",
    f"sum by ({NODE_KEY}, role) (rate({selector(m.PROCESS_CPU)}[$__rate_interval]))",
    NODE_LEGEND + " {{role}}",
)
_MEMORY = lines("Memory of the exporters", "Resident.", "bytes", selector(m.PROCESS_MEMORY), NODE_LEGEND + " {{role}}")
_STATE = lines(
    "State that can be written",
    "0 where the disk is full or read-only: the exporter serves on from memory.",
    "short",
    selector(m.STATE_UP),
    NODE_LEGEND,
).telling(*_STATE_CALCS)
_PUSHES = "No node pushes: exporter serve --push.url."
_BEHIND = lines(
    "Pushing is behind by",
    "Time since the newest sample that a node is done with; it grows where the node is gone, too.",
    "s",
    f"time() - last_over_time({selector(m.PUSH_TIMESTAMP)}[1d])",
    NODE_LEGEND,
).without(data=_PUSHES)
_PUSHED = lines(
    "Samples pushed",
    "By outcome. Refused and dropped ones are not in the store.",
    "suffix:/s",
    f"rate({selector(m.PUSH_SAMPLES)}[$__rate_interval])",
    NODE_LEGEND + " {{outcome}}",
).without(data=_PUSHES)
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
        ("Pushing, where nothing scrapes", (_BEHIND, _PUSHED)),
        ("Cost", (_CPU, _MEMORY, _STATE, _VERSIONS)),
    ),
    since="now-3h",
)
