"""The exporter's ledger of one run, parsed from its series."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from wattline.contract import metrics as m
from wattline.contract.api import OUTCOMES
from wattline.contract.work import SHARE_POLICY, is_amount, primary_first
from wattline_analyzer.core.sample_table import Row, SampleTable, last, rows_of, samples
from wattline_analyzer.core.samples import Samples
from wattline_analyzer.core.timeline import Window, windows


@dataclass(frozen=True, slots=True)
class LedgerDevice:
    """A device of the run; `gpu_index` is None for other components and where the ledger lacks
    it.
    """

    instance: str
    component: str
    device: str
    gpu_index: str | None
    energy_j: float
    half_j: float | None
    covered_ratio: float | None
    integral_j: float | None
    max_power_w: float | None
    attributed_j: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LedgerPhase:
    """Phase of a run; `duration_s` is the longest of all instances, `energies_j` are pairs of
    energy and half-width.
    """

    name: str
    duration_s: float
    energies_j: Mapping[str, list[tuple[float, float | None]]]


@dataclass(frozen=True, slots=True)
class RunLedger:
    """A run as its exporters recorded it.

    `windows` and `ages` are by instance; an age is the run's duration at each scrape. `work` is by
    unit, `phase_work` by unit and phase, `emissions_g` by component, basis and quality. `emitting`
    are the pairs of instance and basis with emissions. `misreported_work` are scores and times
    reported as work; they are among the results. `aliases` maps an instance to the one that is the
    same node; aliases are not counted.
    """

    run_id: str
    workload: str
    labels: Mapping[str, str]
    outcome: str | None
    windows: Mapping[str, Window]
    ages: Mapping[str, Samples]
    devices: tuple[LedgerDevice, ...]
    phases: tuple[LedgerPhase, ...]
    work: Mapping[str, float]
    misreported_work: tuple[str, ...]
    phase_work: Mapping[str, Mapping[str, float]]
    results: Mapping[str, float]
    emissions_g: Mapping[tuple[str, str, str], list[float]]
    emitting: frozenset[tuple[str, str]]
    aliases: Mapping[str, str]

    @property
    def working_phases(self) -> frozenset[str]:
        """The phases in which work was done."""
        return frozenset(
            phase
            for done in self.phase_work.values()
            for phase, amount in done.items()
            if amount > 0
        )


_parsed: WeakKeyDictionary[SampleTable, dict[tuple[str, bool], RunLedger]] = WeakKeyDictionary()


def parse_ledger(table: SampleTable, run_id: str, *, untagged: bool = False) -> RunLedger:
    """Parse the run's own series, once for each table.

    The nodes of an untagged range are distinct already, so that no aliases are searched there.
    """
    known = _parsed.setdefault(table, {})
    if (run_id, untagged) not in known:
        known[run_id, untagged] = _parse(table, run_id, untagged=untagged)
    return known[run_id, untagged]


def _parse(table: SampleTable, run_id: str, *, untagged: bool) -> RunLedger:
    aliases = {} if untagged else run_aliases(table, run_id)
    if aliases:
        table = table.take(~table.where("instance", aliases))
    info = {
        name: text
        for row in last(table, m.RUN_INFO, run_id=run_id)
        for name, text in row.labels.items()
    }
    outcomes = [row.labels["outcome"] for row in last(table, m.RUN_OUTCOME, run_id=run_id)]
    known = windows(table, run_id)
    emissions = last(table, m.RUN_EMISSIONS, run_id=run_id)
    work = _work(table, run_id)
    results = {row.labels["name"]: row.value for row in last(table, m.RUN_RESULT, run_id=run_id)}
    return RunLedger(
        run_id=run_id,
        workload=info.get("workload", ""),
        labels={
            name.removeprefix("label_"): text
            for name, text in info.items()
            if name.startswith("label_")
        },
        outcome=next((outcome for outcome in OUTCOMES if outcome in outcomes), None),
        windows=known,
        ages={
            instance: samples(table, m.RUN_DURATION, instance=instance, run_id=run_id)
            for instance in known
        },
        devices=tuple(_devices(table, run_id)),
        phases=tuple(_phases(table, run_id)),
        work={unit: amount for unit, amount in work.items() if is_amount(unit)},
        misreported_work=tuple(unit for unit in work if not is_amount(unit)),
        phase_work=_phase_work(table, run_id),
        results={
            **{unit: amount for unit, amount in work.items() if not is_amount(unit)},
            **results,
        },
        emissions_g=_emissions(emissions),
        emitting=frozenset((row.instance, row.labels["basis"]) for row in emissions),
        aliases=aliases,
    )


def run_aliases(table: SampleTable, run_id: str) -> dict[str, str]:
    """Return the instances that are one exporter scraped under a second address, each with the
    first one.

    They have the same GPUs, or, without GPUs, the same start to the microsecond.
    """
    gpus = [
        (row.instance, row.labels["uuid"]) for row in last(table, m.RUN_GPU_INFO, run_id=run_id)
    ]
    starts = last(table, m.RUN_START, run_id=run_id)
    marks = gpus + [
        (row.instance, repr(row.value)) for row in starts if row.instance not in dict(gpus)
    ]
    owner: dict[str, str] = {}
    return {
        instance: first
        for instance, mark in sorted(marks)
        if (first := owner.setdefault(mark, instance)) != instance
    }


def _devices(table: SampleTable, run_id: str) -> list[LedgerDevice]:
    of_device = ("component", "device")
    halves_j = _by_place(table, m.RUN_ENERGY_UNCERTAINTY, run_id, *of_device)
    covered = _by_place(table, m.RUN_COVERED_RATIO, run_id, *of_device)
    integrals_j = _by_place(table, m.RUN_INTEGRATED_ENERGY, run_id, "uuid")
    highest_w = _by_place(table, m.RUN_POWER_MAX, run_id, "uuid")
    indexes = {
        (row.instance, row.labels["uuid"]): row.labels["gpu"]
        for row in last(table, m.RUN_GPU_INFO)[::-1]
    }
    shares_j: defaultdict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for row in last(table, m.RUN_ATTRIBUTED_ENERGY, run_id=run_id):
        shares_j[row.instance, row.labels["component"], row.labels["device"]][
            row.labels["policy"]
        ] = row.value
    for place, before_use_j in _by_place(
        table, m.RUN_ENERGY_BEFORE_USE, run_id, *of_device
    ).items():
        if SHARE_POLICY in shares_j[place]:
            shares_j[place][SHARE_POLICY] += before_use_j
    found = []
    for row in last(table, m.RUN_ENERGY, run_id=run_id):
        component, device = row.labels["component"], row.labels["device"]
        place, gpu = (
            (row.instance, component, device),
            (row.instance, device if component == "gpu" else ""),
        )
        found.append(
            LedgerDevice(
                row.instance,
                component,
                device,
                indexes.get(gpu),
                row.value,
                halves_j.get(place),
                covered.get(place),
                integrals_j.get(gpu),
                highest_w.get(gpu),
                shares_j.get(place, {}),
            )
        )
    return found


def _by_place(
    table: SampleTable, metric: m.Metric, run_id: str, *labels: str
) -> dict[tuple[str, ...], float]:
    return {
        (row.instance, *(row.labels.get(name, "") for name in labels)): row.value
        for row in last(table, metric, run_id=run_id)
    }


def _phases(table: SampleTable, run_id: str) -> list[LedgerPhase]:
    """Return the phases in the order of their first starts; without starts, in which they were
    first scraped.
    """
    scraped, starts = (
        rows_of(table, one, run_id=run_id) for one in (m.RUN_PHASE_SECONDS, m.RUN_PHASE_START)
    )
    by_start = sorted(zip(starts.value.tolist(), starts.texts("phase"), strict=True))
    by_scrape = sorted(zip(scraped.t.tolist(), scraped.texts("phase"), strict=True))
    seconds = dict.fromkeys([phase for _, phase in (*by_start, *by_scrape)], 0.0)
    for row in last(table, m.RUN_PHASE_SECONDS, run_id=run_id):
        seconds[row.labels["phase"]] = max(row.value, seconds[row.labels["phase"]])
    halves_j = _by_place(table, m.RUN_PHASE_ENERGY_UNCERTAINTY, run_id, "phase", "component")
    parts: defaultdict[str, defaultdict[str, list[tuple[float, float | None]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in last(table, m.RUN_PHASE_ENERGY, run_id=run_id):
        phase, component = row.labels["phase"], row.labels["component"]
        parts[phase][component].append((row.value, halves_j.get((row.instance, phase, component))))
    return [LedgerPhase(name, duration_s, parts[name]) for name, duration_s in seconds.items()]


def _work(table: SampleTable, run_id: str) -> dict[str, float]:
    """Return the amounts by unit, the primary one first; each instance counts the contributors that
    reported to it.

    A primary unit that was declared only is left out.
    """
    amounts: defaultdict[str, float] = defaultdict(float)
    for row in last(table, m.RUN_WORK, run_id=run_id):
        amounts[row.labels["unit"]] += row.value
    declared = Counter(row.labels["unit"] for row in last(table, m.RUN_WORK_UNIT, run_id=run_id))
    primary = max(sorted(declared), key=lambda unit: declared[unit], default=None)
    return {
        unit: amounts[unit]
        for unit in primary_first(amounts, primary)
        if amounts[unit] or unit != primary
    }


def _phase_work(table: SampleTable, run_id: str) -> dict[str, dict[str, float]]:
    amounts: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in last(table, m.RUN_PHASE_WORK, run_id=run_id):
        amounts[row.labels["unit"]][row.labels["phase"]] += row.value
    return {unit: dict(done) for unit, done in amounts.items()}


def _emissions(rows: list[Row]) -> dict[tuple[str, str, str], list[float]]:
    masses_g: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        masses_g[row.labels["component"], row.labels["basis"], row.labels["quality"]].append(
            row.value
        )
    return dict(sorted(masses_g.items()))
