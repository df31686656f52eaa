"""Sums of a usage window: energy, work, emissions and GPU time by group of runs."""

from __future__ import annotations

import math
from collections import Counter as Count
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from wattline.contract import metrics as m
from wattline.contract.api import OTHER_RUNS
from wattline.contract.run import Run, combine
from wattline.contract.run_series import from_rows
from wattline.contract.work import energy_of_one, is_amount, primary_first
from wattline.figures import JOULES_PER_KWH, Figure, sum_of_independent, sum_of_one_job
from wattline_analyzer.core.devices import SIMULATED
from wattline_analyzer.core.sources.base import FetchError
from wattline_analyzer.usage.facts import Counter, Facts, RunReadings, UsageRequest

NODE = "node"
GPU_MODEL = "gpu_model"
WORKLOAD = "workload"
KIND = "kind"
OWNER = "owner"
USER = "user"
NAMESPACE = "namespace"
NO_LABEL = "(none)"
NO_GPU = "(no GPU)"
POLICY = "idle_shared"
"""Policy that attributes all energy of an allocated GPU to its runs."""
GIVEN = ("given", "static")
"""Basis and quality of emissions by the intensity of --carbon."""
COMPONENTS = ("gpu", "cpu", "dram")
_OWNER_KEYS = (KIND, OWNER, USER, NAMESPACE, "account", WORKLOAD, NODE)
_OF_DEVICES = (NODE, GPU_MODEL)
_ZONES = {"package": "cpu", "dram": "dram"}
_NO_OWNER = "none"
_PODS = "kubernetes"
_SERVICES = "service"
_RUN_KIND = "run"
_CERTAIN = 0.99
"""Least share of a row's energy with a known half-width for which the row has one."""
_LONE = 0.9
"""Least ratio of a run's attributed energy to its devices' energy for which the run has their
half-width.
"""
_CLOSE = 0.01
"""Share of the energy that series may lack and still stand for all of it."""
_SOON_S = 300.0
"""Time after the start of a window in which the emissions of an ended run still rise."""
_EXCESS = 1e-3
"""Ratio by which the runs of a row may have more energy than its owner counters: the times of
their samples differ.
"""

_LEAST_EXCESS_J = 1.0
Keys = tuple[str, ...]
_Name = TypeVar("_Name", bound=Hashable)
Basis = tuple[str, str]
"""Basis and quality of emissions."""


@dataclass(frozen=True, slots=True)
class UnitUse:
    """Work of a row; `joules` is the energy of the runs that did it, as in their energy per unit.

    `unmeasured` is the part of the work in runs without energy.
    """

    amount: float = 0.0
    joules: float = 0.0
    unmeasured: float = 0.0

    def __add__(self, other: UnitUse) -> UnitUse:
        return UnitUse(
            self.amount + other.amount,
            self.joules + other.joules,
            self.unmeasured + other.unmeasured,
        )

    @property
    def joules_per_unit(self) -> float | None:
        if self.joules <= 0:
            return None
        each = energy_of_one(Figure(self.joules), self.amount - self.unmeasured)
        return None if each is None else each.value


