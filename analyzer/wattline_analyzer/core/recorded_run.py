"""A run read from its facts, the times of its scrapes, and samples of its nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from wattline.contract import metrics as m
from wattline.contract.api import Outcome
from wattline.contract.run import (
    NodeRuns,
    Run,
    RunDevice,
    RunFormatError,
    RunPart,
    combine,
    runs_of_nodes,
)
from wattline.contract.run_series import SeriesRow, from_rows
from wattline_analyzer.core.devices import DeviceKey, GpuModel
from wattline_analyzer.core.facts import Fact
from wattline_analyzer.core.sample_table import Row, SampleTable, join_tables, rows_of, samples
from wattline_analyzer.core.samples import Exact, Samples
from wattline_analyzer.core.timeline import OtherRun, Window

RUN_FACTS = (
    m.RUN_INFO,
    m.RUN_START,
    m.RUN_DURATION,
    m.RUN_END,
    m.RUN_OUTCOME,
    m.RUN_GPU_INFO,
    m.RUN_INTEGRATED_ENERGY,
    m.RUN_POWER_MAX,
    m.RUN_ENERGY,
    m.RUN_ENERGY_BEFORE_USE,
    m.RUN_ENERGY_UNCERTAINTY,
    m.RUN_COVERED_RATIO,
    m.RUN_ATTRIBUTED_ENERGY,
    m.RUN_EMISSIONS,
    m.RUN_EMISSIONS_COVERED_RATIO,
    m.RUN_WORK,
    m.RUN_WORK_UNIT,
    m.RUN_WORK_TIMESTAMP,
    m.RUN_RESULT,
    m.RUN_PHASE_ENERGY,
    m.RUN_PHASE_ENERGY_UNCERTAINTY,
    m.RUN_PHASE_WORK,
)
"""Metrics of a run of which the newest samples count, in the order in which a run is read."""
RUN_TIMES = (m.RUN_PHASE_SECONDS, m.RUN_PHASE_START, m.RUN_DURATION)
"""Metrics of a run of which all samples count."""


@dataclass(frozen=True, slots=True)
class RunScrapes:
    """Times and gaps of the scrapes of a run, by instance.

    `times` has the samples of RUN_TIMES, `ages` are the run's durations among them. `emitting` are
    the pairs of instance and basis with emissions, `without_ratio` the devices without a series of
    their covered ratio. `outcomes` are those of the instances on which the run has ended. `aliases`
    maps an instance to the one that counts for the same node. `moved_at` has the time from which
    the latter has samples, of aliases that have none after it.
    """

    windows: Mapping[str, Window]
    times: SampleTable
    ages: Mapping[str, Samples]
    emitting: frozenset[tuple[str, str]]
    without_ratio: frozenset[DeviceKey]
    aliases: Mapping[str, str]
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    moved_at: Mapping[str, float] = field(default_factory=dict)

    @property
    def span_s(self) -> tuple[float, float]:
        """First start and last end of the run, which is its last scrape where it has no end."""
        windows = self.windows.values()
        return min(window.start_s for window in windows), max(window.end_s for window in windows)

    @property
    def instances(self) -> list[str]:
        """All instances, aliases included."""
        return sorted({*self.windows, *self.aliases})

    def moved(self, table: SampleTable) -> SampleTable:
        """Return samples with those of an earlier address under the one that counts."""
        if not self.moved_at:
            return table
        earlier = [
            table.take(table.where("instance", [alias]) & (table.t < moved_at)).of_instance(
                self.aliases[alias]
            )
            for alias, moved_at in self.moved_at.items()
        ]
        return join_tables([*earlier, table.take(~table.where("instance", self.moved_at))])

    def once(self, table: SampleTable) -> SampleTable:
        """Return samples of which each node has one address only."""
        return self.moved(table.take(~table.where("instance", self.aliases.keys() - self.moved_at)))


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run of all its nodes, its scrapes, and the samples of its nodes, which only charts and
    checks need.

    `raw` has the series of its nodes from before the run until after it, `others` are the other
    runs on the same instances. `exact` holds the figures of GPU power before
    downsampling, by instance and UUID. `clock_set_s` are the steps of the wall clock during the
    run, by instance. In an `untagged` range, `age_s` is the maximum age of a scraped counter, by
    GPU. `is_open` is True for a run that the source knows as running; `requests` names those that
    its server reported, such as `292 requests`.
    """

    run: Run
    scrapes: RunScrapes
    source: str
    raw: SampleTable
    others: Sequence[OtherRun]
    exact: Mapping[tuple[str, str], Exact] = field(default_factory=dict)
    clock_set_s: Mapping[str, float] = field(default_factory=dict)
    untagged: bool = False
    age_s: Mapping[str, float] = field(default_factory=dict)
    is_open: bool = False
    requests: str = ""

    @property
    def run_id(self) -> str:
        return self.run.run_id


def recorded_key(device: RunDevice) -> DeviceKey:
    """Return the identity of a recorded device."""
    return DeviceKey(device.node, device.component, device.device_id)


def gpu_models(infos: Iterable[Fact | Row]) -> dict[str, GpuModel]:
    """Return the models of GPUs by UUID; `infos` are of `wattline_gpu_info`."""
    return {
        info.labels["uuid"]: GpuModel(
            info.labels.get("name", ""), info.labels.get("architecture", "")
        )
        for info in infos
    }


