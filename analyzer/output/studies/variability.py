"""How much GPUs differ, as `analyzer variability` shows it."""

from __future__ import annotations

from typing import Any

from analyzer.output.view import Table, View, estimate, with_interval
from analyzer.studies.variability import Variability

_MOST_GPUS = 40
_BRACKETS = (
    "in brackets what holds the truth of all such GPUs with 95 %, from five GPUs on (medians: six);\n"
    "a whisker range is of these GPUs alone"
)


def view(found: Variability, what: str) -> View:
    """`what` is the value that was looked at, with its unit."""
    ratios = [
        ("whisker range over median, runs", found.whisker_runs),
        ("whisker range over median, GPUs", found.whisker_gpus),
        ("CV between GPUs", found.between),
        ("CV within a GPU (median)", found.within),
    ]
    rows = [[name, with_interval(one, 100, " %")] for name, one in ratios]
    rows += [[f"correlation with {name}", with_interval(one)] for name, one in found.correlations.items()]
    parts: list[str | Table] = [
        f"{what}: {found.runs} runs on {len(found.gpus)} GPU{'s' if len(found.gpus) != 1 else ''}",
        _BRACKETS,
        Table(["", "value"], rows),
    ]
    worst = sorted(found.gpus, key=lambda gpu: abs(gpu.apart), reverse=True)[:_MOST_GPUS]
    if len(worst) < len(found.gpus):
        parts.append(f"the {_MOST_GPUS} GPUs that are farthest from the middle; --format csv has all")
    parts.append(
        Table(
            ["GPU", "runs", "median", "from the middle", "CV within", "outlier"],
            [
                [
                    gpu.gpu,
                    str(gpu.n),
                    f"{gpu.median:.5g}",
                    f"{100 * gpu.apart:+.2f} %",
                    "–" if gpu.cv is None else f"{100 * gpu.cv:.2f} %",
                    "too few GPUs" if gpu.outlier is None else "yes" if gpu.outlier else "",
                ]
                for gpu in worst
            ],
        )
    )
    if found.neighbours:
        effects = [[one.placement, with_interval(one.effect, 100, " %"), str(one.effect.n)] for one in found.neighbours]
        parts.append(Table(["placement", f"against {found.reference}", "GPUs"], effects))
    return View(parts, _document(found, what), _rows(found))


def _rows(found: Variability) -> list[dict[str, Any]]:
    return [
        {
            "gpu": gpu.gpu,
            "runs": gpu.n,
            "median": gpu.median,
            "from_middle_ratio": gpu.apart,
            "within_cv_ratio": gpu.cv,
            "outlier": gpu.outlier,
        }
        for gpu in found.gpus
    ]


def _document(found: Variability, what: str) -> dict[str, Any]:
    return {
        "version": 1,
        "value": what,
        "runs": found.runs,
        **estimate(found.whisker_runs, "whisker_range_of_runs_ratio"),
        **estimate(found.whisker_gpus, "whisker_range_of_gpus_ratio"),
        **estimate(found.between, "between_gpus_cv_ratio"),
        **estimate(found.within, "within_gpu_cv_ratio"),
        "correlations": {name: estimate(one, "r") for name, one in found.correlations.items()},
        "gpus": _rows(found),
        "reference_placement": found.reference,
        "placements": [
            {"placement": one.placement, "gpus": one.effect.n, **estimate(one.effect, "effect_ratio")}
            for one in found.neighbours
        ],
    }
