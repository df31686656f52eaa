"""All that a source holds of one run: its own series, and its nodes' from a while before it until a while after."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from analyzer.model.samples import Series
from analyzer.sources.base import Source
from analyzer.sources.downsampled import Asked, parts
from analyzer.sources.error import SourceError
from analyzer.sources.runs.runs import sightings
from exporter.contract import metrics as m

_OF_RUNS = tuple(metric for metric in m.METRICS if metric.name.startswith("wattline_run_"))
_OF_NODES = tuple(metric for metric in m.METRICS if metric not in _OF_RUNS)


def whole_run(
    source: Source, run_id: str, within: tuple[float, float], margin_s: float, say: Callable[[str], None]
) -> Iterator[list[Series]]:
    """Raw samples by parts, nothing resampled; `within` is where to look for the run.

    Raises SourceError where it is not there.
    """
    seen = sightings(source, *within, run_id)
    if not seen:
        raise SourceError(
            f"no run {run_id!r} at {source.name} in the last {(within[1] - within[0]) / 86_400:.3g} days",
            "see: analyzer runs, and --since",
        )
    start_s, last_s = min(row.value for row in seen), max(row.t for row in seen)
    ends_s: dict[str, float] = {}
    for part in parts(source, Asked(_OF_RUNS, {"run_id": run_id}, (min(start_s, *(row.t for row in seen)), last_s))):
        ended = [one for one in part if one[0]["__name__"] == m.RUN_END.name]
        ends_s |= {labels.get("instance", ""): float(value[-1]) for labels, _, value in ended}
        yield part
    if len(ends_s) < len(seen):
        say(f"run {run_id}: its end is not at {source.name}: what is exported goes to its last scrape")
    end_s = max(ends_s.values()) if len(ends_s) >= len(seen) else last_s
    for instance in sorted({row.instance for row in seen}):
        where = {"instance": instance} if instance else {}
        yield from parts(source, Asked(_OF_NODES, where, (start_s - margin_s, end_s + margin_s)))
