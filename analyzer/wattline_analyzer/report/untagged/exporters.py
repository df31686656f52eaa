"""Exporters that cover a time range, and the choice of one for each device."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from wattline_analyzer.core.run_report import Finding
from wattline_analyzer.core.sample_table import SampleTable
from wattline_analyzer.core.sources.base import FetchError, SampleSource
from wattline_analyzer.report.untagged.meters import Meter, instance_host, is_address, node_name
from wattline_analyzer.report.untagged.request import AUTO, RangeRequest
from wattline_analyzer.report.untagged.schemas import BY_NAME, SCHEMAS, Schema

_PROBE_S = 300.0
_APART_S = 3_600.0
_MOST_PROBES = 25
"""Maximum number of probes; a node that was active only between two probes is not found."""
_NAMED = 6


@dataclass(frozen=True, slots=True)
class UniqueMeters:
    """Meters with one per device, and findings about the others."""

    meters: tuple[Meter, ...]
    findings: tuple[Finding, ...]


def deduplicate_meters(found: Iterable[Meter]) -> UniqueMeters:
    """Choose a meter per device: of Wattline first, then with a counter, then in the order of the
    schemas.

    GPUs are identified by UUID. CPU packages have only numbers, so those of a node come from one
    exporter.
    """
    meters = _one_name_a_node(sorted(found, key=_rank))
    gpus, again = _gpus([meter for meter in meters if meter.component == "gpu"])
    cpus, left_out, more = _cpus([meter for meter in meters if meter.component != "gpu"])
    return UniqueMeters((*gpus, *cpus), (*_again_findings([*again, *left_out]), *more))


def _gpus(meters: Sequence[Meter]) -> tuple[list[Meter], list[tuple[Meter, Meter]]]:
    """Return unique GPUs, and the others with the chosen ones; a GPU without UUID is identified by
    node and index.
    """
    chosen: dict[str, Meter] = {}
    again: list[tuple[Meter, Meter]] = []
    for meter in sorted(meters, key=lambda meter: not meter.device.startswith("GPU-")):
        first = chosen.get(meter.device)
        if first is None and not meter.device.startswith("GPU-"):
            where = (meter.node, meter.index)
            first = next((one for one in chosen.values() if (one.node, one.index) == where), None)
        if first is None:
            chosen[meter.device] = meter
        else:
            again.append((meter, first))
    return list(chosen.values()), again


def _rank(meter: Meter) -> tuple[int, int, int, int]:
    """Return the sort key of preference; the last criterion is the length of the series."""
    place = SCHEMAS.index(meter.schema)
    return (
        min(place, 1),
        0 if len(meter.counter) > 1 else 1,
        place,
        -max(len(meter.counter), len(meter.power)),
    )


def _one_name_a_node(meters: Sequence[Meter]) -> list[Meter]:
    """Give a node one name: `gpu01` is `gpu01.example.org`, unless a second domain has a
    `gpu01`.
    """
    names = {meter.node for meter in meters}
    full: defaultdict[str, set[str]] = defaultdict(set)
    for name in names:
        if "." in name and not is_address(name):
            full[name.partition(".")[0]].add(name)
    same = {name: next(iter(full[name])) for name in names if len(full.get(name, ())) == 1}
    several = len({same.get(name, name) for name in names}) > 1
    nodes = [(meter, same.get(meter.node, meter.node)) for meter in meters]
    return [
        replace(meter, node=node, prefix=f"{node} " if several else "") for meter, node in nodes
    ]


def _cpus(meters: Sequence[Meter]) -> tuple[list[Meter], list[tuple[Meter, Meter]], list[Finding]]:
    """Choose the exporter of each node's CPUs, and of its DRAM.

    If one exporter names nodes and another addresses, they cannot be matched, and only the
    preferred one is used.
    """
    chosen: dict[tuple[str, str], Meter] = {}
    kept: list[Meter] = []
    again: list[tuple[Meter, Meter]] = []
    unsure: list[Meter] = []
    for meter in meters:
        first = chosen.get((meter.component, meter.node))
        others = [one for (component, _), one in chosen.items() if component == meter.component]
        if first is not None and (first.schema, first.instance) != (meter.schema, meter.instance):
            again.append((meter, first))
        elif first is None and any(
            is_address(one.node) != is_address(meter.node) for one in others
        ):
            unsure.append(meter)
        else:
            chosen[meter.component, meter.node] = meter
            kept.append(meter)
    return kept, again, [_unsure_finding(unsure)] if unsure else []


def _again_findings(again: Iterable[tuple[Meter, Meter]]) -> list[Finding]:
    """Return one finding for each pair of exporters."""
    pairs: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for meter, first in again:
        names = [
            f"{one.schema.name} at {one.instance or one.node or 'the history'}"
            for one in (first, meter)
        ]
        pairs[names[0], names[1]].append(meter.name)
    return [
        Finding(
            "note",
            "counted_once",
            ", ".join(dict.fromkeys(names)),
            f"exported by {first} and {other}: counted once, from {first}",
        )
        for (first, other), names in pairs.items()
    ]


def _unsure_finding(left_out: Sequence[Meter]) -> Finding:
    who = ", ".join(sorted({f"{meter.schema.name} at {meter.instance}" for meter in left_out}))
    text = (
        f"the CPUs of {who} are left out: one exporter names nodes and another addresses, so they "
        "cannot be matched; "
        "select one with --schema, or give both the label node"
    )
    return Finding("warning", "node_unknown", "", text)


@dataclass(frozen=True, slots=True, order=True)
class ExporterInstance:
    """Scraped exporter with its schema and its node."""

    schema: str
    instance: str
    node: str


def find_exporters(source: SampleSource, request: RangeRequest) -> list[ExporterInstance]:
    """Return the exporters of a range, in the order of the schemas. Raises FetchError if there are
    none.
    """
    schemas = SCHEMAS if request.schema == AUTO else (BY_NAME[request.schema],)
    marks = [metric for schema in schemas for metric in schema.marks]
    frames = [
        source.fetch(marks, request.matching, *probe)
        for probe in _probes(request.start_s, request.end_s)
    ]
    there = sorted({one for schema in schemas for one in _of_schema(schema, frames)})
    wanted = [one for one in there if _matches_node(request, one)]
    if not wanted:
        raise _nothing_found(source, request, schemas, there)
    order = [schema.name for schema in SCHEMAS]
    return sorted(wanted, key=lambda one: (order.index(one.schema), one))


def _matches_node(request: RangeRequest, exporter: ExporterInstance) -> bool:
    """Match the whole node name, its first part, or the scraped address with or without the
    port.
    """
    node = exporter.node
    instance = exporter.instance
    names = {node, node.partition(".")[0], instance, instance_host(instance)}
    return request.node is None or any(re.fullmatch(request.node, name) for name in names)


def _of_schema(schema: Schema, frames: Sequence[SampleTable]) -> set[ExporterInstance]:
    marks = [metric.name for metric in schema.marks]
    found = {
        ExporterInstance(
            schema.name,
            labels.get("instance", ""),
            node_name(schema, labels, labels.get("instance", "")),
        )
        for table in frames
        for labels in _label_sets(table.take(table.where("metric", marks)))
    }
    by_instance = {one.instance: one for one in sorted(found)}
    return set(by_instance.values())


def _probes(start_s: float, end_s: float) -> list[tuple[float, float]]:
    if end_s - start_s <= 3 * _PROBE_S:
        return [(start_s, end_s)]
    count = min(max(math.ceil((end_s - start_s) / _APART_S) + 1, 3), _MOST_PROBES)
    step_s = (end_s - _PROBE_S - start_s) / (count - 1)
    return [(start_s + step_s * n, start_s + step_s * n + _PROBE_S) for n in range(count)]


def _label_sets(table: SampleTable) -> list[dict[str, str]]:
    return [
        {name: text for name, text in zip(table.labels, texts, strict=True) if text}
        for texts, _ in table.groups(*table.labels)
    ]


def _nothing_found(
    source: SampleSource,
    request: RangeRequest,
    schemas: Sequence[Schema],
    there: Sequence[ExporterInstance],
) -> FetchError:
    names = ", ".join(schema.name for schema in schemas)
    cause = (
        f"no energy and no power as {names} {'exports' if len(schemas) == 1 else 'export'} "
        f"them at {source.name} "
    )
    cause += request.window
    if there:
        known = ", ".join(f"{one.node} ({one.schema})" for one in there[:_NAMED])
        return FetchError(
            f"{cause} of a node whose whole name matches --node {request.node!r}",
            f"known nodes: {known}",
        )
    if request.matching:
        return FetchError(
            f"{cause} with the labels of --matching",
            "check that all series of the exporter have them",
        )
    return FetchError(
        cause, "check that the exporter was scraped by this source then; see --source and --start"
    )