@dataclass(slots=True)
class UsageRow:
    """A row of the table: a group of runs, or a part of the devices' energy.

    `joules` are by component, `grams` by basis and quality. `runs_j` is the energy by the series of
    runs of a row whose energy is from counters by owner.
    """

    keys: Keys
    kind: str = "group"
    joules: dict[str, float] = field(default_factory=dict)
    grams: dict[Basis, float] = field(default_factory=dict)
    work: dict[str, UnitUse] = field(default_factory=dict)
    gpu_seconds: float | None = None
    run_ids: set[str] = field(default_factory=set)
    has_runs: bool = True
    half_j: float | None = None
    run_energies: dict[str, list[Figure]] = field(default_factory=dict)
    """Energies of the parts of each run with a known half-width, by run id."""
    hidden_j: float = 0.0
    is_cut: bool = False
    """True if a part of the window was not measured."""
    reasons: dict[str, None] = field(default_factory=dict)
    runs_j: float | None = None

    @property
    def energy_j(self) -> float:
        return math.fsum(self.joules.values())

    @property
    def energy(self) -> Figure | None:
        """Energy of the row: partial where a part of the window is not measured."""
        if not self.joules:
            return None
        if not self.reasons:
            return Figure(self.energy_j, self.half_j)
        missing_j = math.inf if self.is_cut else 0.0
        rest = -self.hidden_j, missing_j
        return Figure(self.energy_j, self.half_j, rest=rest, reason="; ".join(sorted(self.reasons)))

    @property
    def runs(self) -> int | None:
        return len(self.run_ids) if self.has_runs else None

    @property
    def is_below_runs(self) -> bool:
        """True if its runs have more energy than its counters by owner, beyond the errors of
        both.
        """
        if self.runs_j is None:
            return False
        errors_j = [_LEAST_EXCESS_J, _EXCESS * self.runs_j]
        if self.half_j is not None:
            errors_j.append(self.half_j)
        return self.runs_j - self.energy_j > max(errors_j)

    def add_joules(self, component: str, joules: float) -> None:
        self.joules[component] = self.joules.get(component, 0.0) + joules

    def add_grams(self, basis: Basis, grams: float) -> None:
        self.grams[basis] = self.grams.get(basis, 0.0) + grams

    def add_seconds(self, seconds: float) -> None:
        self.gpu_seconds = (self.gpu_seconds or 0.0) + seconds

    def add_reason(self, counter: Counter | RunReadings) -> None:
        if counter.reason:
            self.reasons[counter.reason] = None
            self.is_cut |= counter.is_cut


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of a window; `groups` by falling energy. `nodes_remainder_j` is the part of the
    remainder that each node has.
    """

    request: UsageRequest
    facts: Facts
    groups: Sequence[UsageRow]
    unattributed: Sequence[UsageRow]
    runs: UsageRow
    remainder: UsageRow
    total: UsageRow
    by_owners: bool
    idle_j: float
    units: Sequence[str]
    emission_shares: Mapping[str, float]
    """Share of the devices' energy that the emissions are of, by basis."""
    emissions_left_out: bool
    nodes_remainder_j: Mapping[str, tuple[float, float]]
    """Remainder and energy of the devices of each node."""
    simulated: bool
    labels: Sequence[str]
    """Names of the labels of all runs."""

    def share(self, row: UsageRow) -> float | None:
        whole_j = self.total.energy_j
        return row.energy_j / whole_j if row.joules and whole_j > 0 else None


def usage_of(facts: Facts, request: UsageRequest, grams_per_kwh: float | None) -> Usage:
    """Return the usage; `grams_per_kwh` replaces the emissions that the nodes counted.

    Raises FetchError for a key that neither counters by owner nor runs have together.
    """
    return _Sums(facts, request, grams_per_kwh).usage()


def component_of(counter: Counter) -> str:
    """Return the component of a device's counter; empty for zones of a CPU that overlap others."""
    if counter.metric is m.GPU_ENERGY:
        return "gpu"
    return counter.labels.get("component") or _ZONES.get(counter.labels.get("zone", ""), "")


@dataclass(frozen=True, slots=True)
class _RunUse:
    """A run on one node: its record, and its parts in the window."""

    part: RunReadings
    run: Run
    keys: Keys
    """Its keys, without the model of a GPU."""
    joules: Mapping[tuple[str, str], float]
    """Attributed energy in the window, by component and device."""
    is_active: bool

    def inside(self, metric: m.Metric) -> Iterator[tuple[Mapping[str, str], float]]:
        """Yield the increase in the window of each series of a metric."""
        for row in self.part.rows:
            if row.metric is metric:
                own = tuple(row.labels.get(name, "") for name in metric.labels)
                yield row.labels, row.value - self.part.before.get((metric.name, own), 0.0)

    def of_component(self, component: str) -> float:
        return math.fsum(j for (name, _), j in self.joules.items() if name == component)


