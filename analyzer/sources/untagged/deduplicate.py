"""Which of several exporters each device is counted from, so that none is counted twice. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from analyzer.energy.checks import Finding
from analyzer.sources.untagged.meters import Meter, is_address
from analyzer.sources.untagged.schemas import SCHEMAS


@dataclass(frozen=True, slots=True)
class Counted:
    meters: tuple[Meter, ...]
    findings: tuple[Finding, ...]


def counted(found: Iterable[Meter]) -> Counted:
    """Ours before others, one with a counter before one without, then in the order of the schemas.

    A GPU is the same wherever its UUID is. CPUs are counted from one exporter a node: packages have but numbers.
    """
    meters = _one_name_a_node(sorted(found, key=_rank))
    gpus, again = _gpus([meter for meter in meters if meter.component == "gpu"])
    cpus, left_out, more = _cpus([meter for meter in meters if meter.component != "gpu"])
    return Counted((*gpus, *cpus), (*_again_findings([*again, *left_out]), *more))


def _gpus(meters: Sequence[Meter]) -> tuple[list[Meter], list[tuple[Meter, Meter]]]:
    """One without a UUID is the GPU of the same index on its node."""
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
    """Falling preference; the longer series where all else is equal."""
    place = SCHEMAS.index(meter.schema)
    return min(place, 1), 0 if len(meter.counter) > 1 else 1, place, -max(len(meter.counter), len(meter.power))


def _one_name_a_node(meters: Sequence[Meter]) -> list[Meter]:
    """`gpu01` and `gpu01.example.org` are one, unless another domain has a `gpu01` too."""
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
    """Each node's CPUs, and apart from them its DRAM, from the best exporter that has them.

    Where one exporter names nodes and another addresses, nobody knows which are the same: the better one's count.
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
    """One for each pair of exporters."""
    pairs: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for meter, first in again:
        names = [f"{one.schema.name} at {one.instance or one.node or 'the history'}" for one in (first, meter)]
        pairs[names[0], names[1]].append(meter.name)
    return [
        Finding(
            "note",
            "counted_once",
            ", ".join(dict.fromkeys(names)),
            f"shown by {first} and by {other}: counted from {first}",
        )
        for (first, other), names in pairs.items()
    ]


def _unsure_finding(left_out: Sequence[Meter]) -> Finding:
    who = ", ".join(sorted({f"{meter.schema.name} at {meter.instance}" for meter in left_out}))
    text = (
        f"the CPUs that {who} shows are left out: one exporter names nodes and another addresses, so that nobody knows "
        "whether they are the same; choose one with --schema, or give both the label node"
    )
    return Finding("warning", "node_unknown", "", text)
