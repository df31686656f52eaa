"""Output of `analyzer variability`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wattline_analyzer.core.tables import (
    Cell,
    Column,
    CommandOutput,
    Table,
    count_cell,
    estimate_cell,
    estimate_record,
    text_cell,
)
from wattline_analyzer.variability.figures import GpuRun, GpuSpread, Variability

_MOST_GPUS = 40
_NOTES = (
    "In brackets: 95 % CI for all GPUs of this model, from five GPUs on (medians: from six).",
    (
        "The CI of the CV is of the GPUs that are no outliers. Of all GPUs, at most the upper "
        "share "
        "are outliers."
    ),
    "Whisker ranges are of these GPUs only and have no CI.",
)


def variability_output(
    variability: Variability, quantity: str, runs: Sequence[GpuRun]
) -> CommandOutput:
    """Return the variability of `quantity`, a name with its unit; the document has the values of
    the `runs`.
    """
    ratios = [
        ("whisker range over median, runs", variability.whisker_runs),
        ("whisker range over median, GPUs", variability.whisker_gpus),
        ("CV between GPUs", variability.between),
        *(
            [("CV between GPUs, without outliers", variability.inner)]
            if variability.outliers.number > 0
            else []
        ),
        *([] if math.isnan(variability.outliers.number) else [("outliers", variability.outliers)]),
        ("CV within a GPU (median)", variability.within),
    ]
    rows = [[text_cell(name), estimate_cell(one, 100, " %")] for name, one in ratios]
    rows += [
        [text_cell(f"correlation with {name}"), estimate_cell(one)]
        for name, one in variability.correlations.items()
    ]
    farthest = sorted(variability.gpus, key=lambda gpu: abs(gpu.deviation), reverse=True)[
        :_MOST_GPUS
    ]
    more = f"The {_MOST_GPUS} GPUs with the largest deviation; use --format csv for all."
    gpu_count = len(variability.gpus)
    parts: list[str | Table] = [
        f"{quantity}: {variability.runs} runs on {gpu_count} GPU{'s' if gpu_count != 1 else ''}",
        Table("", [Column("Statistic", text=True), Column("Value")], rows, notes=_NOTES),
        _gpu_table(farthest, quantity, [more] if len(farthest) < gpu_count else []),
    ]
    if variability.placements:
        effects = [
            [
                text_cell(one.placement),
                estimate_cell(one.effect, 100, " %"),
                count_cell(one.gpus),
            ]
            for one in variability.placements
        ]
        columns = [
            Column("Placement", text=True),
            Column(f"Change from {variability.reference}"),
            Column("GPUs"),
        ]
        parts.append(Table("", columns, effects))
    return CommandOutput(
        parts,
        _document(variability, quantity, runs),
        _gpu_table(variability.gpus, quantity).records(),
    )


def _gpu_table(gpus: Sequence[GpuSpread], quantity: str, notes: Sequence[str] = ()) -> Table:
    columns = (
        Column("GPU", "gpu", text=True, whole=True),
        Column("Name", "label", text=True),
        Column("Runs", "runs"),
        Column(f"Median, {quantity}", "median"),
        Column("Deviation", "from_middle_ratio"),
        Column("CV within", "within_cv_ratio"),
        Column("Outlier", "outlier", text=True),
    )
    return Table("", columns, [_gpu_row(gpu) for gpu in gpus], notes=notes)


def _gpu_row(gpu: GpuSpread) -> list[Cell]:
    return [
        text_cell(gpu.gpu),
        text_cell(gpu.label),
        count_cell(gpu.n),
        Cell(f"{gpu.median:.5g}", gpu.median),
        Cell(f"{100 * gpu.deviation:+.2f} %", gpu.deviation),
        Cell() if gpu.cv is None else Cell(f"{100 * gpu.cv:.2f} %", gpu.cv),
        Cell("too few GPUs" if gpu.outlier is None else "yes" if gpu.outlier else "", gpu.outlier),
    ]


def _document(variability: Variability, quantity: str, runs: Sequence[GpuRun]) -> dict[str, Any]:
    return {
        "version": 1,
        "value": quantity,
        "runs": variability.runs,
        **estimate_record(variability.whisker_runs, "whisker_range_of_runs_ratio"),
        **estimate_record(variability.whisker_gpus, "whisker_range_of_gpus_ratio"),
        **estimate_record(variability.between, "between_gpus_cv_ratio"),
        **estimate_record(variability.inner, "between_gpus_cv_without_outliers_ratio"),
        **estimate_record(variability.outliers, "outlier_gpus_ratio"),
        **estimate_record(variability.within, "within_gpu_cv_ratio"),
        "correlations": {
            name: estimate_record(one, "r") for name, one in variability.correlations.items()
        },
        "gpus": _gpu_table(variability.gpus, quantity).records(),
        "reference_placement": variability.reference,
        "placements": [
            {
                "placement": one.placement,
                "gpus": one.gpus,
                **estimate_record(one.effect, "effect_ratio"),
            }
            for one in variability.placements
        ],
        "values": [
            {
                "run_id": run.run_id,
                "gpu": run.gpu,
                "label": run.label,
                "placement": run.placement,
                "value": run.value,
                **{
                    f"median_{name}": value
                    for name, value in run.covariates.items()
                    if math.isfinite(value)
                },
            }
            for run in runs
        ],
    }
