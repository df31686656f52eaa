"""`analyzer variability`: differences between the GPUs of an experiment at the same work."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from wattline.command_line import with_option_groups
from wattline_analyzer.core.options import (
    DEFAULT_SINCE,
    ConnectionOptions,
    FormatOption,
    SinceOption,
    UnitOption,
    WaitOption,
    duration_option,
)
from wattline_analyzer.core.printing import OutputFormat, exit_with_error, print_message

if TYPE_CHECKING:
    from wattline_analyzer.core.run_catalog import ScrapedRun

COMMAND = {
    "name": "variability",
    "help": "Show the differences between GPUs at the same work.",
    "group": "Compare and decide",
}


@with_option_groups
def variability_command(
    *,
    experiment: Annotated[
        str, typer.Option(metavar="NAME", help="Label `experiment` of the runs.")
    ],
    workload: Annotated[
        str | None, typer.Option(metavar="NAME", help="Workload of the runs (default: any).")
    ] = None,
    of: Annotated[
        str,
        typer.Option(
            metavar="QUANTITY",
            help="Quantity: time (s per unit of work), energy (J per unit), power (W), or the name "
            "of a result.",
        ),
    ] = "time",
    by: Annotated[
        str, typer.Option(metavar="LABEL", help="Label that distinguishes placements.")
    ] = "case",
    reference: Annotated[
        str | None, typer.Option(metavar="VALUE", help="Placement to compare the others with.")
    ] = None,
    unit: UnitOption = None,
    form: FormatOption = OutputFormat.TABLE,
    since: SinceOption = DEFAULT_SINCE,
    wait: WaitOption = True,
    connection: ConnectionOptions,
) -> None:
    """Show the differences between GPUs at the same work.

    For each placement: median and spread, the variation between GPUs and between repeats on one GPU
    (CV: standard deviation / mean), outliers, correlations with temperature and clock, and effects
    of neighboring jobs.
    """
    since_s = duration_option(since)
    from wattline.contract.metrics import GPU_INFO
    from wattline_analyzer.core.printing import print_output
    from wattline_analyzer.core.recorded_run import gpu_models
    from wattline_analyzer.core.run_catalog import Selector
    from wattline_analyzer.core.runs.find import find_runs, load_runs
    from wattline_analyzer.core.runs.load import Clock
    from wattline_analyzer.core.sample_table import last
    from wattline_analyzer.variability.figures import gpu_variability
    from wattline_analyzer.variability.load import (
        MixedQuantityError,
        VariedQuantity,
        variability_rows,
    )
    from wattline_analyzer.variability.output import variability_output

    equal = {"experiment": experiment} | ({"workload": workload} if workload else {})
    wanted = Selector(" and ".join(f"{name}={text}" for name, text in equal.items()), equal)
    clock = Clock(time.time, time.sleep, wait)
    with connection.open() as source:
        sightings = find_runs(source, wanted, since_s, clock, print_message)
        workloads = sorted({one.workload for one in sightings})
        _warn_about_sweep(sightings)
        if len(workloads) > 1:
            exit_with_error(
                f"{wanted.text} has runs of {', '.join(workloads)}; name one of them with "
                "--workload"
            )
        runs = load_runs(source, sightings, clock, print_message)
        try:
            rows, measure = variability_rows(
                source, runs, VariedQuantity(of, unit), by, print_message
            )
        except MixedQuantityError as error:
            exit_with_error(str(error))
    if not rows:
        exit_with_error(f"no run of {wanted.text} is on one GPU and has {of}; see: analyzer runs")
    try:
        result = gpu_variability(rows, reference)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    simulated = any(
        gpu.simulated for one in runs for gpu in gpu_models(last(one.raw, GPU_INFO)).values()
    )
    print_output(variability_output(result, measure, rows).marked(simulated=simulated), form)


def _warn_about_sweep(sightings: Iterable[ScrapedRun]) -> None:
    """Warn if limits or clocks differ, whose effect would count as a difference between GPUs."""
    from wattline_analyzer.recommend.sweep import SETTINGS

    for label in SETTINGS:
        values = sorted({one.labels.get(label, "none") for one in sightings})
        if len(values) > 1:
            print_message(
                f"the runs differ in {label} ({', '.join(values)}), which counts as variation "
                "here: use a separate "
                "experiment for each setting; to compare settings, see: analyzer recommend"
            )
