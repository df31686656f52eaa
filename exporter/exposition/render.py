"""Readings in the formats that Prometheus scrapes. One rendering serves all scrapes of the same quarter second.

The encoders of prometheus_client put each series' name and labels together at every scrape, which is nine tenths of the
work; here that is done once a series. A test holds the bytes against theirs.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from exporter.contract.metrics import METRICS, Metric
from exporter.exposition.label_text import shown
from exporter.model import Reading

SHARED_S = 0.25
_ORDER = {metric.name: place for place, metric in enumerate(METRICS)}
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

Families = list[tuple[Metric, list[str]]]
"""The lines of each metric, in the contract's order; the same for both formats."""


@dataclass(frozen=True, slots=True)
class Page:
    body: bytes
    content_type: str
    compressed: bool


class Exposition:
    """`readings` gives what there is now, and `finished`, after it, what no longer changes.

    They are called once for all who ask within SHARED_S.
    """

    def __init__(
        self,
        readings: Callable[[], Iterable[Reading]],
        clock: Callable[[], float],
        finished: Callable[[], Iterable[Families]] = tuple,
    ) -> None:
        self._readings = readings
        self._finished = finished
        self._clock = clock
        self._pages: dict[tuple[str, bool], Page] = {}
        self._series: dict[tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]], str] = {}
        """As text, those of the last rendering."""
        self._families: Families = []
        self.rendered_s = float("-inf")

    def page(self, accept: str, *, compress: bool) -> Page:
        now_s = self._clock()
        if now_s - self.rendered_s >= SHARED_S:
            self.rendered_s = now_s
            self._pages = {}
            self._families = self._lines(self._readings())
        _, content_type = choose_encoder(accept)
        found = self._pages.get((content_type, compress))
        if found is None:
            plain = self._pages.get((content_type, False))
            openmetrics = content_type.startswith("application/openmetrics-text")
            body = plain.body if plain else encode(self._families, openmetrics=openmetrics)
            self._pages[content_type, False] = Page(body, content_type, compressed=False)
            if compress:
                self._pages[content_type, True] = Page(gzip.compress(body, 1, mtime=0), content_type, compressed=True)
            found = self._pages[content_type, compress]
        return found

    def _lines(self, readings: Iterable[Reading]) -> Families:
        grouped: dict[str, tuple[Metric, list[str]]] = {}
        used = {}
        for reading in readings:
            metric = reading.metric
            key = metric.name, reading.labels, reading.extra
            used[key] = series = self._series.get(key) or series_text(reading)
            if metric.name not in grouped:
                grouped[metric.name] = metric, []
            grouped[metric.name][1].append(_line(series, reading))
        self._series = used
        for metric, lines in (family for families in self._finished() for family in families):
            grouped.setdefault(metric.name, (metric, []))[1].extend(lines)
        return [grouped[name] for name in sorted(grouped, key=_ORDER.__getitem__)]


def families(readings: Iterable[Reading]) -> Families:
    """In the order of their first readings."""
    grouped: dict[str, tuple[Metric, list[str]]] = {}
    for reading in readings:
        grouped.setdefault(reading.metric.name, (reading.metric, []))[1].append(_line(series_text(reading), reading))
    return list(grouped.values())


def _line(series: str, reading: Reading) -> str:
    value = floatToGoString(reading.value)  # type: ignore[no-untyped-call]  # the library leaves it untyped
    return f"{series}{value}\n"


def series_text(reading: Reading) -> str:
    """`name{label="value"} `, the labels by name."""
    labels = {**dict(zip(reading.metric.labels, reading.labels, strict=True)), **dict(reading.extra)}
    inner = ",".join(f'{name}="{shown(labels[name]).translate(_ESCAPED)}"' for name in sorted(labels))
    return f"{reading.metric.name}{{{inner}}} " if inner else f"{reading.metric.name} "


def encode(families: Families, *, openmetrics: bool) -> bytes:
    parts: list[str] = []
    for metric, lines in families:
        name = metric.name.removesuffix("_total") if openmetrics and metric.kind == "counter" else metric.name
        text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
        if openmetrics:
            text = text.replace('"', r"\"")
        parts += [f"# HELP {name} {text}\n", f"# TYPE {name} {metric.kind}\n", *lines]
    if openmetrics:
        parts.append("# EOF\n")
    return "".join(parts).encode()
