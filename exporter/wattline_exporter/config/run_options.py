"""Options of discovered runs, and of the limits of all runs."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from wattline.contract.api import OWNER_LABELS


class RunSeries(enum.StrEnum):
    all = "all"
    slim = "slim"


DiscoverOption = Annotated[
    str | None,
    typer.Option(
        "--runs.discover",
        help="Make a run of each owner of GPU processes: slurm, kubernetes, container, service, "
        "user; auto: all.",
        metavar="KIND,...",
    ),
]
JobMappingOption = Annotated[
    Path | None,
    typer.Option(
        "--hpc-job-mapping-dir",
        help="Folder in which a Slurm prolog names the jobs of each GPU, as for dcgm-exporter.",
        metavar="FOLDER",
    ),
]
RunLabelsOption = Annotated[
    str | None,
    typer.Option(
        "--runs.labels",
        help="Labels of discovered runs; of pods also pod_label:NAME and pod_annotation:NAME.",
        metavar="NAME,...",
        show_default=",".join(OWNER_LABELS),
    ),
]
MaxRunsOption = Annotated[
    int,
    typer.Option(
        "--runs.max",
        min=1,
        max=10_000,
        metavar="N",
        help="Limit of the runs that are open at a time.",
    ),
]
MinSecondsOption = Annotated[
    float,
    typer.Option(
        "--runs.min-seconds",
        min=0.0,
        metavar="SECONDS",
        help="Duration below which a discovered run has no series in /metrics; its owner's "
        "counters have its energy.",
    ),
]
MinJoulesOption = Annotated[
    float,
    typer.Option(
        "--runs.min-joules",
        min=0.0,
        metavar="JOULES",
        help="Attributed energy below which a discovered run has no series in /metrics.",
    ),
]
RunSeriesOption = Annotated[
    RunSeries,
    typer.Option(
        "--runs.series",
        help="Series of each run in /metrics: all, or slim: without cross-checks and shares by "
        "policy idle_apart.",
    ),
]
RunTailOption = Annotated[
    str | None,
    typer.Option(
        "--runs.tail",
        help="Time for which /metrics has the series of a run that has ended.",
        metavar="TIME",
        show_default="10m",
    ),
]
