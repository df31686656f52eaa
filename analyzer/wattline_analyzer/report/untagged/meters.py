"""Clean series of each device of an exporter, in Wattline's metrics and units."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline_analyzer.core.downsample import near_edges
from wattline_analyzer.core.fetch import LabelledSamples, TimeRange
from wattline_analyzer.core.samples import Samples, clean, median_spacing_s, sample_median
from wattline_analyzer.report.untagged.schemas import NODE_LABELS, Foreign, Schema

_REPEATS = 1.5
"""Number of scrapes per change from which on a counter's values are assumed to be cached."""
_COUNTERS = (m.GPU_ENERGY.name, m.CPU_ENERGY.name)
_POWERS = (m.GPU_POWER.name, m.CPU_POWER.name)

SeriesByKey = Mapping[tuple[str, tuple[tuple[str, str], ...]], Samples]


@dataclass(frozen=True, slots=True, eq=False)
class WithoutRepeats:
    series: SeriesByKey
    age_s: float
    cached_s: float | None


def remove_repeats(
    schema: Schema, series: SeriesByKey, window: tuple[float, float]
) -> WithoutRepeats:
    """Remove repeated readings of energy and power from the series of one device.

    An exporter that reads its sensors every 30 s shows each reading in two scrapes of 15 s. The
    first scrape with a reading is at most one scrape late, and the reading itself up to one read
    interval old.

    Downsampled power is unchanged: its exact values are of all samples. A downsampled counter has
    all samples around the edges of `window`.
    """
    by_metric = {name: found for (name, _), found in series.items()}
    counter = next((by_metric[name] for name in _COUNTERS if name in by_metric), None)
    power = next((by_metric[name] for name in _POWERS if name in by_metric), None)
    shown = counter if counter is not None else power
    spacing_s = median_spacing_s(shown) if shown is not None else None
    if shown is None or spacing_s is None:
        return WithoutRepeats(series, 2 * schema.refresh_s + schema.late_s, None)
    period_s = (
        _period_s(shown, window) if counter is not None or schema.refresh_s > spacing_s else None
    )
    if period_s is None or period_s <= _REPEATS * spacing_s:
        return WithoutRepeats(series, 2 * min(spacing_s, schema.refresh_s) + schema.late_s, None)
    thinned = {
        key: first_of_each_reading(found, period_s if key[0] in _POWERS else None)
        if _is_read_again(key[0], found)
        else found
        for key, found in series.items()
    }
    return WithoutRepeats(thinned, period_s + spacing_s + schema.late_s, period_s)


def first_of_each_reading(series: Samples, at_least_s: float | None) -> Samples:
    """Return each reading at its first scrape, without the first one, which may be older.

    With `at_least_s` an unchanged value is kept once in that time: the power may really be
    constant.
    """
    changed = np.concatenate([[False], np.diff(series.value) != 0])
    if at_least_s is not None:
        newest_s = -np.inf
        for i, t in enumerate(series.t):
            changed[i] |= t - newest_s >= at_least_s
            newest_s = t if changed[i] else newest_s
    return Samples(series.t[changed], series.value[changed], series.exact)


def _is_read_again(name: str, series: Samples) -> bool:
    return name in _COUNTERS or (name in _POWERS and series.exact is None)


def _period_s(series: Samples, window: tuple[float, float]) -> float | None:
    """Return the median time between changes, None if there are too few."""
    whole = near_edges(series.t, window) if series.exact else np.ones(len(series), dtype=bool)
    times = series.t[whole]
    values = series.value[whole]
    at_s = times[1:][np.diff(values) != 0]
    return sample_median(np.diff(at_s)) if len(at_s) > 2 else None


Labels = tuple[tuple[str, str], ...]
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NONE = Samples(np.empty(0), np.empty(0))


@dataclass(frozen=True, slots=True, eq=False)
class Meter:
    """Device of an exporter: a GPU by UUID, a CPU package or its DRAM by the package's number.

    `series` has the names and labels of Wattline's metrics. `age_s` is the maximum age of a scraped
    value. `cached_s` is the exporter's read interval if scrapes repeat values.
    """

    schema: Schema
    instance: str
    node: str
    component: str
    device: str
    index: str
    info: Mapping[str, str]
    series: Mapping[tuple[str, Labels], Samples]
    age_s: float
    cached_s: float | None = None
    prefix: str = ""
    """Node name in front of the device's name, if there are several nodes."""

    def samples(self, metric: Metric) -> Samples:
        return next(
            (found for (name, _), found in self.series.items() if name == metric.name), _NONE
        )

    @property
    def counter(self) -> Samples:
        return self.samples(m.GPU_ENERGY if self.component == "gpu" else m.CPU_ENERGY)

    @property
    def power(self) -> Samples:
        return self.samples(m.GPU_POWER if self.component == "gpu" else m.CPU_POWER)

    @property
    def has_utilization(self) -> bool:
        return len(self.samples(m.GPU_UTILIZATION)) > 0

    @property
    def name(self) -> str:
        """Name for messages."""
        return f"{self.prefix}{self.component.upper()} {self.index}"


@dataclass(slots=True)
class _Gathered:
    """Pieces of one device's series, each with the position of its name in the schema."""

    instance: str
    node: str
    index: str = ""
    info: dict[str, str] = field(default_factory=dict)
    pieces: dict[tuple[str, Labels], list[tuple[int, Samples]]] = field(default_factory=dict)