def read_run(
    facts: Sequence[Fact],
    times: SampleTable,
    models: Mapping[str, GpuModel],
    *,
    untagged: bool = False,
) -> tuple[Run, RunScrapes]:
    """Return the run of its facts and of its samples of RUN_TIMES; `models` has the models of the
    GPUs by UUID.

    The nodes of an untagged range are distinct already, so that no aliases are searched there.
    Raises RunFormatError for a run without a start on any node.
    """
    parts = node_runs(facts, times, models)
    if not parts:
        raise RunFormatError("the run has no series of its start")
    nodes = NodeRuns(parts, {}, {}) if untagged else runs_of_nodes(_run_parts(facts, parts))
    own = nodes.runs
    run = combine(list(own.values()))
    covered = {
        DeviceKey(
            nodes.aliases.get(fact.instance, fact.instance),
            fact.labels["component"],
            fact.labels["device"],
        )
        for fact in facts
        if fact.metric is m.RUN_COVERED_RATIO
    }
    windows = _windows(facts)
    scrapes = RunScrapes(
        windows={
            node: windows[node]
            if one is parts[node]
            else _window_of(one, [windows[each] for each in nodes.addresses(node)])
            for node, one in own.items()
        },
        times=times,
        ages={node: samples(times, m.RUN_DURATION, instance=node) for node in own},
        emitting=frozenset(
            (fact.instance, fact.labels["basis"])
            for fact in facts
            if fact.metric is m.RUN_EMISSIONS and fact.instance in own
        ),
        without_ratio=frozenset({recorded_key(device) for device in run.devices} - covered),
        aliases=nodes.aliases,
        outcomes={node: one.outcome for node, one in own.items() if one.outcome is not None},
        moved_at=nodes.moved_at,
    )
    return run, replace(scrapes, times=scrapes.moved(times))


def _run_parts(facts: Sequence[Fact], runs: Mapping[str, Run]) -> dict[str, RunPart]:
    """Return the runs by instance with the times of their samples among the facts."""
    return {
        fact.instance: RunPart(runs[fact.instance], fact.first_s, fact.t)
        for fact in facts
        if fact.metric is m.RUN_START
    }


def node_runs(
    facts: Iterable[Fact], times: SampleTable, models: Mapping[str, GpuModel]
) -> dict[str, Run]:
    """Return the part of the run on each instance that has its start, aliases included."""
    rows: defaultdict[str, list[SeriesRow]] = defaultdict(list)
    for instance, row in _phase_rows(times):
        rows[instance].append(row)
    for fact in sorted(facts, key=lambda fact: RUN_FACTS.index(fact.metric)):
        rows[fact.instance].append(fact.row)
    return {
        node: from_rows([*of_node, *_model_rows(of_node, models)], node)
        for node, of_node in sorted(rows.items())
        if any(row.metric is m.RUN_START for row in of_node)
    }


def _window_of(run: Run, parts: Sequence[Window]) -> Window:
    """Return the window of a run of several ledgers; `parts` are the windows of these."""
    end_s = run.ended_at
    if end_s is None:
        end_s = max(part.end_s for part in parts)
    return Window(run.started_at, end_s, run.state == "ended", run.duration_s)


def _windows(facts: Iterable[Fact]) -> dict[str, Window]:
    """Return the run's window by instance; the duration is the exporter's, from a monotonic
    clock.
    """
    of_metric: defaultdict[str, dict[str, Fact]] = defaultdict(dict)
    for fact in facts:
        of_metric[fact.metric.name][fact.instance] = fact
    found = {}
    for instance, start in of_metric[m.RUN_START.name].items():
        end = of_metric[m.RUN_END.name].get(instance)
        duration = of_metric[m.RUN_DURATION.name].get(instance)
        end_s = start.t if end is None else end.value
        duration_s = end_s - start.value if duration is None else duration.value
        found[instance] = Window(start.value, end_s, end is not None, duration_s)
    return found


def _model_rows(rows: Iterable[SeriesRow], models: Mapping[str, GpuModel]) -> Iterator[SeriesRow]:
    """Yield the names of the GPUs that the rows have."""
    for uuid in {row.labels.get("uuid") or row.labels.get("device", "") for row in rows}:
        if uuid in models:
            labels = {"uuid": uuid, **models[uuid]._asdict()}
            yield SeriesRow(m.GPU_INFO, labels, 1.0)


def _phase_rows(times: SampleTable) -> Iterator[tuple[str, SeriesRow]]:
    """Yield instance and row of each start of a phase, in the order of the starts, and then of the
    seconds of each phase, in the order of the scrapes.
    """
    starts = rows_of(times, m.RUN_PHASE_START)
    seconds = rows_of(times, m.RUN_PHASE_SECONDS)
    for metric, scraped, order in (
        (m.RUN_PHASE_START, starts, starts.value),
        (m.RUN_PHASE_SECONDS, seconds, seconds.t),
    ):
        columns = (scraped.texts("phase"), scraped.texts("instance"), scraped.value.tolist())
        latest: dict[tuple[str, str], float] = {}
        for _, phase, instance, value in sorted(zip(order.tolist(), *columns, strict=True)):
            if latest.get((phase, instance)) != value:
                yield instance, SeriesRow(metric, {"phase": phase}, value)
            latest[phase, instance] = value
