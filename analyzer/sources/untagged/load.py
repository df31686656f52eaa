"""A range that no run tagged, as the frames of a run: its exporters' series fetched, counted once, and summed up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from analyzer.energy.checks import Finding
from analyzer.model.samples import RunFrames, joined, last, tidy
from analyzer.sources.base import Source
from analyzer.sources.error import SourceError
from analyzer.sources.untagged import notes, tokens
from analyzer.sources.untagged.counter_wraps import unwrapped
from analyzer.sources.untagged.deduplicate import counted
from analyzer.sources.untagged.device_energy import Figure, figure
from analyzer.sources.untagged.discover import Seen, discovered
from analyzer.sources.untagged.fetched import fetched
from analyzer.sources.untagged.framed import framed
from analyzer.sources.untagged.meters import Meter, meters
from analyzer.sources.untagged.request import Asked
from analyzer.sources.untagged.schemas import BY_NAME, WATTLINE
from analyzer.sources.untagged.token_servers import TOKEN_SERVERS
from exporter.contract import metrics as m

MARGIN_S = 300.0
"""Samples are fetched this much before and after the range, for its edges and for idle power."""
_NAMED = 8
_GOES_ON_S = 90.0
"""A device whose last sample is no further behind that of another still answers, however seldom it is scraped."""
_STATES = (m.GPU_ENERGY_METHOD, m.CPU_ENERGY_METHOD, m.GPU_ENERGY_SUSPECT)
_CARBON = (m.CARBON_INTENSITY, m.CARBON_INTENSITY_TIMESTAMP, m.CARBON_FETCHED_TIMESTAMP)
_RUNS = (m.RUN_START, m.RUN_END, m.RUN_GPU_INFO)


@dataclass(frozen=True, slots=True)
class Ranged:
    """`cut` are the devices, by instance and name, whose samples do not reach over all of the range; `spacing_s` is the
    longest between two samples of a device, by the median. The work lies between its `work_limits`, by unit.
    """

    frames: RunFrames
    findings: tuple[Finding, ...]
    cut: frozenset[tuple[str, str]]
    spacing_s: float | None
    work_limits: Mapping[str, tuple[float, float]]


def load(source: Source, asked: Asked, say: Callable[[str], None]) -> Ranged:
    """Raises SourceError where nothing is found."""
    seen = discovered(source, asked)
    once = counted(meter for one in seen for meter in _meters_of(source, one, asked))
    chosen = [meter for meter in once.meters if asked.takes(meter)]
    if asked.gpus and not any(meter.component == "gpu" for meter in chosen):
        raise _no_such_gpu(asked, once.meters)
    asked = _ended(chosen, asked)  # which is part of the range's name
    there = dict.fromkeys(f"{one.schema} on {one.node or 'this node'}" for one in seen)
    more = f" and {len(there) - _NAMED} more" if len(there) > _NAMED else ""
    say(f"{asked.run_id}: {', '.join(list(there)[:_NAMED])}{more}")
    figures, findings = _figures(chosen, asked)
    if not figures:
        raise SourceError(
            f"no device has two samples of energy or power at {source.name} {asked.window}", "is the range too short?"
        )
    served = tokens.served(source, TOKEN_SERVERS[asked.tokens], asked) if asked.tokens else None
    ours = sorted({(one.meter.instance, one.meter.node) for one in figures if one.meter.schema is WATTLINE})
    others, tagged = _others(source, ours, asked)
    made = framed(figures, asked, served)
    frames = RunFrames(
        asked.run_id,
        source.name,
        made.ledger,
        joined([made.raw, *_states(source, ours, asked)]),
        others,
        untagged=True,
        age_s={one.meter.device: one.meter.age_s for one in figures if one.meter.component == "gpu"},
        exact={
            (one.meter.node, one.meter.device): exact
            for one in figures
            if one.meter.component == "gpu" and (exact := one.meter.power.exact)
        },
    )
    about = [*notes.of_range(figures), *once.findings, *findings, *(served.findings if served else ()), *tagged]
    cut = frozenset((one.meter.node, one.meter.device) for one in figures if not one.whole)
    spacings_s = [one.energy.spacing_s for one in figures if one.energy.spacing_s is not None]
    return Ranged(frames, tuple(about), cut, max(spacings_s, default=None), served.limits if served else {})


def _meters_of(source: Source, seen: Seen, asked: Asked) -> list[Meter]:
    schema = BY_NAME[seen.schema]
    where = {**asked.matching, **_instance(seen.instance)}
    span, window = (asked.start_s - MARGIN_S, asked.end_s + MARGIN_S), (asked.start_s, asked.end_s)
    return meters(schema, fetched(source, schema.metrics, where, span, window), window)


def _instance(instance: str) -> dict[str, str]:
    return {"instance": instance} if instance else {}


def _ended(chosen: Iterable[Meter], asked: Asked) -> Asked:
    """Without an end of its own the range ends with the last scrape, of devices that still answer."""
    if not asked.until_now:
        return asked
    ends_s = [
        float(shown.t[-1]) for meter in chosen if len(shown := meter.counter if len(meter.counter) else meter.power)
    ]
    going_on = [end_s for end_s in ends_s if end_s > max(ends_s) - _GOES_ON_S]
    end_s = min(going_on, default=asked.end_s)
    return replace(asked, end_s=min(end_s, asked.end_s)) if end_s > asked.start_s else asked


def _figures(chosen: Iterable[Meter], asked: Asked) -> tuple[list[Figure], list[Finding]]:
    figures: list[Figure] = []
    findings: list[Finding] = []
    for meter in chosen:
        mended, more = unwrapped(meter, asked.rapl_ranges_j, asked.start_s, asked.end_s)
        found = figure(mended, asked.start_s, asked.end_s)
        if found is not None:
            figures.append(found)
            findings += more
    return figures, findings


def _states(source: Source, ours: Sequence[tuple[str, str]], asked: Asked) -> list[pd.DataFrame]:
    """What our own exporter says beside: where energies come from, what it suspects, and the carbon intensity."""
    begin_s, until_s = asked.start_s - MARGIN_S, asked.end_s + MARGIN_S
    return [
        source.fetch((*_STATES, *_CARBON), {**asked.matching, **_instance(instance)}, begin_s, until_s).assign(
            instance=node
        )
        for instance, node in ours
    ]


def _others(source: Source, ours: Sequence[tuple[str, str]], asked: Asked) -> tuple[pd.DataFrame, list[Finding]]:
    """Tagged runs around the range, which is why a GPU was not idle then; those within it are named."""
    begin_s, until_s = asked.start_s - MARGIN_S, asked.end_s + MARGIN_S
    frames = [
        source.fetch(_RUNS, {**asked.matching, **_instance(instance)}, begin_s, until_s).assign(instance=node)
        for instance, node in ours
    ]
    frame = joined([tidy([]), *frames])
    if not len(frame):
        return frame, []
    ends_s = {(row.instance, row.labels["run_id"]): row.value for row in last(frame, m.RUN_END)}
    within = {
        row.labels["run_id"]
        for row in last(frame, m.RUN_START)
        if row.value < asked.end_s and ends_s.get((row.instance, row.labels["run_id"]), row.t) > asked.start_s
    }
    return frame[~frame["run_id"].isin(sorted(within))], [notes.tagged(within)] if within else []


def _no_such_gpu(asked: Asked, there: Sequence[Meter]) -> SourceError:
    known = ", ".join(sorted(f"{one.index} ({one.device} on {one.node})" for one in there if one.component == "gpu"))
    return SourceError(
        f"no GPU {', '.join(asked.gpus)} {asked.window}", f"there are {known}" if known else "there is no GPU at all"
    )
