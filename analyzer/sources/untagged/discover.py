"""Discovery of the exporters in a time range, by probes at its edges and once an hour."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analyzer.sources.base import FetchError, SampleSource
from analyzer.sources.untagged.meters import node_name
from analyzer.sources.untagged.request import RangeRequest
from analyzer.sources.untagged.schema_names import AUTO
from analyzer.sources.untagged.schemas import BY_NAME, SCHEMAS, Schema

_PROBE_S = 300.0
_APART_S = 3_600.0
_MOST_PROBES = 25
"""Maximum number of probes; a node that was active only between two probes is not found."""
_NAMED = 6


@dataclass(frozen=True, slots=True, order=True)
class ExporterInstance:
    """Scraped exporter with its schema and its node."""

    schema: str
    instance: str
    node: str


def find_exporters(source: SampleSource, request: RangeRequest) -> list[ExporterInstance]:
    """Return the exporters of a range, in the order of the schemas. Raises FetchError if there are none."""
    schemas = SCHEMAS if request.schema == AUTO else (BY_NAME[request.schema],)
    marks = [metric for schema in schemas for metric in schema.marks]
    frames = [source.fetch(marks, request.matching, *probe) for probe in _probes(request.start_s, request.end_s)]
    there = sorted({one for schema in schemas for one in _of_schema(schema, frames)})
    wanted = [one for one in there if request.includes_node(one.node, one.instance)]
    if not wanted:
        raise _nothing_found(source, request, schemas, there)
    order = [schema.name for schema in SCHEMAS]
    return sorted(wanted, key=lambda one: (order.index(one.schema), one))


def _of_schema(schema: Schema, frames: Sequence[pd.DataFrame]) -> set[ExporterInstance]:
    marks = [metric.name for metric in schema.marks]
    found = {
        ExporterInstance(schema.name, labels.get("instance", ""), node_name(schema, labels, labels.get("instance", "")))
        for frame in frames
        for labels in _label_sets(frame[frame["metric"].isin(marks)])
    }
    by_instance = {one.instance: one for one in sorted(found)}
    return set(by_instance.values())


def _probes(start_s: float, end_s: float) -> list[tuple[float, float]]:
    if end_s - start_s <= 3 * _PROBE_S:
        return [(start_s, end_s)]
    count = min(max(math.ceil((end_s - start_s) / _APART_S) + 1, 3), _MOST_PROBES)
    step_s = (end_s - _PROBE_S - start_s) / (count - 1)
    return [(start_s + step_s * n, start_s + step_s * n + _PROBE_S) for n in range(count)]


def _label_sets(frame: pd.DataFrame) -> list[dict[str, str]]:
    texts = [name for name in frame.columns if name not in ("t", "value")]
    rows = frame[texts].drop_duplicates().to_dict("records")
    return [{str(name): str(text) for name, text in row.items() if text} for row in rows]


def _nothing_found(
    source: SampleSource, request: RangeRequest, schemas: Sequence[Schema], there: Sequence[ExporterInstance]
) -> FetchError:
    names = ", ".join(schema.name for schema in schemas)
    cause = f"no energy and no power as {names} {'exports' if len(schemas) == 1 else 'export'} them at {source.name} "
    cause += request.window
    if there:
        known = ", ".join(f"{one.node} ({one.schema})" for one in there[:_NAMED])
        return FetchError(
            f"{cause} of a node whose whole name matches --node {request.node!r}", f"known nodes: {known}"
        )
    if request.matching:
        return FetchError(f"{cause} with the labels of --matching", "check that all series of the exporter have them")
    return FetchError(cause, "check that the exporter was scraped by this source then; see --source and --start")