class _Sums:
    def __init__(self, facts: Facts, request: UsageRequest, grams_per_kwh: float | None) -> None:
        self._facts = facts
        self._request = request
        self._by = request.by
        self._given = grams_per_kwh
        self._runs = [self._use(part) for part in facts.runs]
        self._rows: dict[Keys, UsageRow] = {}
        self._nobody: dict[Keys, UsageRow] = {}
        self._counters: defaultdict[m.Metric, list[Counter]] = defaultdict(list)
        for counter in facts.counters:
            self._counters[counter.metric].append(counter)
        self._left_out = False

    def usage(self) -> Usage:
        total = self._devices()
        by_owners = self._has_owners() and not self._is_ambiguous()
        if OWNER in self._by and not by_owners:
            raise FetchError(
                f"no counters by owner of the whole window at {self._facts.name}, or --by has a "
                "label of runs",
                "give --by user, namespace or another label",
            )
        self._add_run_energy()
        if OWNER not in self._by:
            self._add_run_figures()
        self._add_unattributed()
        if by_owners:
            self._take_owners()
        unattributed = list(self._nobody.values())
        self._add_emissions(total, unattributed, by_owners=by_owners)
        groups = [row for row in self._rows.values() if row.run_ids or any(row.joules.values())]
        for row in groups:
            if not any(row.joules.values()):
                row.joules.clear()  # none of it was attributed to the runs
            row.has_runs = OWNER not in self._by
        groups.sort(key=lambda row: (-row.energy_j, row.keys))
        runs = sum_of_rows(("(runs)", *self._blank), groups)
        if set(_OF_DEVICES) & set(self._by):  # a run can be in several groups
            runs.has_runs = False
        self._complete_unattributed(unattributed, total, runs, by_owners=by_owners)
        remainder = self._remainder(total, [runs, *unattributed])
        total.run_ids = runs.run_ids
        total.has_runs = runs.has_runs
        seconds = [row.gpu_seconds for row in (runs, *unattributed)]
        if None not in seconds[1:]:
            total.gpu_seconds = math.fsum(one or 0.0 for one in seconds)
        return Usage(
            request=self._request,
            facts=self._facts,
            groups=groups,
            unattributed=sorted(unattributed, key=lambda row: (-row.energy_j, row.keys)),
            runs=runs,
            remainder=remainder,
            total=total,
            by_owners=by_owners,
            idle_j=self._idle_j(),
            units=self._units(groups),
            emission_shares=self._emission_shares(total),
            emissions_left_out=self._left_out,
            nodes_remainder_j=self._nodes_remainder_j(by_owners=by_owners),
            simulated=any(name.startswith(SIMULATED) for name in self._facts.models.values()),
            labels=sorted({name for use in self._runs for name in use.run.labels}),
        )

    # Keys

    @property
    def _blank(self) -> Keys:
        return ("",) * (len(self._by) - 1)

    def _row(self, keys: Keys) -> UsageRow:
        named = tuple(key or NO_LABEL for key in keys)
        row = self._rows.get(named)
        if row is None:
            row = self._rows[named] = UsageRow(named)
        return row

    def _model(self, node: str, uuid: str) -> str:
        return self._facts.models.get((node, uuid), "")

    def _device_keys(self, node: str, uuid: str, other: str) -> Keys:
        texts = {NODE: node, GPU_MODEL: self._model(node, uuid) if uuid else ""}
        return tuple(texts.get(key, other) for key in self._by)

    def _run_keys(self, use: _RunUse, component: str = "", device: str = "") -> Keys:
        """Return the keys of a run, or of its part on one GPU."""
        if GPU_MODEL not in self._by:
            return use.keys
        if component == "gpu":
            model = self._model(use.part.node, device)
        else:
            models = [self._model(use.part.node, gpu.uuid) for gpu in use.run.gpus]
            model = max(models, default="")
        named = zip(self._by, use.keys, strict=True)
        return tuple(model if name == GPU_MODEL else text for name, text in named)

    def _labels(self, run: Run, part: RunReadings) -> dict[str, str]:
        labels = {**run.labels, WORKLOAD: run.workload}
        labels[KIND] = run.labels.get("discovered", "") or _RUN_KIND
        if NAMESPACE in self._by and not labels.get(NAMESPACE):
            end_s = math.inf if run.ended_at is None else run.ended_at
            gpus = {gpu.uuid for gpu in run.gpus}
            labels[NAMESPACE] = max(
                (
                    pod.namespace
                    for pod in self._facts.pods
                    if (pod.node == part.node and pod.uuid in gpus)
                    and pod.first_s <= end_s
                    and run.started_at <= pod.last_s
                ),
                default="",
            )
        return labels

    def _owner_keys(self, counter: Counter) -> Keys:
        """Return the keys of a counter by owner: the owner of a pod is its namespace, that of a
        service its unit, and else a user.
        """
        kind = counter.labels.get("kind", "")
        owner = counter.labels.get("owner", "")
        texts = {
            **{name: counter.labels.get(name, "") for name in (KIND, "account", WORKLOAD)},
            OWNER: owner,
            USER: "" if kind in (_PODS, _SERVICES) else owner,
            NAMESPACE: owner if kind == _PODS else "",
            NODE: counter.node,
        }
        return tuple(texts[key] for key in self._by)

    # Runs

    def _use(self, part: RunReadings) -> _RunUse:
        run = from_rows(part.rows, part.node)
        joules = {}
        for row in part.rows:
            if row.metric is m.RUN_ATTRIBUTED_ENERGY:
                own = tuple(row.labels.get(name, "") for name in row.metric.labels)
                if row.labels["policy"] == self._request.policy:
                    before_j = part.before.get((row.metric.name, own), 0.0)
                    device = row.labels["component"], row.labels["device"]
                    joules[device] = row.value - before_j
        is_over = run.ended_at is not None and run.ended_at < self._request.start_s
        texts = {**self._labels(run, part), NODE: part.node, GPU_MODEL: ""}
        keys = tuple(texts.get(key, "") for key in self._by)
        return _RunUse(part, run, keys, joules, not is_over)

    def _add_run_energy(self) -> None:
        for use in self._runs:
            for (component, device), joules in use.joules.items():
                row = self._row(self._run_keys(use, component, device))
                row.add_joules(component, joules)
                if joules:
                    row.add_reason(use.part)
        for counter in self._attributed(OTHER_RUNS, self._request.policy):
            keys = self._device_keys(counter.node, _gpu_of(counter), OTHER_RUNS)
            self._row(keys).add_joules(component_of(counter), counter.increase)

    def _add_run_figures(self) -> None:
        """Add the number, GPU time, work and half-widths of runs."""
        certain_j: defaultdict[Keys, float] = defaultdict(float)
        for use in self._runs:
            keys = tuple(key or NO_LABEL for key in self._run_keys(use))
            if use.is_active:
                self._row(keys).run_ids.add(use.part.run_id)
            self._add_gpu_seconds(use)
            half = _half_width(use, self._request.policy)
            if half is not None:
                self._row(keys).run_energies.setdefault(use.part.run_id, []).append(half)
                certain_j[keys] += math.fsum(use.joules.values())
        for keys, joules in certain_j.items():
            row = self._row(keys)
            if joules >= _CERTAIN * row.energy_j and any(row.joules.values()):
                row.half_j = _half_of_runs(row.run_energies)
        self._add_work()

    def _add_gpu_seconds(self, use: _RunUse) -> None:
        seconds = math.fsum(seconds for _, seconds in use.inside(m.RUN_DURATION))
        for gpu in use.run.gpus:
            keys = self._run_keys(use, "gpu", gpu.uuid)
            if seconds:
                self._row(keys).add_seconds(seconds)

    def _add_work(self) -> None:
        """Add the work of runs, and the energy of these runs in the window.

        A run on several nodes may count its work on one of them: the energy is of all of them, with
        each choice of keys.
        """
        by_run: defaultdict[str, list[_RunUse]] = defaultdict(list)
        for use in self._runs:
            by_run[use.part.run_id].append(use)
        for uses in by_run.values():
            run = combine([use.run for use in uses])
            part = _part_inside(uses, self._request.policy)
            for use in uses:
                for labels, amount in use.inside(m.RUN_WORK):
                    unit = labels["unit"]
                    if not is_amount(unit) or not (amount or use.is_active):
                        continue
                    each = run.unit_energy(unit)
                    added = UnitUse(amount, unmeasured=amount)
                    if each is not None and each.energy.number > 0 and part is not None:
                        joules = each.energy.number * use.run.work[unit] * part
                        added = UnitUse(amount, joules)
                    row = self._row(self._run_keys(use))
                    row.work[unit] = row.work.get(unit, UnitUse()) + added

    def _units(self, groups: Iterable[UsageRow]) -> list[str]:
        """Return the units of all rows, those first that are the primary one of most runs."""
        primary = Count({use.part.run_id: use.run.work_unit for use in self._runs}.values())
        units = primary_first({unit for row in groups for unit in row.work})
        return sorted(units, key=lambda unit: -primary[unit])

    # Counters of nodes

    def _devices(self) -> UsageRow:
        total = UsageRow(("(total)", *self._blank), "total")
        for metric in (m.GPU_ENERGY, m.CPU_ENERGY):
            for counter in self._counters[metric]:
                component = component_of(counter)
                if component:
                    total.add_joules(component, counter.increase)
                    total.add_reason(counter)
        total.joules = {name: total.joules[name] for name in COMPONENTS if name in total.joules}
        return total

    def _attributed(self, run_id: str, policy: str) -> Iterator[Counter]:
        for counter in self._counters[m.RUN_ATTRIBUTED_ENERGY]:
            if counter.labels.get("run_id", "") == run_id and counter.labels["policy"] == policy:
                yield counter

    def _add_unattributed(self) -> None:
        for counter in self._attributed("", self._request.policy):
            keys = self._device_keys(counter.node, _gpu_of(counter), "")
            row = self._unattributed_row(keys)
            row.add_joules(component_of(counter), counter.increase)
            row.add_reason(counter)

    def _unattributed_row(self, keys: Keys) -> UsageRow:
        """Return the row of energy that no run has."""
        texts = [
            NO_GPU if name == GPU_MODEL and not text else text
            for name, text in zip(self._by, keys, strict=True)
        ]
        shown = [text if text != NO_GPU else "" for text in texts]
        first = f"{shown[0]} (unattributed)" if shown[0] else "(unattributed)"
        return self._nobody.setdefault(
            tuple(texts), UsageRow((first, *shown[1:]), "unattributed", has_runs=False)
        )

    def _idle_j(self) -> float:
        return math.fsum(
            counter.increase
            for counter in self._attributed("", POLICY)
            if component_of(counter) == "gpu"
        )

    def _has_owners(self) -> bool:
        """Return True if counters by owner have all keys, cover the window on all nodes, and lack
        no more of the devices' energy than the series of runs do.
        """
        if not all(key in _OWNER_KEYS for key in self._by):
            return False
        covered = {
            counter.node for counter in self._owners(m.OWNER_ENERGY) if counter.is_from_start
        }
        by_owners = self._nodes_remainder_j(by_owners=True)
        if any(j > 0 and node not in covered for node, (_, j) in by_owners.items()):
            return False
        lacking_j = math.fsum(abs(rest_j) for rest_j, _ in by_owners.values())
        devices_j = math.fsum(node_j for _, node_j in by_owners.values())
        by_runs = self._nodes_remainder_j(by_owners=False).values()
        return lacking_j <= max(_CLOSE * devices_j, math.fsum(abs(one) for one, _ in by_runs))

    def _owners(self, metric: m.Metric) -> Iterator[Counter]:
        for counter in self._counters[metric]:
            if counter.labels.get("policy", self._request.policy) == self._request.policy:
                yield counter

    def _is_ambiguous(self) -> bool:
        """Return True if a run's owner has another meaning than a key."""
        for use in self._runs:
            kind = use.run.labels.get("discovered", "")
            user = use.run.labels.get(USER, "")
            namespace = use.run.labels.get(NAMESPACE, "")
            if USER in self._by and (
                user if kind in (_PODS, _SERVICES) else namespace and not user
            ):
                return True
            is_other = bool(namespace) or (bool(self._facts.pods) and not kind)
            if kind == _PODS:
                is_other = bool(user) or not namespace
            if NAMESPACE in self._by and is_other:
                return True
        return False

    def _take_owners(self) -> None:
        """Replace the energy and GPU time of the rows by those of the counters by owner."""
        for row in self._rows.values():
            row.runs_j = row.energy_j
            row.joules = {}
            row.gpu_seconds = None
            row.reasons = {}
            row.is_cut = False
        self._nobody.clear()
        for counter in self._owners(m.OWNER_ENERGY):
            row = self._owner_row(counter)
            row.add_joules(component_of(counter), counter.increase)
            row.hidden_j += counter.hidden
            if counter.increase:
                row.add_reason(counter)
        for counter in self._owners(m.OWNER_GPU_SECONDS):
            self._owner_row(counter).add_seconds(counter.increase)
        for row in self._rows.values():
            if row.half_j is not None and (row.runs_j or 0.0) < _CERTAIN * row.energy_j:
                row.half_j = None
            if OWNER in self._by:
                row.runs_j = None

    def _owner_row(self, counter: Counter) -> UsageRow:
        if counter.labels.get("kind") == _NO_OWNER:
            return self._unattributed_row(self._device_keys(counter.node, "", ""))
        return self._row(self._owner_keys(counter))

    def _remainder(self, total: UsageRow, parts: Sequence[UsageRow]) -> UsageRow:
        row = UsageRow(("(remainder)", *self._blank), "remainder", has_runs=False)
        row.joules = _difference(total.joules, [part.joules for part in parts])
        row.grams = _difference(total.grams, [part.grams for part in parts])
        return row

    def _nodes_remainder_j(self, *, by_owners: bool) -> dict[str, tuple[float, float]]:
        """Return the remainder and the energy of the devices of each node."""
        parts_j: defaultdict[str, float] = defaultdict(float)
        devices_j: defaultdict[str, float] = defaultdict(float)
        for metric in (m.GPU_ENERGY, m.CPU_ENERGY):
            for counter in self._counters[metric]:
                devices_j[counter.node] += counter.increase if component_of(counter) else 0.0
        counters: Iterable[Counter] = self._owners(m.OWNER_ENERGY)
        if not by_owners:
            policy = self._request.policy
            counters = [*self._attributed("", policy), *self._attributed(OTHER_RUNS, policy)]
            for use in self._runs:
                parts_j[use.part.node] += math.fsum(use.joules.values())
        for counter in counters:
            parts_j[counter.node] += counter.increase
        return {node: (devices_j[node] - parts_j[node], devices_j[node]) for node in devices_j}

    # Emissions

    def _add_emissions(
        self, total: UsageRow, unattributed: Sequence[UsageRow], *, by_owners: bool
    ) -> None:
        if self._given is not None:
            for row in (*self._rows.values(), *unattributed, total):
                if row.joules:
                    row.grams = {GIVEN: row.energy_j / JOULES_PER_KWH * self._given}
            return
        self._add_device_emissions(total)
        if by_owners and self._request.policy == POLICY:
            self._add_owner_emissions(total)
        elif by_owners and not self._runs_have_energy():
            self._left_out = bool(total.grams)
            total.grams = {}
        else:
            self._add_run_emissions(total)

    def _add_device_emissions(self, total: UsageRow) -> None:
        for counter in self._counters[m.EMISSIONS]:
            total.add_grams(_basis(counter.labels), counter.increase)
        if total.energy_j > 0:
            # an exporter without carbon options keeps the counters of earlier times
            total.grams = {basis: grams for basis, grams in total.grams.items() if grams}

    def _add_run_emissions(self, total: UsageRow) -> None:
        for use in self._runs:
            for basis, grams in _run_emissions(use, self._request):
                if basis in total.grams:
                    self._row(self._run_keys(use)).add_grams(basis, grams)

    def _runs_have_energy(self) -> bool:
        """Return True if the rows of owners are those of runs with nearly all of their energy."""
        runs_j = math.fsum(math.fsum(use.joules.values()) for use in self._runs)
        claimed_j = math.fsum(row.energy_j for row in self._rows.values())
        return OWNER not in self._by and runs_j >= (1 - _CLOSE) * claimed_j

    def _add_owner_emissions(self, total: UsageRow) -> None:
        for counter in self._counters[m.OWNER_EMISSIONS]:
            basis = _basis(counter.labels)
            if basis not in total.grams:
                continue
            self._owner_row(counter).add_grams(basis, counter.increase)

    def _complete_unattributed(
        self, rows: Sequence[UsageRow], total: UsageRow, runs: UsageRow, *, by_owners: bool
    ) -> None:
        """Give the only row of no run the emissions that no run has."""
        is_counted = by_owners and self._request.policy == POLICY
        if self._given is None and not is_counted and len(rows) == 1 and total.grams:
            rows[0].grams = _difference(total.grams, [runs.grams])

    def _emission_shares(self, total: UsageRow) -> dict[str, float]:
        """Return the share of the devices' energy that the emissions are of, by basis: emissions
        by the mean of the known intensities, which is exact where the intensity is constant.
        """
        if self._given is not None or total.energy_j <= 0:
            return {}
        found: defaultdict[str, float] = defaultdict(float)
        known = set()
        for counter in self._counters[m.EMISSIONS]:
            basis, quality = _basis(counter.labels)
            mean = self._facts.intensities.get((counter.node, basis, quality), 0.0)
            if mean > 0 and (basis, quality) in total.grams:
                known.add(basis)
                found[basis] += counter.increase / mean * JOULES_PER_KWH
        return {basis: min(found[basis] / total.energy_j, 1.0) for basis in sorted(known)}


