"""What an exporter shows of each device, in our metrics and units, as clean series. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from analyzer.model.samples import Samples, clean
from analyzer.sources.untagged import pace
from analyzer.sources.untagged.fetched import LabelledSamples, Span
from analyzer.sources.untagged.schemas import NODE_LABELS, Foreign, Schema
from exporter.contract import metrics as m
from exporter.contract.metrics import Metric

Labels = tuple[tuple[str, str], ...]
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NONE = Samples(np.empty(0), np.empty(0))


@dataclass(frozen=True, slots=True, eq=False)
class Meter:
    """One device as one exporter shows it: a GPU by its UUID, a CPU package or its memory by the package's number.

    `series` by our metric's name and labels; `age_s`: how old a scraped value can be; `cached_s`: how often the
    exporter reads its sensors, where scrapes are seen to bring the same values again.
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
    """What stands before its name where there are several nodes."""

    def samples(self, metric: Metric) -> Samples:
        return next((found for (name, _), found in self.series.items() if name == metric.name), _NONE)

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
        """For a person to read."""
        return f"{self.prefix}{self.component.upper()} {self.index}"


@dataclass(slots=True)
class _Gathered:
    """What belongs to one device, as it is found: pieces of series with the place of their name in the schema."""

    instance: str
    node: str
    index: str = ""
    info: dict[str, str] = field(default_factory=dict)
    pieces: dict[tuple[str, Labels], list[tuple[int, Samples]]] = field(default_factory=dict)


def meters(schema: Schema, series: Iterable[LabelledSamples], window: Span) -> list[Meter]:
    """`series` are the exporter's own of one instance; what has neither energy nor power is left out.

    Of duplicates of a counter the first is taken: RAPL by MMIO repeats RAPL by MSR.
    """
    found: dict[tuple[str, str], _Gathered] = {}
    for labels, samples in sorted(series, key=lambda one: "mmio" in one[0].get("path", "")):
        for place, foreign in enumerate(schema.series):
            if foreign.name == labels["__name__"] and all(own(labels, (k,)) == v for k, v in foreign.only.items()):
                _gather(found, schema, place, labels, _scaled(samples, foreign.scale))
    made = [_meter(schema, component, device, gathered, window) for (component, device), gathered in found.items()]
    return [meter for meter in made if len(meter.counter) or len(meter.power)]


def own(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    """The exporter's own label: where the scrape's pushed it aside, it is called `exported_…`."""
    tried = (text for name in names for text in (labels.get(f"exported_{name}"), labels.get(name)) if text)
    return next(tried, "")


def uuid_of(text: str) -> str:
    """As NVML writes it; some exporters leave its `GPU-` out."""
    bare = text.lower().removeprefix("gpu-")
    return f"GPU-{bare}" if _UUID.fullmatch(bare) or text.lower().startswith("gpu-") else text


def node_of(schema: Schema, labels: Mapping[str, str], instance: str) -> str:
    """The machine, in lower case: a label that names it, else the host that is scraped."""
    named = own(labels, schema.node) or next((labels[name] for name in NODE_LABELS if labels.get(name)), "")
    return (named or host_of(instance)).lower()


def host_of(instance: str) -> str:
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
    foreign, node = schema.series[place], node_of(schema, labels, instance)
    is_gpu = foreign.metric not in (m.CPU_ENERGY, m.CPU_POWER)
    key = _gpu_key(schema, labels, node) if is_gpu else _cpu_key(schema, labels, foreign)
    if key is None:
        return
    gathered = found.setdefault(key, _Gathered(instance, node))
    gathered.index = gathered.index or (own(labels, schema.index) if key[0] == "gpu" else key[1])
    for name, theirs in schema.info.items():
        gathered.info.setdefault(name, "")
        gathered.info[name] = gathered.info[name] or own(labels, theirs)
    series = (foreign.metric.name, tuple(sorted(foreign.labels.items())))
    gathered.pieces.setdefault(series, []).append((place, samples))


def _gpu_key(schema: Schema, labels: Mapping[str, str], node: str) -> tuple[str, str] | None:
    """A MIG instance has no power of its own: whatever stands there is its board's again."""
    uuid = own(labels, schema.uuid)
    if uuid.upper().startswith("MIG-"):
        return None
    index = own(labels, schema.index)
    if not uuid and not index:
        return None
    return "gpu", uuid_of(uuid) if uuid else f"{node}-{index}"


def _cpu_key(schema: Schema, labels: Mapping[str, str], foreign: Foreign) -> tuple[str, str]:
    text = own(labels, schema.package)
    numbered = re.search(r"intel-rapl(?:-mmio)?:(\d+)", text)
    package = numbered[1] if numbered else text if text.isdecimal() else "0"
    return "dram" if foreign.labels.get("zone") == "dram" else "cpu", package


def _scaled(samples: Samples, scale: float) -> Samples:
    if scale == 1:
        return samples
    exact = replace(samples.exact, integral=samples.exact.integral * scale) if samples.exact else None
    return Samples(samples.t, samples.value * scale, exact)


def _meter(schema: Schema, component: str, device: str, gathered: _Gathered, window: Span) -> Meter:
    series = {}
    for key, pieces in gathered.pieces.items():
        first = min(place for place, _ in pieces)
        series[key] = _one([samples for place, samples in pieces if place == first])
    paced = pace.paced(schema, series, window)
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
    """Rows that repeat the same device, or that took turns with a label of theirs, as one series.

    What is exact of a thinned one holds where it has all that the others have.
    """
    if len(parts) == 1:
        return parts[0]
    times, values = (np.concatenate(columns) for columns in ([p.t for p in parts], [p.value for p in parts]))
    whole = clean(times, values)
    longest = max(parts, key=len)
    return Samples(whole.t, whole.value, longest.exact if len(longest) == len(whole) else None)
