"""PromQL queries of a fleet, whose results have one row per group.

Every query is evaluated at the end of the whole window; a `QuerySpan` selects a part of it. Series
that two jobs scraped from one exporter count once. Servers read a metric each time that it occurs
in a query. If the left side of `*`, `/` or `-` has few runs, VictoriaMetrics reads only these runs
on the right side; not so for `and` and `unless`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wattline.contract import metrics as m
from wattline.contract.api import OTHER_RUNS
from wattline_analyzer.core.sources.promql import (
    RUN,
    Dialect,
    InstantServer,
    QueryCounter,
    QuerySpan,
    QueryTooLargeError,
    Side,
    device_increase,
    label_list,
    max_by,
    recorded_increase,
    run_counter,
    sum_by,
)
from wattline_analyzer.usage.cut import GPU_MODEL, NODE, FleetCut, run_info, with_labels, with_model

DEVICES = "instance:wattline_device_energy_joules:increase5m"
UNCLAIMED = "instance:wattline_unclaimed_energy_joules:increase5m"
GRAMS = "instance:wattline_emissions_grams:increase5m"
RUN_JOULES = "instance_run:wattline_run_attributed_energy_joules:max5m"
RUN_GRAMS = "instance_run:wattline_run_emissions_grams:max5m"
BEHIND_MS = 60_000
"""Time between the end of a sample's five minutes and its timestamp."""
LONE_RATIO = 0.9
"""Least ratio of a run's attributed energy to its devices' energy for which the run has their
uncertainty.
"""
_STEP_S, _LOOK = 300.0, "10m"
POLICY = "idle_shared"
"""Policy that attributes all energy of an allocated GPU to its runs."""
_DEVICE = ("component", "device")
_BASIS = ("basis", "quality")
_DAY_MS = 86_400_000
_SOON_MS = 300_000


@dataclass(frozen=True, slots=True)
class RecordedWindow:
    """Window without gaps in the recording rules: the requested one, moved by up to one step at
    either edge.
    """

    start_s: float
    end_s: float


def recorded_window(
    server: InstantServer, dialect: Dialect, start_s: float, end_s: float
) -> RecordedWindow | str:
    """Return the recorded window, or the reason why the rules cannot be used. Raises FetchError."""
    behind_s = BEHIND_MS / 1_000
    try:
        last_s = _newest(server, dialect, end_s + behind_s)
        if last_s is None:
            return "the server has no recording rules"
        first_s = _newest(server, dialect, start_s + behind_s)
        if first_s is None:
            return "the recording rules start later than the window"
        steps = round((last_s - first_s) / _STEP_S)
        if steps < 1:
            return "the window is too short for the recording rules"
        long_ms = round((last_s - first_s) * 1_000) - 1
        answer = server.query(f"max(count_over_time({DEVICES}[{long_ms}ms]))", last_s)
    except QueryTooLargeError as error:
        return f"the server refused to report the coverage of its recording rules: {error}"
    number = round(answer[0].value) if answer else 0
    if number != steps:
        return f"the recording rules have {number} of the window's {steps} samples"
    return RecordedWindow(first_s - behind_s, last_s - behind_s)


def _newest(server: InstantServer, dialect: Dialect, at_s: float) -> float | None:
    """Return the time of the rules' last evaluation up to a time."""
    text = f"max(max_over_time(timestamp({DEVICES})[{_LOOK}:5s]))"
    if dialect == "victoria-metrics":
        text = f"max(tlast_over_time({DEVICES}[{_LOOK}]))"
    answer = server.query(text, at_s)
    return answer[0].value if answer else None