def sum_of_rows(keys: Keys, rows: Sequence[UsageRow], kind: str = "runs") -> UsageRow:
    """Return the sum of rows, with the half-width of their runs."""
    found = UsageRow(keys, kind)
    for row in rows:
        for component, joules in row.joules.items():
            found.add_joules(component, joules)
        for basis, grams in row.grams.items():
            found.add_grams(basis, grams)
        for unit, use in row.work.items():
            found.work[unit] = found.work.get(unit, UnitUse()) + use
        if row.gpu_seconds is not None:
            found.add_seconds(row.gpu_seconds)
        found.run_ids |= row.run_ids
        found.hidden_j += row.hidden_j
        found.reasons |= row.reasons
        found.is_cut |= row.is_cut
        found.has_runs &= row.has_runs
        for run_id, energies in row.run_energies.items():
            found.run_energies.setdefault(run_id, []).extend(energies)
    measured = [row for row in rows if row.joules]
    if measured and all(row.half_j is not None for row in measured):
        found.half_j = _half_of_runs(found.run_energies)
    return found


def _half_of_runs(energies: Mapping[str, Sequence[Figure]]) -> float | None:
    """Return the half-width of the sum of runs, each of the parts on its nodes."""
    return sum_of_independent(sum_of_one_job(parts) for parts in energies.values()).half_width


