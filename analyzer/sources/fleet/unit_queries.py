"""PromQL of the energy that the work of a fleet's runs is divided by."""

from __future__ import annotations

from collections.abc import Iterator

from analyzer.sources.fleet.cut import FleetCut, with_labels
from analyzer.sources.fleet.queries import all_of_runs, working_joules
from analyzer.sources.promql import RUN, QueryCounter, QuerySpan, label_list, max_by, run_counter, sum_by
from exporter.contract import metrics as m
from exporter.contract.metrics import Metric
from exporter.contract.work import EDGE_S, LEAST_SHARED_RATIO, WorkQueries


def working_energy_queries(cut: FleetCut, span: QuerySpan) -> Iterator[str]:
    """Yield queries for the joules that work is divided by, by unit and the keys; see `exporter.contract.work`.

    Of a run that is partly outside of the span, it is the part of its attributed energy. A run on several nodes may
    count its work on one of them; if nodes are keys, each node is separate. A run shares its GPUs if others have more
    than 2 % of them and of its mean power for half a second, which takes fewer series than `is_shared`.
    """

    def last(metric: Metric, labels: tuple[str, ...], matchers: str) -> str:
        return run_counter(QueryCounter(metric.name, labels, matchers), cut.whole, "until")

    identity, whole_j = working_joules(cut, cut.whole, "until")
    before = working_joules(cut, span, "before")[1]
    until = whole_j if span == cut.whole else working_joules(cut, span, "until")[1]
    on, gpus = f"on ({label_list(identity)})", 'component="gpu"'
    each_unit = (
        f"max by ({label_list((*identity, 'unit'))}) ({last(m.RUN_WORK, ('unit',), '')} > 0) ^ 0 * {on} group_left ()"
    )
    energy = sum_by(identity, last(m.RUN_ENERGY, ("device",), gpus))
    not_used = sum_by(identity, last(m.RUN_ENERGY_BEFORE_USE, ("device",), gpus))
    edges = f"({LEAST_SHARED_RATIO} + {2 * EDGE_S:g} / {max_by(identity, last(m.RUN_DURATION, (), ''))})"
    alone = f"({energy} * (1 - {edges}) <= ({whole_j} + {not_used} or {whole_j}))"
    in_phases = WorkQueries(label_list(identity), label_list(RUN), last).gpu_joules_in_phases()
    defined = f"(({in_phases} or {each_unit} {energy}) and {on} {alone} or {each_unit} {whole_j})"
    part = f"(({until} - {before} or {until}) / ({whole_j} > 0))"
    joules = f"({defined} * {on} group_left () {part})"
    yield sum_by((*cut.labels, "unit"), with_labels(cut, joules, all_of_runs(cut), identity))