def device_energy_queries(cut: FleetCut, span: QuerySpan) -> Iterator[str]:
    """Yield queries for the joules of devices by component and the devices' keys."""
    if cut.recorded:
        yield sum_by((*cut.device_labels, "component"), recorded_increase(DEVICES, span, BEHIND_MS))
        return
    gpus = device_increase(
        QueryCounter(m.GPU_ENERGY.name, ("instance", "gpu", "uuid")), span, cut.dialect
    )
    gpus = sum_by(cut.device_labels, with_model(cut, gpus, "uuid"))
    yield f'label_replace({gpus}, "component", "gpu", "", "")'
    for component, zone in (("cpu", "package"), ("dram", "dram")):
        packages = QueryCounter(m.CPU_ENERGY.name, ("instance", "package"), f'zone="{zone}"')
        joules = sum_by(cut.device_labels, device_increase(packages, span, cut.dialect))
        yield f'label_replace({joules}, "component", "{component}", "", "")'


def unattributed_energy_queries(cut: FleetCut, span: QuerySpan) -> Iterator[str]:
    """Yield queries for unattributed joules by component and the devices' keys."""
    if cut.recorded:
        yield sum_by(
            (*cut.device_labels, "component"), recorded_increase(UNCLAIMED, span, BEHIND_MS)
        )
    else:
        yield from _energy_of(cut, span, "")


def folded_energy_queries(cut: FleetCut, span: QuerySpan) -> Iterator[str]:
    """Yield queries for the joules of runs beyond the limits of an exporter, by component and the
    devices' keys.
    """
    yield from _energy_of(cut, span, OTHER_RUNS)


def _energy_of(cut: FleetCut, span: QuerySpan, run_id: str) -> Iterator[str]:
    labels = (*cut.device_labels, "component")
    for which, join in _components(cut):
        matchers = f'run_id="{run_id}",policy="{cut.policy}"{which}'
        counter = QueryCounter(m.RUN_ATTRIBUTED_ENERGY.name, ("instance", *_DEVICE), matchers)
        joules = device_increase(counter, span, cut.dialect)
        yield sum_by(labels, with_model(cut, joules) if join else joules)


def attributed_energy_queries(cut: FleetCut, span: QuerySpan, side: Side) -> Iterator[str]:
    """Yield queries for the joules of runs by component and the keys."""
    for which, join in _components(cut):
        joules = run_counter(_joules(cut, which), span, side)
        if join:
            joules = with_model(cut, joules)
        labels, own = (cut.run_labels, (GPU_MODEL,)) if join else (all_of_runs(cut), ())
        by_run = sum_by((*RUN, "component", *own), joules)  # fewer series to join
        yield sum_by((*cut.labels, "component"), with_labels(cut, by_run, labels, RUN))


def work_queries(cut: FleetCut, span: QuerySpan, side: Side) -> Iterator[str]:
    """Yield queries for work by unit and the keys; the contributors of instances differ, so that
    they add up.
    """
    amounts = run_counter(QueryCounter(m.RUN_WORK.name, ("unit",)), span, side)
    yield sum_by((*cut.labels, "unit"), with_labels(cut, amounts, all_of_runs(cut), RUN))


def primary_unit_query(cut: FleetCut) -> str:
    """Return the query for the number of runs by their primary unit of work."""
    units = f"max_over_time({m.RUN_WORK_UNIT.name}{cut.whole.range})"
    return f"count by (unit) (group by (run_id, unit) ({units}))"


def run_identity(cut: FleetCut) -> tuple[str, ...]:
    """Return the labels of a run whose work may be counted on another of its nodes, unless nodes
    are keys.
    """
    return RUN if NODE in cut.by else ("run_id",)


def working_joules(cut: FleetCut, span: QuerySpan, side: Side) -> str:
    """Return the query for the attributed joules of runs: on GPUs, or on CPUs in runs without."""
    return (
        f"({sum_by(run_identity(cut), gpu_joules(cut, span, side))} or "
        f"{cpu_joules(cut, span, side)})"
    )


def gpu_joules(cut: FleetCut, span: QuerySpan, side: Side) -> str:
    return run_counter(_joules(cut, ',component="gpu"'), span, side)


