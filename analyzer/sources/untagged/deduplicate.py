"""Choice of one exporter for each device that several exporters show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from analyzer.model.findings import Finding
from analyzer.sources.untagged.meters import Meter, is_address
from analyzer.sources.untagged.schemas import SCHEMAS


@dataclass(frozen=True, slots=True)
class UniqueMeters:
    """Meters with one per device, and findings about the others."""

    meters: tuple[Meter, ...]
    findings: tuple[Finding, ...]


def deduplicate_meters(found: Iterable[Meter]) -> UniqueMeters:
    """Choose a meter per device: of Wattline first, then with a counter, then in the order of the schemas.

    GPUs are identified by UUID. CPU packages have only numbers, so those of a node come from one exporter.
    """
    meters = _one_name_a_node(sorted(found, key=_rank))
    gpus, again = _gpus([meter for meter in meters if meter.component == "gpu"])
    cpus, left_out, more = _cpus([meter for meter in meters if meter.component != "gpu"])
    return UniqueMeters((*gpus, *cpus), (*_again_findings([*again, *left_out]), *more))


def _gpus(meters: Sequence[Meter]) -> tuple[list[Meter], list[tuple[Meter, Meter]]]:
    """Return unique GPUs, and the others with the chosen ones; a GPU without UUID is identified by node and index."""
    taken: dict[str, Meter] = {}
    again: list[tuple[Meter, Meter]] = []
    for meter in sorted(meters, key=lambda meter: not meter.device.startswith("GPU-")):
        first = taken.get(meter.device)
        if first is None and not meter.device.startswith("GPU-"):
            where = (meter.node, meter.index)
            first = next((one for one in taken.values() if (one.node, one.index) == where), None)
        if first is None:
            taken[meter.device] = meter
        else:
            again.append((meter, first))
    return list(taken.values()), again


def _rank(meter: Meter) -> tuple[int, int, int, int]:
    """Return the sort key of preference; the last criterion is the length of the series."""
    place = SCHEMAS.index(meter.schema)
    return min(place, 1), 0 if len(meter.counter) > 1 else 1, place, -max(len(meter.counter), len(meter.power))


def _one_name_a_node(meters: Sequence[Meter]) -> list[Meter]:
    """Give a node one name: `gpu01` is `gpu01.example.org`, unless a second domain has a `gpu01`."""
    names = {meter.node for meter in meters}
    full: defaultdict[str, set[str]] = defaultdict(set)
    for name in names:
        if "." in name and not is_address(name):
            full[name.partition(".")[0]].add(name)
    same = {name: next(iter(full[name])) for name in names if len(full.get(name, ())) == 1}
    several = len({same.get(name, name) for name in names}) > 1
    nodes = [(meter, same.get(meter.node, meter.node)) for meter in meters]
    return [replace(meter, node=node, prefix=f"{node} " if several else "") for meter, node in nodes]


def _cpus(meters: Sequence[Meter]) -> tuple[list[Meter], list[tuple[Meter, Meter]], list[Finding]]:
    """Choose the exporter of each node's CPUs, and of its DRAM.

    If one exporter names nodes and another addresses, they cannot be matched, and only the preferred one is used.
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
        elif first is None and any(is_address(one.node) != is_address(meter.node) for one in others):
            unsure.append(meter)
        else:
            chosen[meter.component, meter.node] = meter
            kept.append(meter)
    return kept, again, [_unsure_finding(unsure)] if unsure else []


def _again_findings(again: Iterable[tuple[Meter, Meter]]) -> list[Finding]:
    """Return one finding for each pair of exporters."""
    pairs: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for meter, first in again:
        names = [f"{one.schema.name} at {one.instance or one.node or 'the history'}" for one in (first, meter)]
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
        f"the CPUs of {who} are left out: one exporter names nodes and another addresses, so they cannot be matched; "
        "select one with --schema, or give both the label node"
    )
    return Finding("warning", "node_unknown", "", text)
