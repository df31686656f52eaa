"""All that a source holds of one run: its own series, and its nodes' from a while before it until a while after."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from analyzer.joining import joined
from analyzer.series import last
from analyzer.sources.error import SourceError
from analyzer.sources.runs import sightings
from analyzer.sources.source import Source
from exporter.contract import metrics as m

_OF_RUNS = tuple(metric for metric in m.METRICS if metric.name.startswith("wattline_run_"))
_OF_NODES = tuple(metric for metric in m.METRICS if metric not in _OF_RUNS)


def whole_run(
    source: Source, run_id: str, within: tuple[float, float], margin_s: float, say: Callable[[str], None]
) -> pd.DataFrame:
    """One tidy frame of raw samples, nothing resampled; `within` is where to look for the run.

    Raises SourceError where it is not there.
    """
    seen = sightings(source, *within, run_id)
    if not seen:
        raise SourceError(
            f"no run {run_id!r} at {source.name} in the last {(within[1] - within[0]) / 86_400:.3g} days",
            "see: analyzer runs, and --since",
        )
    start_s, last_s = min(row.value for row in seen), max(row.t for row in seen)
    own = source.fetch(_OF_RUNS, {"run_id": run_id}, min(start_s, *(row.t for row in seen)), last_s)
    ends_s = [row.value for row in last(own, m.RUN_END, run_id=run_id)]
    if len(ends_s) < len(seen):
        say(f"run {run_id}: its end is not at {source.name}: what is exported goes to its last scrape")
    end_s = max(ends_s) if len(ends_s) >= len(seen) else last_s
    frames = [own]
    for instance in sorted({row.instance for row in seen}):
        where = {"instance": instance} if instance else {}
        frames.append(source.fetch(_OF_NODES, where, start_s - margin_s, end_s + margin_s))
    return joined(frames)