def cpu_joules(cut: FleetCut, span: QuerySpan, side: Side) -> str:
    """Return the query for the attributed joules of runs without GPUs."""
    joules = sum_by(run_identity(cut), run_counter(_joules(cut, ',component="cpu"'), span, side))
    on_gpus = f"max_over_time({m.RUN_GPU_INFO.name}{cut.whole.range})"
    return f"({joules} unless on ({label_list(run_identity(cut))}) {on_gpus})"


def emission_queries(cut: FleetCut, span: QuerySpan, side: Side) -> Iterator[str]:
    """Yield queries for the emissions of runs by basis, quality and the keys.

    A run's share of its devices' emissions equals that of its attributed energy. For a run that
    ended before the span or soon after its start, the part before the span is by joules: emissions
    are counted seconds later.
    """
    part = _grams(cut, span, side)
    if side == "before":
        of = RUN if cut.recorded else (*RUN, "component")
        ended = f"({_ends(cut)} < time() - {(span.from_ms - _SOON_MS) / 1_000:.3f})"
        joules = [
            sum_by(of, run_counter(_joules(cut), *when))
            for when in ((span, "before"), (cut.whole, "until"))
        ]
        share = f"({joules[0]} / ({joules[1]} > 0) and on ({label_list(RUN)}) {ended})"
        by_joules = (
            f"({share} * on ({label_list(of)}) group_right () {_grams(cut, cut.whole, 'until')})"
        )
        part = f"({by_joules} or {part})"
    yield sum_by((*cut.labels, *_BASIS), with_labels(cut, part, all_of_runs(cut), RUN))


def _grams(cut: FleetCut, span: QuerySpan, side: Side) -> str:
    """Return the query by run, basis and quality, and by component unless the sum is recorded."""
    if cut.recorded:
        return run_counter(QueryCounter(RUN_GRAMS, _BASIS, "", BEHIND_MS), span, side)
    of = (*RUN, "component")
    emitted = run_counter(QueryCounter(m.RUN_EMISSIONS.name, ("component", *_BASIS)), span, side)
    energy = sum_by(of, run_counter(QueryCounter(m.RUN_ENERGY.name, _DEVICE), cut.whole, "until"))
    share = f"({sum_by(of, run_counter(_joules(cut), cut.whole, 'until'))} / ({energy} > 0))"
    return f"({emitted} * on ({label_list(of)}) group_left () {share})"


def device_emission_queries(cut: FleetCut, span: QuerySpan) -> Iterator[str]:
    """Yield queries for the emissions of all devices by basis and quality."""
    if cut.recorded:
        yield sum_by(_BASIS, recorded_increase(GRAMS, span, BEHIND_MS))
        return
    yield sum_by(
        _BASIS,
        device_increase(
            QueryCounter(m.EMISSIONS.name, ("instance", *_DEVICE, *_BASIS)), span, cut.dialect
        ),
    )


def run_count_query(cut: FleetCut) -> str:
    """Return the query for the number of runs by the keys, without runs that ended before the
    window.
    """
    over = f"({_ends(cut)} < time() - {cut.whole.from_ms / 1_000:.3f})"
    rows = f"({run_info(cut, all_of_runs(cut), RUN)}) unless on ({label_list(RUN)}) {over}"
    return (
        f"count by ({label_list(cut.labels)}) (group by "
        f"({label_list(('run_id', *cut.labels))}) ({rows}))"
    )


def _ends(cut: FleetCut) -> str:
    """Return the query for the end times of ended runs."""
    return max_by(RUN, f"max_over_time({m.RUN_END.name}{cut.whole.range})")


def gpu_seconds_queries(cut: FleetCut, span: QuerySpan, side: Side) -> Iterator[str]:
    """Yield queries for the GPU seconds of runs by the keys: duration of a run × number of its
    GPUs.
    """
    seconds = run_counter(QueryCounter(m.RUN_DURATION.name, ()), span, side)
    gpus = max_by((*RUN, "uuid"), f"max_over_time({m.RUN_GPU_INFO.name}{cut.whole.range})")
    own = (GPU_MODEL,) if GPU_MODEL in cut.by else ()
    counts = f"count by ({label_list((*RUN, *own))}) ({with_model(cut, gpus, 'uuid')})"
    each = f"({seconds} * on ({label_list(RUN)}) group_right () {counts})"
    yield sum_by(cut.labels, with_labels(cut, each, cut.run_labels, RUN))