def _gpu_of(counter: Counter) -> str:
    return counter.labels.get("device", "") if component_of(counter) == "gpu" else ""


def _basis(labels: Mapping[str, str]) -> Basis:
    return labels["basis"], labels["quality"]


def _half_width(use: _RunUse, policy: str) -> Figure | None:
    """Return the energy of a run that had its devices to itself, with its half-width.

    That of a device includes the difference between its energy and the attributed part, which
    arises at the edges of the run. None for other runs, and where a half-width is not known.
    """
    figures = []
    energy_j = 0.0
    for device in use.run.devices:
        attributed_j = device.shares_j.get(policy, 0.0)
        if device.energy_j.value is None or device.energy_j.half_width is None:
            return None
        energy_j += device.energy_j.value
        missed_j = abs(device.energy_j.value - attributed_j)
        figures.append(Figure(attributed_j, device.energy_j.half_width + missed_j))
    if not energy_j or math.fsum(one.number for one in figures) < _LONE * energy_j:
        return None
    return sum_of_one_job(figures)


def _part_inside(uses: Iterable[_RunUse], policy: str) -> float | None:
    """Return the ratio of a run's energy that is in the window: of its GPUs, else of its CPUs; None
    where none was attributed to it.
    """
    inside_j: defaultdict[str, float] = defaultdict(float)
    whole_j: defaultdict[str, float] = defaultdict(float)
    for use in uses:
        for device in use.run.devices:
            whole_j[device.component] += device.shares_j.get(policy, 0.0)
            inside_j[device.component] += use.joules.get((device.component, device.device_id), 0.0)
    for component in ("gpu", "cpu"):
        if whole_j[component] > 0:
            return inside_j[component] / whole_j[component]
    return None


