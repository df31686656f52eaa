"""Which other tools' files a run or a sweep can be written as."""

from __future__ import annotations

import pandas as pd

from analyzer.model.report import Report
from analyzer.output.compatible import gpu_tune as compatible_gpu_tune
from analyzer.output.compatible import iris as compatible_iris

_OF_RUNS = {"gpu-tune": compatible_gpu_tune.files, "iris-gpubench": compatible_iris.files}


def of_run(names: list[str], report: Report, frame: pd.DataFrame) -> dict[str, bytes]:
    """Each tool's in a folder of its own; `frame` is that of `analyzer.sources.runs.raw`."""
    return {
        f"{name}/{file}": content
        for name in dict.fromkeys(names)
        for file, content in _OF_RUNS[name](report, frame).items()
    }