def squared_uncertainty_query(cut: FleetCut) -> str:
    """Return the query for the sum of squared half-widths of the runs' energies by the keys, in
    J².
    """
    return sum_by(cut.labels, with_labels(cut, f"({_half_widths(cut)} ^ 2)", all_of_runs(cut), RUN))


def _half_widths(cut: FleetCut) -> str:
    """Return the query for the half-width of each run that had its devices to itself.

    It is the sum of those of its devices, and of the difference between their energy and the
    attributed part.
    """
    energy = sum_by(RUN, run_counter(QueryCounter(m.RUN_ENERGY.name, _DEVICE), cut.whole, "until"))
    attributed = sum_by(RUN, run_counter(_joules(cut), cut.whole, "until"))
    other_j = f"{energy} * abs(1 - ({attributed} / ({energy} > 0) >= {LONE_RATIO}))"
    return f"({sum_by(RUN, max_by((*RUN, *_DEVICE), _halves(cut)))} + {other_j})"


def _halves(cut: FleetCut) -> str:
    return f"max_over_time({m.RUN_ENERGY_UNCERTAINTY.name}{cut.whole.range})"


def certain_energy_queries(cut: FleetCut, span: QuerySpan, side: Side) -> Iterator[str]:
    """Yield queries for the joules of the runs with an uncertainty, by the keys; running runs have
    none.
    """
    energy = sum_by(RUN, run_counter(QueryCounter(m.RUN_ENERGY.name, _DEVICE), cut.whole, "until"))
    attributed = sum_by(RUN, run_counter(_joules(cut), cut.whole, "until"))
    joules = (
        f"({attributed} >= {LONE_RATIO} * ({energy} > 0) and on ({label_list(RUN)}) {_halves(cut)})"
    )
    if (span, side) != (cut.whole, "until"):
        joules = f"({sum_by(RUN, run_counter(_joules(cut), span, side))} * {joules} ^ 0)"
    yield sum_by(cut.labels, with_labels(cut, joules, all_of_runs(cut), RUN))


def nodes_query(span: QuerySpan) -> str:
    """Return the query for the number of scrapes in the span, by the instances whose devices have a
    sample in it.
    """
    gpus, cpus = (
        max_by(("instance",), f"count_over_time({one.name}{span.range})")
        for one in (m.GPU_ENERGY, m.CPU_ENERGY)
    )
    return f"{gpus} or {cpus}"


def pods_query(span: QuerySpan) -> str:
    """Return the query for the number of GPUs with a pod in the last day."""
    lately = QuerySpan(min(span.long_ms, _DAY_MS), span.until_ms)
    return f"count(last_over_time({m.GPU_POD_INFO.name}{lately.range}))"


def _joules(cut: FleetCut, which: str = "") -> QueryCounter:
    """Return the counter of attributed energy by run and device, or by run and component if
    recorded.
    """
    if cut.recorded:
        return QueryCounter(RUN_JOULES, ("component",), f'run_id!="{OTHER_RUNS}"{which}', BEHIND_MS)
    matchers = f'run_id!="",run_id!="{OTHER_RUNS}",policy="{cut.policy}"{which}'
    return QueryCounter(m.RUN_ATTRIBUTED_ENERGY.name, _DEVICE, matchers)


def all_of_runs(cut: FleetCut) -> tuple[str, ...]:
    return (*cut.run_labels, GPU_MODEL) if GPU_MODEL in cut.by else cut.run_labels


def _components(cut: FleetCut) -> list[tuple[str, bool]]:
    """Return additional matchers, and whether they select GPUs whose model is a key."""
    return (
        [(',component="gpu"', True), (',component!="gpu"', False)]
        if GPU_MODEL in cut.by
        else [("", False)]
    )
