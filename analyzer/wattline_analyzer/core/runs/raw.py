"""Raw samples of a run without downsampling: for export and for files of other tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from wattline.contract import metrics as m
from wattline_analyzer.core.downsample import Key, series_key
from wattline_analyzer.core.recorded_run import RecordedRun
from wattline_analyzer.core.runs.load import last_scrapes, run_not_found
from wattline_analyzer.core.runs.scrapes import AHEAD_S
from wattline_analyzer.core.sample_table import SampleTable, join_tables
from wattline_analyzer.core.samples import Series, clean
from wattline_analyzer.core.sources.base import SampleSource

_OF_RUNS = tuple(metric for metric in m.METRICS if metric.name.startswith("wattline_run_"))
_OF_NODES = tuple(metric for metric in m.METRICS if metric not in _OF_RUNS)


def fetch_whole_run(
    source: SampleSource,
    run_id: str,
    within: tuple[float, float],
    margin_s: float,
    log: Callable[[str], None],
) -> Iterator[list[Series]]:
    """Yield the run's series, and its nodes' series from `margin_s` before to after it; `within` is
    searched, up to AHEAD_S from now.

    Raises FetchError if the run is not there.
    """
    scrapes = last_scrapes(source, *within, run_id)
    if not scrapes:
        now_s = within[1] - AHEAD_S
        raise run_not_found(source, run_id, now_s - within[0], now_s)
    start_s = min(row.value for row in scrapes)
    last_s = max(row.t for row in scrapes)
    ends_s: dict[str, float] = {}
    first_s = min(start_s, *(row.t for row in scrapes))
    for part in source.parts(_OF_RUNS, {"run_id": run_id}, first_s, last_s):
        ended = [one for one in part if one[0]["__name__"] == m.RUN_END.name]
        ends_s |= {labels.get("instance", ""): float(value[-1]) for labels, _, value in ended}
        yield part
    if len(ends_s) < len(scrapes):
        log(f"run {run_id}: its end is not at {source.name}; the export ends with its last scrape")
    end_s = max(ends_s.values()) if len(ends_s) >= len(scrapes) else last_s
    for instance in sorted({row.instance for row in scrapes}):
        where = {"instance": instance} if instance else {}
        yield from source.parts(_OF_NODES, where, start_s - margin_s, end_s + margin_s)


_NEAR_S = 60.0
_WANTED = (
    *(
        m.GPU_POWER,
        m.GPU_POWER_LIMIT,
        m.GPU_UTILIZATION,
        m.GPU_MEMORY_USED,
        m.GPU_MEMORY_TOTAL,
        m.GPU_TEMPERATURE,
    ),
    *(m.GPU_TEMPERATURE_LIMIT, m.GPU_CLOCK, m.GPU_CLOCK_MAX, m.GPU_FAN),
)


def fetch_every_scrape(source: SampleSource, recorded: RecordedRun) -> SampleTable:
    """Return the samples of the run and a minute before and after it. Raises FetchError."""
    start_s = recorded.scrapes.span_s[0] - _NEAR_S
    end_s = recorded.scrapes.span_s[1] + _NEAR_S
    parts = [source.fetch([m.RUN_WORK], {"run_id": recorded.run_id}, start_s, end_s)]
    for instance in recorded.scrapes.instances:
        where = {"instance": instance} if instance else {}
        parts.append(source.fetch(_WANTED, where, start_s, end_s))
    return join_tables(parts)


_ORDER = {metric.name: place for place, metric in enumerate(m.METRICS)}


class SeriesSpool:
    """Files that collect series part by part, 16 bytes per sample; the label `job` does not
    distinguish series.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._labels: dict[Key, Mapping[str, str]] = {}
        self._paths: dict[Key, Path] = {}

    @property
    def label_names(self) -> list[str]:
        """Sorted names of all labels but `__name__`, `instance` first."""
        names = {name for labels in self._labels.values() for name in labels} - {"__name__"}
        return sorted(names, key=lambda name: (name != "instance", name))

    def add(self, part: Iterable[Series]) -> None:
        """Append the samples of a part. Raises OSError."""
        for part_labels, t, value in part:
            labels = {name: text for name, text in part_labels.items() if text and name != "job"}
            if labels["__name__"] in _ORDER and len(t):
                path = self._paths.setdefault(
                    series_key(labels), self._folder / str(len(self._paths))
                )
                self._labels.setdefault(series_key(labels), labels)
                with path.open("ab") as file:
                    file.write(np.column_stack((t, value)).tobytes())

    def series(self) -> Iterator[Series]:
        """Yield whole series in the contract's order of metrics, then by labels. Raises OSError."""
        for labels in sorted(self._labels.values(), key=_sort_key):
            pairs = np.fromfile(self._paths[series_key(labels)], dtype=np.float64).reshape(-1, 2)
            cleaned = clean(pairs[:, 0], pairs[:, 1])
            if len(cleaned):
                yield labels, cleaned.t, cleaned.value


def _sort_key(labels: Mapping[str, str]) -> tuple[int, list[tuple[str, str]]]:
    return _ORDER[labels["__name__"]], sorted(labels.items())
