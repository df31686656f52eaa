"""Rendering of metrics in the formats that Prometheus scrapes.

The encoders of prometheus_client build each series' name and labels again at every scrape, which is
nine tenths of the work. Here that is done once per series. A test compares the bytes with theirs.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from wattline.contract.metrics import METRICS, Metric
from wattline_exporter.sensors.readings import NativeBuckets, Reading, boottime, printable
from wattline_exporter.storage.writer import StateWriter

SHARED_S = 0.25
PROTOBUF = (
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
)
SAVE_WITHIN_S = 0.25
"""Longest wait of a scrape for the disk."""
_FAMILIES = {metric.name: metric for metric in METRICS}
_ORDER = {name: place for place, name in enumerate(_FAMILIES)}
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

Families = list[tuple[Metric, list[bytes]]]
"""Lines of each metric in the contract's order, in UTF-8, the same for both formats. Those of an
ended run are one text for each metric.
"""


class RenderedSeries:
    """Series that no longer change, with their text. The text is compressed: with eight GPUs, that
    of a run takes a tenth of the memory, and a page with 300 runs takes 3 ms more.
    """

    __slots__ = ("_lengths", "_metrics", "_packed", "readings")

    def __init__(self, readings: Iterable[Reading], families: Families) -> None:
        self.readings = readings
        texts = [b"".join(lines) for _, lines in families]
        self._metrics = tuple([metric for metric, _ in families])
        self._lengths = array("I", map(len, texts))
        self._packed = zlib.compress(b"".join(texts))

    @property
    def families(self) -> Families:
        """Return one text for each metric."""
        text = zlib.decompress(self._packed)
        families = []
        begin = 0
        for metric, length in zip(self._metrics, self._lengths, strict=True):
            families.append((metric, [text[begin : begin + length]]))
            begin += length
        return families


class CollectedSeries(NamedTuple):
    """All series of one instant. Those of ended runs do not change, and are rendered already."""

    readings: Iterable[Reading]
    ended: Iterable[RenderedSeries] = ()


@dataclass(frozen=True, slots=True)
class MetricsPage:
    body: bytes
    content_type: str
    compressed: bool


class MetricsRenderer:
    """Pages of metrics. `collect` and `collect_native` are called once for all requests within
    SHARED_S.
    """

    def __init__(
        self,
        collect: Callable[[], CollectedSeries],
        clock: Callable[[], float] = boottime,
        *,
        collect_native: Callable[[], Iterable[NativeBuckets]] = tuple,
    ) -> None:
        self._collect = collect
        self._collect_native = collect_native
        self._clock = clock
        self._readings: list[Reading] = []
        """Readings of the latest page that may still change."""
        self._ended: list[RenderedSeries] = []
        self._native: list[NativeBuckets] = []
        self._pages: dict[tuple[str, bool], MetricsPage] = {}
        self._series: dict[tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]], str] = {}
        """Text of each series of the last rendering."""
        self.rendered_s = float("-inf")

    def page(self, accept: str, *, compress: bool) -> MetricsPage:
        now_s = self._clock()
        if now_s - self.rendered_s >= SHARED_S:
            self.rendered_s = now_s
            self.forget_pages()
            collected = self._collect()
            self._readings = list(collected.readings)
            self._ended = list(collected.ended)
            self._native = list(self._collect_native())
        content_type = PROTOBUF if _prefers_protobuf(accept) else choose_encoder(accept)[1]
        page = self._pages.get((content_type, compress))
        if page is None:
            plain = self._pages.get((content_type, False))
            body = plain.body if plain else self._encode(content_type)
            self._pages[content_type, False] = MetricsPage(body, content_type, compressed=False)
            if compress:
                self._pages[content_type, True] = MetricsPage(
                    gzip.compress(body, 1, mtime=0), content_type, compressed=True
                )
            page = self._pages[content_type, compress]
        return page

    def forget_pages(self) -> None:
        """Release the memory of the pages, which other requests no longer share."""
        self._pages = {}

    @property
    def readings(self) -> Sequence[Reading]:
        """Readings of the latest page."""
        return [*self._readings, *chain.from_iterable(each.readings for each in self._ended)]

    def _encode(self, content_type: str) -> bytes:
        if content_type == PROTOBUF:
            from wattline_exporter.web.protobuf import encode_protobuf  # most servers scrape text

            return encode_protobuf(self.readings, self._native)
        openmetrics = content_type.startswith("application/openmetrics-text")
        return encode_families(self._lines(), openmetrics=openmetrics)

    def _lines(self) -> Families:
        grouped: dict[str, tuple[Metric, list[bytes]]] = {}
        used = {}
        for reading in self._readings:
            metric = reading.metric
            key = metric.name, reading.labels, reading.extra
            used[key] = text = self._series.get(key) or series_text(reading)
            family = metric.family or metric.name
            if family not in grouped:
                grouped[family] = _FAMILIES[family], []
            grouped[family][1].append(_line(text, reading))
        self._series = used
        for ended in self._ended:
            for metric, lines in ended.families:
                grouped.setdefault(metric.name, (metric, []))[1].extend(lines)
        return [grouped[name] for name in sorted(grouped, key=_ORDER.__getitem__)]


def _prefers_protobuf(accept: str) -> bool:
    """Return whether protobuf comes before the other formats, as from a server that scrapes native
    histograms.
    """
    for each in accept.split(","):
        kind, *parameters = (part.strip() for part in each.split(";"))
        if kind == "application/vnd.google.protobuf":
            return {"proto=io.prometheus.client.MetricFamily", "encoding=delimited"} <= set(
                parameters
            )
        if kind in ("application/openmetrics-text", "text/plain"):
            return False
    return False


class SavedMetrics:
    """Pages of metrics whose counters are saved first: otherwise they could fall after a
    SIGKILL.
    """

    def __init__(
        self, renderer: MetricsRenderer, storage: StateWriter, stopping: asyncio.Event
    ) -> None:
        self._renderer = renderer
        self._storage = storage
        self._stopping = stopping
        self._save: asyncio.Task[Any] | None = None

    async def page(self, accept: str, *, compress: bool) -> MetricsPage:
        page = self._render(accept, compress=compress)
        await self._wait_for_save()
        return page

    async def readings(self) -> Sequence[Reading]:
        """Return the readings of a page of this moment."""
        self._render("text/plain", compress=False)
        readings = self._renderer.readings  # a scrape may render others before they are saved
        await self._wait_for_save()
        return readings

    def _render(self, accept: str, *, compress: bool) -> MetricsPage:
        """Return a page, and start a save if its values are new."""
        rendered_s = self._renderer.rendered_s
        page = self._renderer.page(accept, compress=compress)
        if self._renderer.rendered_s != rendered_s:
            asyncio.get_running_loop().call_later(SHARED_S, self._renderer.forget_pages)
            if not self._stopping.is_set():
                self._save = self._storage.next_save()
        return page

    async def _wait_for_save(self) -> None:
        if self._save and not self._save.done():
            await asyncio.wait({self._save}, timeout=SAVE_WITHIN_S)


def ended_families(readings: Iterable[Reading]) -> Families:
    """Return the text of each metric of an ended run, in the order of their first readings."""
    grouped: dict[str, tuple[Metric, list[bytes]]] = {}
    for reading in readings:
        grouped.setdefault(reading.metric.name, (reading.metric, []))[1].append(
            _line(series_text(reading), reading)
        )
    return [(metric, [b"".join(lines)]) for metric, lines in grouped.values()]


def _line(series: str, reading: Reading) -> bytes:
    value = floatToGoString(reading.value)  # type: ignore[no-untyped-call]  # the library leaves it untyped
    return f"{series}{value}\n".encode()


def series_text(reading: Reading) -> str:
    """Return `name{label="value"} `, the labels sorted by name."""
    labels = {
        **dict(zip(reading.metric.labels, reading.labels, strict=True)),
        **dict(reading.extra),
    }
    inner = ",".join(
        f'{name}="{printable(labels[name]).translate(_ESCAPED)}"' for name in sorted(labels)
    )
    return f"{reading.metric.name}{{{inner}}} " if inner else f"{reading.metric.name} "


def encode_families(families: Families, *, openmetrics: bool) -> bytes:
    parts: list[bytes] = []
    for metric, lines in families:
        name, kind = _openmetrics_family(metric) if openmetrics else (metric.name, metric.kind)
        text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
        if openmetrics:
            text = text.replace('"', r"\"")
        parts += [f"# HELP {name} {text}\n# TYPE {name} {kind}\n".encode(), *lines]
    if openmetrics:
        parts.append(b"# EOF\n")
    return b"".join(parts)


def _openmetrics_family(metric: Metric) -> tuple[str, str]:
    """Return name and type of the family; the name of a counter without _total may be that of a
    histogram.
    """
    name = metric.name.removesuffix("_total")
    if metric.kind != "counter":
        return metric.name, metric.kind
    return (metric.name, "unknown") if name in _FAMILIES else (name, metric.kind)