def build_meters(
    schema: Schema, series: Iterable[LabelledSamples], window: TimeRange
) -> list[Meter]:
    """Return the devices of one instance that have energy or power.

    The first of several series of one counter is used: RAPL by MMIO repeats RAPL by MSR.
    """
    found: dict[tuple[str, str], _Gathered] = {}
    for labels, samples in sorted(series, key=lambda one: "mmio" in one[0].get("path", "")):
        for place, foreign in enumerate(schema.series):
            if foreign.name == labels["__name__"] and all(
                exporter_label(labels, (k,)) == v for k, v in foreign.only.items()
            ):
                _gather(found, schema, place, labels, _scaled(samples, foreign.scale))
    meters = [
        _meter(schema, component, device, gathered, window)
        for (component, device), gathered in found.items()
    ]
    return [meter for meter in meters if len(meter.counter) or len(meter.power)]


def exporter_label(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    """Return the exporter's own label, `exported_…` if a label of the scrape has the same name."""
    tried = (
        text
        for name in names
        for text in (labels.get(f"exported_{name}"), labels.get(name))
        if text
    )
    return next(tried, "")


def uuid_of(text: str) -> str:
    """Return the UUID as NVML writes it; some exporters omit `GPU-`."""
    bare = text.lower().removeprefix("gpu-")
    return f"GPU-{bare}" if _UUID.fullmatch(bare) or text.lower().startswith("gpu-") else text


def node_name(schema: Schema, labels: Mapping[str, str], instance: str) -> str:
    """Return the node in lower case: a label that names it, else the scraped host."""
    named = exporter_label(labels, schema.node) or next(
        (labels[name] for name in NODE_LABELS if labels.get(name)), ""
    )
    return (named or instance_host(instance)).lower()


def instance_host(instance: str) -> str:
    host, colon, port = instance.rpartition(":")
    return host.strip("[]") if colon and port.isdecimal() else instance


def is_address(node: str) -> bool:
    try:
        ipaddress.ip_address(node)
    except ValueError:
        return False
    return True


def _gather(
    found: dict[tuple[str, str], _Gathered],
    schema: Schema,
    place: int,
    labels: Mapping[str, str],
    samples: Samples,
) -> None:
    instance = labels.get("instance", "")
    foreign = schema.series[place]
    node = node_name(schema, labels, instance)
    is_gpu = foreign.metric not in (m.CPU_ENERGY, m.CPU_POWER)
    key = _gpu_key(schema, labels, node) if is_gpu else _cpu_key(schema, labels, foreign)
    if key is None:
        return
    gathered = found.setdefault(key, _Gathered(instance, node))
    gathered.index = gathered.index or (
        exporter_label(labels, schema.index) if key[0] == "gpu" else key[1]
    )
    for name, theirs in schema.info.items():
        gathered.info.setdefault(name, "")
        gathered.info[name] = gathered.info[name] or exporter_label(labels, theirs)
    series = (foreign.metric.name, tuple(sorted(foreign.labels.items())))
    gathered.pieces.setdefault(series, []).append((place, samples))


def _gpu_key(schema: Schema, labels: Mapping[str, str], node: str) -> tuple[str, str] | None:
    """Return the key of a GPU, None for a MIG instance: its power equals that of the whole GPU."""
    uuid = exporter_label(labels, schema.uuid)
    if uuid.upper().startswith("MIG-"):
        return None
    index = exporter_label(labels, schema.index)
    if not uuid and not index:
        return None
    return "gpu", uuid_of(uuid) if uuid else f"{node}-{index}"


def _cpu_key(schema: Schema, labels: Mapping[str, str], foreign: Foreign) -> tuple[str, str]:
    text = exporter_label(labels, schema.package)
    numbered = re.search(r"intel-rapl(?:-mmio)?:(\d+)", text)
    package = numbered[1] if numbered else text if text.isdecimal() else "0"
    return "dram" if foreign.labels.get("zone") == "dram" else "cpu", package


def _scaled(samples: Samples, scale: float) -> Samples:
    if scale == 1:
        return samples
    if samples.exact:
        integral = samples.exact.integral * scale
        jumps_squared = samples.exact.jumps_squared * scale**2
        exact = replace(samples.exact, integral=integral, jumps_squared=jumps_squared)
    else:
        exact = None
    return Samples(samples.t, samples.value * scale, exact)


def _meter(
    schema: Schema, component: str, device: str, gathered: _Gathered, window: TimeRange
) -> Meter:
    series = {}
    for key, pieces in gathered.pieces.items():
        first = min(place for place, _ in pieces)
        series[key] = _one([samples for place, samples in pieces if place == first])
    paced = remove_repeats(schema, series, window)
    return Meter(
        schema,
        gathered.instance,
        gathered.node,
        component,
        device,
        gathered.index or "0",
        {name: text for name, text in gathered.info.items() if text},
        paced.series,
        paced.age_s,
        paced.cached_s,
    )


def _one(parts: list[Samples]) -> Samples:
    """Return one series of rows that repeat a device, or that differ in a label that changed.

    The exact values of a downsampled series are kept if it contains all samples of the others.
    """
    if len(parts) == 1:
        return parts[0]
    times, values = (
        np.concatenate(columns) for columns in ([p.t for p in parts], [p.value for p in parts])
    )
    whole = clean(times, values)
    longest = max(parts, key=len)
    return Samples(whole.t, whole.value, longest.exact if len(longest) == len(whole) else None)
