"""Which exporters a source holds in a range: found by small questions at its begin, its end and each hour between."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analyzer.sources.base import Source
from analyzer.sources.error import SourceError
from analyzer.sources.untagged.meters import node_of
from analyzer.sources.untagged.request import Asked
from analyzer.sources.untagged.schema_names import AUTO
from analyzer.sources.untagged.schemas import BY_NAME, SCHEMAS, Schema

_PROBE_S = 300.0
_APART_S = 3_600.0
_MOST_PROBES = 25
"""A node that was up between two of them only is not found: of a day, one that was up for less than an hour."""
_NAMED = 6


@dataclass(frozen=True, slots=True, order=True)
class Seen:
    schema: str
    instance: str
    node: str


def discovered(source: Source, asked: Asked) -> list[Seen]:
    """Each exporter with its node, in the order of the schemas. Raises SourceError where there is none."""
    schemas = SCHEMAS if asked.schema == AUTO else (BY_NAME[asked.schema],)
    marks = [metric for schema in schemas for metric in schema.marks]
    frames = [source.fetch(marks, asked.matching, *probe) for probe in _probes(asked.start_s, asked.end_s)]
    there = sorted({one for schema in schemas for one in _of_schema(schema, frames)})
    wanted = [one for one in there if asked.takes_node(one.node, one.instance)]
    if not wanted:
        raise _nothing(source, asked, schemas, there)
    order = [schema.name for schema in SCHEMAS]
    return sorted(wanted, key=lambda one: (order.index(one.schema), one))


def _of_schema(schema: Schema, frames: Sequence[pd.DataFrame]) -> set[Seen]:
    marks = [metric.name for metric in schema.marks]
    found = {
        Seen(schema.name, labels.get("instance", ""), node_of(schema, labels, labels.get("instance", "")))
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


def _nothing(source: Source, asked: Asked, schemas: Sequence[Schema], there: Sequence[Seen]) -> SourceError:
    names = ", ".join(schema.name for schema in schemas)
    cause = f"no energy and no power as {names} {'exports' if len(schemas) == 1 else 'export'} them at {source.name} "
    cause += asked.window
    if there:
        known = ", ".join(f"{one.node} ({one.schema})" for one in there[:_NAMED])
        return SourceError(f"{cause} of a node that --node {asked.node!r} matches whole", f"there are {known}")
    if asked.matching:
        return SourceError(f"{cause} with the labels of --matching", "do all of the exporter's series have them?")
    return SourceError(cause, "is the exporter scraped by this source, and was it then? see --source and --start")