def _run_emissions(use: _RunUse, request: UsageRequest) -> Iterator[tuple[Basis, float]]:
    """Yield the emissions of a run in the window: those of its devices times its attributed share.

    Those of a run that was ending when the window started are by joules: emissions are counted
    seconds later.
    """
    ended_s = use.run.ended_at
    is_late = ended_s is not None and ended_s < request.start_s + _SOON_S
    shares_j: defaultdict[str, float] = defaultdict(float)
    energies_j: defaultdict[str, float] = defaultdict(float)
    for device in use.run.devices:
        shares_j[device.component] += device.shares_j.get(request.policy, 0.0)
        energies_j[device.component] += device.energy_j.value or 0.0
    whole = {(one.component, one.basis, one.quality): one.grams for one in use.run.emissions}
    for labels, grams in use.inside(m.RUN_EMISSIONS):
        component = labels["component"]
        if energies_j[component] <= 0:
            continue
        emitted = grams
        if is_late:
            emitted = 0.0
            if shares_j[component] > 0:
                inside = use.of_component(component) / shares_j[component]
                emitted = whole[component, labels["basis"], labels["quality"]] * inside
        yield _basis(labels), emitted * shares_j[component] / energies_j[component]


def _difference(
    whole: Mapping[_Name, float], parts: Sequence[Mapping[_Name, float]]
) -> dict[_Name, float]:
    names = dict.fromkeys((*whole, *(name for part in parts for name in part)))
    return {
        name: math.fsum([whole.get(name, 0.0), *(-part.get(name, 0.0) for part in parts)])
        for name in names
    }
