"""PromQL of the energy that the work of a fleet's runs is divided by."""

from __future__ import annotations

from collections.abc import Iterator

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline.contract.work import EDGE_S, LEAST_SHARED_RATIO, WorkQueries
from wattline_analyzer.core.sources.promql import (
    RUN,
    QueryCounter,
    QuerySpan,
    copy_label,
    label_list,
    max_by,
    run_counter,
    sum_by,
)
from wattline_analyzer.usage.cut import FleetCut, with_labels
from wattline_analyzer.usage.queries import (
    all_of_runs,
    cpu_joules,
    gpu_joules,
    run_identity,
    working_joules,
)

UNMEASURED = "unmeasured"
"""Label of the work of runs without energy."""


def working_energy_queries(cut: FleetCut, span: QuerySpan, *, phased: bool) -> Iterator[str]:
    """Yield queries for the joules that work is divided by, by unit and the keys; see
    `wattline.contract.work`.

    Of a run that is partly outside of the span, it is the part of its attributed energy. A run on
    several nodes may count its work on one of them; if nodes are keys, each node is separate. A run
    shares its GPUs if others have more than 2 % of them and of its mean power for half a second,
    which takes fewer series than `is_shared`. With the label UNMEASURED, the result is the work of
    runs without energy.
    """

    def last(metric: Metric, labels: tuple[str, ...], matchers: str) -> str:
        return run_counter(QueryCounter(metric.name, labels, matchers), cut.whole, "until")

    identity, gpus = run_identity(cut), 'component="gpu"'
    on, unit = f"on ({label_list(identity)})", f"{label_list((*identity, 'unit'))}"
    each_unit = f"(max by ({unit}) ({last(m.RUN_WORK, ('unit',), '')}) > 0) ^ 0"
    energy = sum_by(identity, last(m.RUN_ENERGY, ("device",), gpus))
    not_used = copy_label(last(m.RUN_ENERGY_BEFORE_USE, ("device",), gpus), "not_used", "device")
    seconds = max_by(identity, last(m.RUN_DURATION, (), ""))
    least = f"{1 - LEAST_SHARED_RATIO:g} - {2 * EDGE_S:g} / {seconds}"
    share = sum_by(identity, f"{gpu_joules(cut, cut.whole, 'until')} or {not_used}")
    shared, on_cpus = f"({share} < {energy} * ({least}))", cpu_joules(cut, cut.whole, "until")
    choices = [
        f"{one} * {on} group_right () {each_unit}" for one in (shared, f"({energy} or {on_cpus})")
    ]
    if phased:
        in_phases = WorkQueries(label_list(identity), label_list(RUN), last).gpu_joules_in_phases()
        choices.insert(1, in_phases)
    inside = f"((({' or '.join(choices)}) > 0) * {on} group_left () {_part(cut, span, seconds)})"
    work = QueryCounter(m.RUN_WORK.name, ("unit",))
    until, before = run_counter(work, span, "until"), run_counter(work, span, "before")
    amounts = (
        f"label_replace(sum by ({unit}) (({until} - {before} or {until}) > 0), "
        f'"{UNMEASURED}", "yes", "", "")'
    )
    either = f"({inside} or on ({unit}) {amounts})"
    yield sum_by(
        (*cut.labels, "unit", UNMEASURED), with_labels(cut, either, all_of_runs(cut), identity)
    )


def phases_query(cut: FleetCut) -> str:
    """Return the query for the number of series of work in phases."""
    return f"count(max_over_time({m.RUN_PHASE_WORK.name}{cut.whole.range}))"


def _part(cut: FleetCut, span: QuerySpan, seconds: str) -> str:
    """Return the query for the part of each run's attributed energy in the span; of most runs it is
    1.
    """
    whole_j, before = (
        working_joules(cut, *when) for when in ((cut.whole, "until"), (span, "before"))
    )
    if span == cut.whole:
        return f"((1 - {before} / ({whole_j} > 0)) or {seconds} ^ 0)"
    until = working_joules(cut, span, "until")
    return f"(({until} - {before} or {until}) / ({whole_j} > 0))"
