"""An exporter's series over a range as a source hands them out, thinned where they are long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from analyzer.model.samples import Samples, Series
from analyzer.sources.base import PartedSource, Source
from analyzer.sources.downsample import Key, Thinned, key, plan
from exporter.contract.metrics import Metric

LabelledSamples = tuple[Mapping[str, str], Samples]
Span = tuple[float, float]


def fetched(
    source: Source, metrics: Sequence[Metric], matchers: Mapping[str, str], span: Span, window: Span
) -> list[LabelledSamples]:
    """Of `span`; what is exact of `window` goes with a series that was thinned. Raises SourceError."""
    planned = plan(*span, window)
    counters = {metric.name for metric in metrics if metric.kind == "counter"}
    labels: dict[Key, Mapping[str, str]] = {}
    found: dict[Key, Thinned] = {}
    for part in _parts(source, metrics, matchers, span):
        together: defaultdict[Key, list[Series]] = defaultdict(list)
        for one in part:
            together[key(one[0])].append(one)
        for which, series in together.items():
            if which not in found:
                name = labels.setdefault(which, series[0][0])["__name__"]
                found[which] = Thinned("counter" if name in counters else "gauge", planned, window)
            found[which].add(np.concatenate([t for _, t, _ in series]), np.concatenate([v for _, _, v in series]))
    return [(labels[which], Samples(*one.result())) for which, one in found.items()]


def _parts(
    source: Source, metrics: Sequence[Metric], matchers: Mapping[str, str], span: Span
) -> Iterator[list[Series]]:
    if isinstance(source, PartedSource):
        yield from source.parts(metrics, matchers, *span)
        return
    frame = source.fetch(metrics, matchers, *span)
    texts = [name for name in frame.columns if name not in ("t", "value")]
    series: list[Series] = []
    for values, rows in frame.groupby(texts, sort=False, observed=True) if len(frame) else ():
        known = {str(name): str(text) for name, text in zip(texts, values, strict=True) if text}
        known["__name__"] = known.pop("metric")
        times, readings = (rows[name].to_numpy(dtype=np.float64) for name in ("t", "value"))
        series.append((known, times, readings))
    yield series
