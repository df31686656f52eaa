"""Loading of a time range without a run, as a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattline.contract import metrics as m
from wattline.contract.run_series import SeriesRow
from wattline_analyzer.core.facts import Fact, fact_of_row
from wattline_analyzer.core.fetch import fetch_range_series
from wattline_analyzer.core.recorded_run import (
    RUN_FACTS,
    RUN_TIMES,
    RecordedRun,
    gpu_models,
    read_run,
)
from wattline_analyzer.core.run_report import Finding
from wattline_analyzer.core.sample_table import SampleTable, join_tables, last, table_of
from wattline_analyzer.core.samples import Samples, Series
from wattline_analyzer.core.sources.base import FetchError, SampleSource
from wattline_analyzer.core.timeline import OtherRun, other_runs
from wattline_analyzer.importers.assemble import ImportedRun
from wattline_analyzer.importers.content import FileRun
from wattline_analyzer.importers.exporter_run import SHOWN_AFTER_S, rows_of_import
from wattline_analyzer.importers.series import ImportedGpu
from wattline_analyzer.report.assess_untagged import RangeQuality
from wattline_analyzer.report.untagged import device_energy, tokens
from wattline_analyzer.report.untagged.counter_leaps import repair_meter
from wattline_analyzer.report.untagged.counter_wraps import unwrap_meter
from wattline_analyzer.report.untagged.device_energy import (
    DeviceEnergy,
    check_against_power,
    dead_counter_finding,
    energy_of_meter,
    is_dead,
    widened_by,
)
from wattline_analyzer.report.untagged.exporters import (
    ExporterInstance,
    deduplicate_meters,
    find_exporters,
)
from wattline_analyzer.report.untagged.meters import Meter, build_meters, uuid_of
from wattline_analyzer.report.untagged.request import RangeRequest
from wattline_analyzer.report.untagged.schemas import BY_NAME, WATTLINE
from wattline_analyzer.report.untagged.tokens import TOKEN_SERVERS, ServerWork

WORKLOAD = "untagged"
MARGIN_S = 300.0
"""Time before and after the range for which samples are fetched, for its edges and for idle power.
"""
_NAMED = 8
_GOES_ON_S = 90.0
"""Maximum lag of a device's last sample behind another's for the device to count as active."""
_STATES = (m.GPU_ENERGY_METHOD, m.CPU_ENERGY_METHOD, m.GPU_ENERGY_SUSPECT)
_CARBON = (m.CARBON_INTENSITY, m.CARBON_INTENSITY_TIMESTAMP, m.CARBON_FETCHED_TIMESTAMP)
_RUNS = (m.RUN_START, m.RUN_END, m.RUN_GPU_INFO)


@dataclass(frozen=True, slots=True)
class LoadedRange:
    """A range as a run, and what its samples cover."""

    recorded: RecordedRun
    quality: RangeQuality


def load_range(
    source: SampleSource, request: RangeRequest, log: Callable[[str], None]
) -> LoadedRange:
    """Load a range. Raises FetchError if nothing is found."""
    exporters = find_exporters(source, request)
    unique = deduplicate_meters(
        meter for one in exporters for meter in _meters_of(source, one, request)
    )
    chosen = [meter for meter in unique.meters if _is_requested(meter, request)]
    if request.gpus and not any(meter.component == "gpu" for meter in chosen):
        raise _gpu_not_found(request, unique.meters)
    request = _with_end(chosen, request)  # the end is part of the range's name
    names = dict.fromkeys(f"{one.schema} on {one.node or 'this node'}" for one in exporters)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    log(f"{request.run_id}: {', '.join(list(names)[:_NAMED])}{more}")
    energies, findings = _device_energies(chosen, request)
    if not energies:
        raise FetchError(
            f"no device has two samples of energy or power at {source.name} {request.window}",
            "give a longer range",
        )
    work = (
        tokens.fetch_server_work(source, TOKEN_SERVERS[request.tokens], request)
        if request.tokens
        else None
    )
    own = sorted(
        {(one.meter.instance, one.meter.node) for one in energies if one.meter.schema is WATTLINE}
    )
    others, tagged = _other_runs(source, own, request)
    facts = [
        fact_of_row(row, node, request.end_s + SHOWN_AFTER_S)
        for node, row in _rows(energies, request, work)
    ]
    raw = join_tables([_raw_samples(energies, facts, request), *_states(source, own, request)])
    of_run = [fact for fact in facts if fact.metric in RUN_FACTS]
    times = _table(fact for fact in facts if fact.metric in RUN_TIMES)
    run, scrapes = read_run(of_run, times, gpu_models(last(raw, m.GPU_INFO)), untagged=True)
    recorded = RecordedRun(
        run=run,
        scrapes=scrapes,
        source=source.name,
        raw=raw,
        others=others,
        untagged=True,
        age_s={
            one.meter.device: one.meter.age_s for one in energies if one.meter.component == "gpu"
        },
        exact={
            (one.meter.node, one.meter.device): exact
            for one in energies
            if one.meter.component == "gpu" and (exact := one.meter.power.exact)
        },
    )
    about = [
        *device_energy.range_findings(energies),
        *unique.findings,
        *findings,
        *(work.findings if work else ()),
        *tagged,
    ]
    cut = frozenset((one.meter.node, one.meter.device) for one in energies if not one.whole)
    spacings_s = [one.energy.spacing_s for one in energies if one.energy.spacing_s is not None]
    limits = work.limits if work else {}
    return LoadedRange(
        recorded, RangeQuality(tuple(about), cut, max(spacings_s, default=None), limits)
    )


def _meters_of(
    source: SampleSource, exporter: ExporterInstance, request: RangeRequest
) -> list[Meter]:
    schema = BY_NAME[exporter.schema]
    where = {**request.matching, **_instance(exporter.instance)}
    span = (request.start_s - MARGIN_S, request.end_s + MARGIN_S)
    window = (request.start_s, request.end_s)
    return build_meters(
        schema, fetch_range_series(source, schema.metrics, where, span, window), window
    )


def _is_requested(meter: Meter, request: RangeRequest) -> bool:
    wanted = {uuid_of(text) for text in request.gpus}
    return meter.component != "gpu" or not wanted or bool(wanted & {meter.index, meter.device})


def _instance(instance: str) -> dict[str, str]:
    return {"instance": instance} if instance else {}


def _with_end(chosen: Iterable[Meter], request: RangeRequest) -> RangeRequest:
    """Return the request with the last scrape of active devices as its end, unless the user gave
    one.
    """
    if not request.until_now:
        return request
    ends_s = [
        float(shown.t[-1])
        for meter in chosen
        if len(shown := meter.counter if len(meter.counter) else meter.power)
    ]
    active = [end_s for end_s in ends_s if end_s > max(ends_s) - _GOES_ON_S]
    end_s = min(active, default=request.end_s)
    return replace(request, end_s=min(end_s, request.end_s)) if end_s > request.start_s else request


def _device_energies(
    chosen: Iterable[Meter], request: RangeRequest
) -> tuple[list[DeviceEnergy], list[Finding]]:
    energies: list[DeviceEnergy] = []
    findings: list[Finding] = []
    for meter in chosen:
        unwrapped, more = unwrap_meter(meter, request.rapl_ranges_j, request.start_s, request.end_s)
        repaired, faults, doubt_j = repair_meter(unwrapped, request.start_s, request.end_s)
        energy = energy_of_meter(repaired, request.start_s, request.end_s)
        if energy is not None:
            checked, contradiction = check_against_power(
                widened_by(energy, doubt_j), request.start_s, request.end_s
            )
            energies.append(checked)
            findings += [*more, *faults, *([contradiction] if contradiction else [])]
        if is_dead(unwrapped, request.start_s, request.end_s):
            findings.append(dead_counter_finding(unwrapped, energy))
    return energies, findings


def _states(
    source: SampleSource, own: Sequence[tuple[str, str]], request: RangeRequest
) -> list[SampleTable]:
    """Fetch the states of Wattline exporters: energy methods, suspect energies, carbon
    intensity.
    """
    start_s = request.start_s - MARGIN_S
    end_s = request.end_s + MARGIN_S
    return [
        source.fetch(
            (*_STATES, *_CARBON), {**request.matching, **_instance(instance)}, start_s, end_s
        ).of_instance(node)
        for instance, node in own
    ]


def _other_runs(
    source: SampleSource, own: Sequence[tuple[str, str]], request: RangeRequest
) -> tuple[list[OtherRun], list[Finding]]:
    """Return the runs around the range, during which a GPU was not idle, and the finding of runs
    within it.
    """
    start_s = request.start_s - MARGIN_S
    end_s = request.end_s + MARGIN_S
    facts = [
        replace(fact, instance=node)
        for instance, node in own
        for fact in source.facts(_RUNS, {**request.matching, **_instance(instance)}, start_s, end_s)
    ]
    runs = other_runs(facts, request.run_id)
    within = {
        run.run_id for run in runs if run.start_s < request.end_s and run.end_s > request.start_s
    }
    others = [run for run in runs if run.run_id not in within]
    return others, [device_energy.tagged_runs_finding(within)] if within else []


def _gpu_not_found(request: RangeRequest, meters: Sequence[Meter]) -> FetchError:
    known = ", ".join(
        sorted(
            f"{one.index} ({one.device} on {one.node})" for one in meters if one.component == "gpu"
        )
    )
    return FetchError(
        f"no GPU {', '.join(request.gpus)} {request.window}",
        f"known GPUs: {known}" if known else "there is no GPU",
    )


def _raw_samples(
    energies: Sequence[DeviceEnergy], facts: Sequence[Fact], request: RangeRequest
) -> SampleTable:
    """Return the raw samples of a range as those of a run; `facts` are of the run and its nodes."""
    series = [one for energy in energies for one in _series(energy, request)]
    of_nodes = (fact for fact in facts if not fact.metric.name.startswith("wattline_run_"))
    return join_tables([table_of(series), _table(of_nodes)])


def _rows(
    energies: Sequence[DeviceEnergy], request: RangeRequest, work: ServerWork | None
) -> Iterable[tuple[str, SeriesRow]]:
    """Yield ledger rows by instance; the work of the whole range belongs to its first node."""
    about = {"schema": "+".join(dict.fromkeys(one.meter.schema.name for one in energies))}
    if request.tokens:
        about["tokens"] = request.tokens
    for node in sorted({one.meter.node for one in energies}):
        of_node = [one for one in energies if one.meter.node == node]
        file_run = FileRun(
            request.run_id,
            WORKLOAD,
            request.start_s,
            request.end_s,
            work=work.work if work else {},
            results=work.results if work else {},
            outcome=None,
        )
        work = None
        gpus = tuple(
            ImportedGpu(meter.index, meter.device, meter.info)
            for meter in (one.meter for one in of_node)
            if meter.component == "gpu"
        )
        run = ImportedRun(
            request.run_id, file_run, (), (), gpus, tuple(one.energy for one in of_node), {}, None
        )
        yield from ((node, row) for row in rows_of_import(run, about))


def _table(facts: Iterable[Fact]) -> SampleTable:
    return table_of(
        (
            {"__name__": fact.metric.name, "instance": fact.instance, **fact.labels},
            np.array([fact.t]),
            np.array([fact.value]),
        )
        for fact in facts
    )


def _series(energy: DeviceEnergy, request: RangeRequest) -> Iterable[Series]:
    """Yield a device's series; without utilization its power around the range is left out, as it
    may not be idle.
    """
    meter = energy.meter
    own = (
        {"gpu": meter.index, "uuid": meter.device}
        if meter.component == "gpu"
        else {"package": meter.device}
    )
    for (name, labels), samples in meter.series.items():
        shown = samples
        if name == m.GPU_POWER.name and not meter.has_utilization:
            shown = _samples_touching(samples, request.start_s, request.end_s)
        if name != m.GPU_INFO.name:
            yield (
                {"__name__": name, "instance": meter.node, **own, **dict(labels)},
                shown.t,
                shown.value,
            )


def _samples_touching(samples: Samples, start_s: float, end_s: float) -> Samples:
    """Return the samples in the range, the last one before it and the first one after it."""
    first = max(int(np.searchsorted(samples.t, start_s)) - 1, 0)
    after = int(np.searchsorted(samples.t, end_s, side="right")) + 1
    return Samples(samples.t[first:after], samples.value[first:after])
