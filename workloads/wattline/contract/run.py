"""The record of a run: what the exporter stores and serves, and every program reads.

It needs only the standard library, since it also runs inside users' training processes. Times are
Unix seconds. `Run.to_json` and `Run.parse` are the run API's form, in which energies are joules by
component and device.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NotRequired, TypedDict, cast, get_args

from wattline import figures
from wattline.contract.api import OUTCOMES, GpuJson, Outcome, RunGpu, RunState
from wattline.contract.identity import Sighting, sightings_by_node
from wattline.contract.json_values import (
    as_amounts,
    as_labels,
    as_list,
    as_number,
    as_object,
    as_outcome,
    as_text,
    as_texts,
    optional,
)
from wattline.contract.power_sensors import gpu_limits_j
from wattline.contract.work import (
    SHARE_POLICY,
    SHORTEST_PHASE_S,
    is_amount,
    is_useful,
    phases_of_work,
    primary_first,
    unit_of_one,
)
from wattline.figures import (
    Figure,
    Limits,
    sum_of_correlated,
    sum_of_independent,
    sum_of_one_job,
    unknown,
)

Component = Literal["gpu", "cpu", "dram"]
COMPONENTS: tuple[Component, ...] = get_args(Component)
"""Components of a run's energy; their devices do not overlap."""
_NO_EMISSIONS = "no carbon intensity of the whole run is known"
_INTENSITY_MISSING = "no carbon intensity was known for a part of the energy"
_RESTARTED = "the exporter began again without the run, and measured nothing in between"
SIMULATED = "SIMULATED"
"""Start of the names of simulated GPUs."""


class RunFormatError(ValueError):
    """JSON or series of no run; the message names the field or metric."""


class PhaseJson(TypedDict):
    name: str
    started_at: float
    duration_seconds: float
    energy_joules: dict[str, float | None]
    energy_uncertainty_joules: dict[str, float]
    work: dict[str, float]
    last_started_at: float | None
    energy_state: NotRequired[dict[str, str]]
    energy_covered_ratio: NotRequired[dict[str, float]]
    energy_reason: NotRequired[dict[str, str]]


class EmissionsJson(TypedDict):
    component: str
    basis: str
    quality: str
    grams: float
    covered_ratio: NotRequired[float]
    """Missing where the intensity was known for all of the energy."""


class UnitEnergyJson(TypedDict):
    unit: str
    name: str
    component: str
    joules: float
    uncertainty_joules: float | None
    phases: list[str]
    whole_device_joules: float | None
    whole_device_uncertainty_joules: float | None


class RunJson(TypedDict):
    """A run in the run API, by component and device. Limits are differences from the value."""

    run_id: str
    workload: str
    labels: dict[str, str]
    gpus: list[GpuJson]
    state: RunState
    outcome: Outcome | None
    started_at: float
    ended_at: float | None
    duration_seconds: float
    phases: list[PhaseJson]
    work: dict[str, float]
    work_unit: str | None
    work_reported_at: float | None
    results: dict[str, float]
    settled_until: float | None
    energy_joules: dict[str, dict[str, float | None]]
    energy_uncertainty_joules: dict[str, dict[str, float]]
    energy_sensor_limits_joules: dict[str, dict[str, list[float]]]
    integrated_energy_joules: dict[str, float]
    power_max_watts: dict[str, float]
    emissions_grams: list[EmissionsJson]
    covered_ratio: dict[str, dict[str, float]]
    notes: list[str]
    attributed_energy_joules: dict[str, dict[str, float]]
    energy_before_use_joules: dict[str, dict[str, float]]
    energy_per_unit: list[UnitEnergyJson]
    simulation: str | None
    attributed_counter_joules: NotRequired[dict[str, dict[str, float]]]
    energy_state: NotRequired[dict[str, dict[str, str]]]
    energy_reason: NotRequired[dict[str, dict[str, str]]]
    energy_rest_limits_joules: NotRequired[dict[str, dict[str, list[float | None]]]]
    energy_limits_joules: NotRequired[dict[str, dict[str, list[float | None]]]]


@dataclass(frozen=True, slots=True)
class RunDevice:
    """A device of a run, by its GPU's UUID or the number of its CPU package, and its energy."""

    component: Component
    device_id: str
    energy_j: Figure
    attributed_j: float | None = None
    """The run's share by policy idle_shared; None on a device that nothing else used."""
    before_use_j: float = 0.0
    """Energy from the run's start to its first use of a GPU that nothing else used then; it is not
    attributed.
    """
    integrated_j: float | None = None
    """Integrated power of a GPU, as a cross-check."""
    node: str = ""
    """Instance of the exporter that measured the device; empty where only one is known."""
    shares_j: Mapping[str, float] = field(default_factory=dict)
    """Counters of the run's share by policy, without `before_use_j`, also of a device that nothing
    else used; the run API has that of policy idle_shared, of ended runs.
    """

    @property
    def own_energy_j(self) -> Figure:
        """Energy of the run's part: its share of a device that others used as well, with the
        half-width of the whole device.
        """
        if self.attributed_j is None or self.energy_j.value is None:
            return self.energy_j
        share_j = replace(self.energy_j.symmetric(), value=self.attributed_j)
        return share_j.with_accuracy_of(self.energy_j)

    @property
    def share_j(self) -> float | None:
        """Counter of the run's share with the energy before its first use, also of a device that
        nothing else used; None where it is unknown.
        """
        counter_j = self.shares_j.get(SHARE_POLICY)
        return self.attributed_j if counter_j is None else counter_j + self.before_use_j


@dataclass(frozen=True, slots=True)
class RunPhase:
    name: str
    started_at: float
    duration_s: float
    energies_j: Mapping[str, Figure]
    """Energy by component; the half-widths are known once the run has ended."""
    work: Mapping[str, float] = field(default_factory=dict)
    """Work reported during the phase."""
    last_started_at: float | None = None
    """Unix time at which the run last entered the phase."""


@dataclass(frozen=True, slots=True)
class Emissions:
    """Emissions of a component in g CO2eq."""

    component: str
    basis: str
    quality: str
    grams: float
    covered_ratio: float = 1.0
    """Share of the component's energy for which an intensity of the basis, of any quality, was
    known; the emissions of the rest are not in `grams`.
    """

    def to_json(self) -> EmissionsJson:
        document: EmissionsJson = {
            "component": self.component,
            "basis": self.basis,
            "quality": self.quality,
            "grams": self.grams,
        }
        if self.covered_ratio < 1.0:
            document["covered_ratio"] = self.covered_ratio
        return document


@dataclass(frozen=True, slots=True)
class UnitEnergy:
    """Energy per unit of work in joules, over `phases`, over the whole run if there are none; see
    `wattline.contract.work`.

    `energy` is the energy of all devices of `component`. On devices that others used as well, it is
    the run's attributed share, without a half-width, and `whole_device` the energy of the whole
    devices.
    """

    unit: str
    name: str
    """Words of the unit for an amount of one: `generated token`."""
    component: Component
    energy: Figure
    phases: tuple[str, ...] = ()
    whole_device: Figure | None = None

    def to_json(self) -> UnitEnergyJson:
        return {
            "unit": self.unit,
            "name": self.name,
            "component": self.component,
            "joules": self.energy.number,
            "uncertainty_joules": self.energy.half_width,
            "phases": list(self.phases),
            "whole_device_joules": self.whole_device.number if self.whole_device else None,
            "whole_device_uncertainty_joules": (
                self.whole_device.half_width if self.whole_device else None
            ),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as every program sees it, on one node or on several ones; see `combine`."""

    run_id: str
    workload: str
    state: RunState
    started_at: float
    duration_s: float
    """Duration by a clock that no one sets."""
    outcome: Outcome | None = None
    ended_at: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[RunGpu, ...] = ()
    devices: tuple[RunDevice, ...] = ()
    """Devices whose energy counts for the run. A running run has a device once its start is
    measured.
    """
    phases: tuple[RunPhase, ...] = ()
    work: Mapping[str, float] = field(default_factory=dict)
    work_unit: str | None = None
    """Primary unit of work: the one that the job declared, else the first one that it reported."""
    work_reported_at: float | None = None
    """Unix time of the latest report of work; None without one."""
    results: Mapping[str, float] = field(default_factory=dict)
    settled_until: float | None = None
    """Unix time up to which seconds and energies of `phases` of a running run count, about six
    seconds ago: later marks may still change. Energy, work and duration are up to now, and so are
    the emissions of the answer to GET of one run; in lists they are up to this time. None once the
    run has ended.
    """
    emissions: tuple[Emissions, ...] = ()
    power_max_w: Mapping[str, float] = field(default_factory=dict)
    """Maximum power by GPU UUID."""
    notes: tuple[str, ...] = ()
    simulation: str | None = None
    """Path of the state file of simulated GPUs (see `wattline_exporter.simulation`)."""

    @property
    def is_simulated(self) -> bool:
        return any(gpu.name.startswith(SIMULATED) for gpu in self.gpus)

    @property
    def components(self) -> tuple[Component, ...]:
        """Components of the run's devices."""
        present = {device.component for device in self.devices}
        return tuple(component for component in COMPONENTS if component in present)

    @property
    def amounts(self) -> dict[str, float]:
        """Work by unit, the primary one first, without scores and times, and without a primary unit
        that was declared only.
        """
        return {
            unit: self.work[unit]
            for unit in primary_first(self.work, self.work_unit)
            if is_amount(unit) and (self.work[unit] or unit != self.work_unit)
        }

    @property
    def misreported_work(self) -> dict[str, float]:
        """Scores and times that were reported as work."""
        return {unit: amount for unit, amount in self.work.items() if not is_amount(unit)}

    def gpu(self, uuid: str) -> RunGpu | None:
        """Return the GPU of a UUID; None where its index is not known."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    def energy(self, component: str | None = None) -> Figure:
        """Return the energy of all devices in joules, or of those of a component; unknown without
        any.
        """
        return sum_of_one_job(
            device.energy_j
            for device in self.devices
            if component is None or device.component == component
        )

    def known_energy(self, component: str | None = None) -> Figure:
        """Return the energy as a number that counts all of it: unknown where that of one device is
        partial or unknown.
        """
        return self.energy(component).complete()

    def attributed_j(self, component: str) -> float | None:
        """Return the run's part of a component's energy; None where it is unknown, and on devices
        that nothing else used.
        """
        devices = [device for device in self.devices if device.component == component]
        if all(device.attributed_j is None for device in devices):
            return None
        parts_j = [
            device.energy_j.value if device.attributed_j is None else device.attributed_j
            for device in devices
        ]
        known_j = [part_j for part_j in parts_j if part_j is not None]
        return math.fsum(known_j) if len(known_j) == len(parts_j) else None

    def own_energy(self, component: str | None = None) -> Figure:
        """Return the energy in joules with the run's own part of the devices that others used as
        well; unknown without any device.
        """
        return sum_of_one_job(
            device.own_energy_j
            for device in self.devices
            if component is None or device.component == component
        )

    @property
    def emissions_g(self) -> Figure:
        """Emissions in g CO2eq by the average intensity, by the marginal one where only that is
        known, with the random errors of the energy.

        Partial where the energy is, or where the intensity was known for a part of it. Unknown
        where a component has none, since the sum would lack it.
        """
        return self._emissions_of(None)

    @property
    def own_emissions_g(self) -> Figure:
        """Emissions of the run's own part of the devices, as `emissions_g`, of a run on one
        node.
        """
        return self._emissions_of(self.own_energy)

    def _emissions_of(self, part: Callable[[Component], Figure] | None) -> Figure:
        """Return the emissions of the energy, or of a part that `part` returns by component."""
        for basis in ("average", "marginal"):
            of_basis = [one for one in self.emissions if one.basis == basis]
            if self.devices and set(self.components) <= {one.component for one in of_basis}:
                return sum_of_one_job(
                    component_emissions_g(
                        [one for one in of_basis if one.component == component],
                        self.energy(component),
                        None if part is None else part(component),
                    )
                    for component in self.components
                )
        return unknown(_NO_EMISSIONS)

    def energy_per_unit(self) -> tuple[UnitEnergy, ...]:
        """Return the energy of each useful unit of work of an ended run, the primary one first."""
        if self.state != "ended":
            return ()
        units = primary_first(filter(is_useful, self.work), self.work_unit)
        energies = [self.unit_energy(unit) for unit in units]
        return tuple(energy for energy in energies if energy is not None)

    def unit_energy(
        self, unit: str, *, shortest_phase_s: float = SHORTEST_PHASE_S
    ) -> UnitEnergy | None:
        """Return the energy of one unit of work, of an open run of the energy and work so far.

        None without such work, where the energy of the run's GPUs, or of its CPUs without GPUs, is
        not known completely, and where the energy of one unit is not a finite number.
        """
        amount = self.work.get(unit, 0.0)
        if amount <= 0 or not self.components:
            return None
        component = self.components[0]
        whole = self.known_energy(component)
        if whole.value is None or not math.isfinite(whole.value / amount):
            return None
        name = unit_of_one(unit)
        whole_each = whole.scaled(1 / amount)
        share_j = self.attributed_j(component)
        if share_j is not None:
            share = Figure(min(share_j, whole.value) / amount).with_accuracy_of(whole)
            return UnitEnergy(unit, name, component, share, whole_device=whole_each)
        names = self.phases_of_unit(unit, shortest_phase_s=shortest_phase_s)
        if not names:
            return UnitEnergy(unit, name, component, whole_each)
        inside = sum_of_correlated(
            phase.energies_j[component] for phase in self.phases if phase.name in names
        )
        in_phases = inside.with_accuracy_of(whole).scaled(1 / amount)
        return UnitEnergy(unit, name, component, in_phases, names)

    def phases_of_unit(
        self, unit: str, *, shortest_phase_s: float = SHORTEST_PHASE_S
    ) -> tuple[str, ...]:
        """Return the phases in which the work of an ended run was done; empty where the whole run
        counts.

        The energy of the GPUs is not known in phases shorter than `shortest_phase_s`. Without
        devices, the durations of all phases count.
        """
        if self.state != "ended":
            return ()
        component = next(iter(self.components), None)
        shortest_s = shortest_phase_s if component == "gpu" else 0.0
        measured_s = {
            phase.name: phase.duration_s
            for phase in self.phases
            if component is None
            or (_is_known(phase.energies_j.get(component)) and phase.duration_s >= shortest_s)
        }
        done_in = {phase.name: phase.work[unit] for phase in self.phases if unit in phase.work}
        return phases_of_work(self.work.get(unit, 0.0), done_in, measured_s, self.duration_s)

    def to_json(self) -> RunJson:
        """Return the run as the run API shows it."""
        document: dict[str, Any] = {
            "run_id": self.run_id,
            "workload": self.workload,
            "labels": dict(self.labels),
            "gpus": [gpu.to_json() for gpu in self.gpus],
            "state": self.state,
            "outcome": self.outcome,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "duration_seconds": self.duration_s,
            "phases": [_phase_json(phase) for phase in self.phases],
            "work": dict(self.work),
            "work_unit": self.work_unit,
            "work_reported_at": self.work_reported_at,
            "results": dict(self.results),
            "settled_until": self.settled_until,
            "energy_joules": {},
            "energy_uncertainty_joules": {},
            "energy_sensor_limits_joules": {},
            "integrated_energy_joules": {
                device.device_id: device.integrated_j
                for device in self.devices
                if device.integrated_j is not None
            },
            "power_max_watts": dict(self.power_max_w),
            "emissions_grams": [one.to_json() for one in self.emissions],
            "covered_ratio": _by_component(
                (device, device.energy_j.covered_ratio) for device in self.devices
            ),
            "notes": list(self.notes),
            "attributed_energy_joules": _by_component(
                (device, device.attributed_j)
                for device in self.devices
                if device.attributed_j is not None
            ),
            "energy_before_use_joules": _by_component(
                (device, device.before_use_j) for device in self.devices if device.before_use_j
            ),
            "energy_per_unit": [one.to_json() for one in self.energy_per_unit()],
            "simulation": self.simulation,
        }
        counters_j = _by_component(
            (device, device.shares_j[SHARE_POLICY])
            for device in self.devices
            if SHARE_POLICY in device.shares_j
        )
        if counters_j:
            document["attributed_counter_joules"] = counters_j
        for device in self.devices:
            for key, value in _figure_fields(device.energy_j):
                if key == "energy_covered_ratio":  # `covered_ratio` has it
                    continue
                by_device = document.setdefault(key, {}).setdefault(device.component, {})
                by_device[device.device_id] = value
        return cast("RunJson", document)

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Run:
        """Return the run of a JSON object. Raises RunFormatError, which names the field."""
        try:
            return _parse(_Fields(as_object("the run", document)))
        except ValueError as error:
            raise RunFormatError(str(error)) from error


def component_emissions_g(
    emissions: Sequence[Emissions], whole: Figure, part: Figure | None = None
) -> Figure:
    """Return the emissions of a component by one basis, with the random errors of its energy
    `whole`; those of a `part` of the energy in proportion.

    Partial where the intensity was known for a part of the energy.
    """
    energy = whole if part is None else part
    grams = math.fsum(one.grams for one in emissions)
    if whole.value and energy.value is not None:
        own_g = grams if part is None else grams * energy.value / whole.value
        found = replace(energy.scaled(grams / whole.value), value=own_g, bias=None)
    else:
        found = Figure(grams) if energy.state == "known" else unknown(energy.reason)
    covered_ratio = min(one.covered_ratio for one in emissions)
    if covered_ratio < 1.0 and found.value is not None:
        partial = sum_of_independent([found, unknown(_INTENSITY_MISSING)])
        found = replace(partial, covered_ratio=covered_ratio)
    return found


def sensor_limits_j(gpu: RunGpu, energy_j: float) -> Limits | None:
    """Return the limits of the systematic error of a GPU's energy in joules; simulated sensors have
    none.
    """
    if gpu.name.startswith(SIMULATED):
        return None
    return gpu_limits_j(energy_j, gpu.name, gpu.architecture)


# One run on several nodes


@dataclass(frozen=True, slots=True)
class RunPart:
    """A run at one address of an exporter, and the times of its first and last sample there."""

    run: Run
    first_s: float
    last_s: float


@dataclass(frozen=True, slots=True)
class NodeRuns:
    """The run on each node by the address that counts.

    `aliases` are further addresses of these nodes, each with the one that counts. `moved_at` has
    the time of the first sample at the address that counts, of aliases that have none after it.
    """

    runs: Mapping[str, Run]
    aliases: Mapping[str, str]
    moved_at: Mapping[str, float]

    def addresses(self, address: str) -> list[str]:
        """Return the address that counts and its aliases."""
        return [address, *(alias for alias, first in self.aliases.items() if first == address)]


def runs_of_nodes(parts: Mapping[str, RunPart]) -> NodeRuns:
    """Return the run on each node of its parts by address, each device once.

    Addresses with a GPU in common, or without GPUs with the same start to the microsecond, are one
    node: see `sightings_by_node`. Counters rise over a change of the address, so that the latest
    part has the figures of the whole run; a part of another ledger before it is added. Of parts at
    the same time, the first one counts, and the others have only the devices that it lacks.
    """
    runs: dict[str, Run] = {}
    aliases: dict[str, str] = {}
    moved_at: dict[str, float] = {}
    sightings = (_sighting(address, part) for address, part in parts.items())
    for first, *others in sightings_by_node(sightings):
        counted = parts[first.address].run
        runs[first.address] = counted
        known = {(device.component, device.device_id) for device in counted.devices}
        for other in others:
            run = parts[other.address].run
            rest = _without_devices(run, known)
            if _is_before(run, counted) or _is_before(counted, run):
                earlier, later = sorted((run, counted), key=lambda one: one.started_at)
                counted = _continued(earlier, later, first.address)
                runs[first.address] = counted
            elif rest.devices:
                runs[other.address] = rest
                known |= {(device.component, device.device_id) for device in rest.devices}
                continue
            aliases[other.address] = first.address
            if first.follows(other):
                moved_at[other.address] = first.first_s
    return NodeRuns(dict(sorted(runs.items())), dict(sorted(aliases.items())), moved_at)


def _sighting(address: str, part: RunPart) -> Sighting:
    gpus = frozenset(gpu.uuid for gpu in part.run.gpus)
    return Sighting(address, gpus or frozenset([part.run.started_at]), part.first_s, part.last_s)


def _without_devices(run: Run, known: Collection[tuple[str, str]]) -> Run:
    """Return the part of a run that only devices which are not `known` have: their energies."""
    rest = tuple(
        device for device in run.devices if (device.component, device.device_id) not in known
    )
    uuids = {device.device_id for device in rest}
    return replace(
        run,
        gpus=tuple(gpu for gpu in run.gpus if gpu.uuid in uuids),
        devices=rest,
        phases=(),
        work={},
        results={},
        emissions=(),
        power_max_w={uuid: watts for uuid, watts in run.power_max_w.items() if uuid in uuids},
    )


def _is_before(earlier: Run, later: Run) -> bool:
    """Return True if a ledger has the run from after the end of what another one has."""
    return later.started_at >= earlier.started_at + earlier.duration_s


def _continued(earlier: Run, later: Run, node: str) -> Run:
    """Return the run of two ledgers of one node, of which the later one began without the run.

    Amounts add. Energies are lower limits where neither ledger has a time of the run.
    """
    duration_s = later.started_at - earlier.started_at + later.duration_s
    covered_ratio = min((earlier.duration_s + later.duration_s) / duration_s, 1.0)
    by_key: defaultdict[tuple[str, str], list[RunDevice]] = defaultdict(list)
    for device in (*later.devices, *earlier.devices):
        by_key[device.component, device.device_id].append(device)
    names = dict.fromkeys(phase.name for phase in (*earlier.phases, *later.phases))
    return replace(
        combine([earlier, later]),
        state=later.state,
        outcome=later.outcome,
        ended_at=later.ended_at,
        settled_until=later.settled_until,
        duration_s=duration_s,
        gpus=tuple({gpu.uuid: gpu for gpu in (*earlier.gpus, *later.gpus)}.values()),
        devices=tuple(
            _continued_device(devices, node, covered_ratio) for devices in by_key.values()
        ),
        phases=tuple(_continued_phase(name, (earlier, later)) for name in names),
        results={**earlier.results, **later.results},
        power_max_w={
            uuid: max(run.power_max_w.get(uuid, 0.0) for run in (earlier, later))
            for uuid in (*earlier.power_max_w, *later.power_max_w)
        },
    )


def _continued_device(devices: Sequence[RunDevice], node: str, covered_ratio: float) -> RunDevice:
    """Return a device of several ledgers; its half-widths add, since they are of one sensor."""
    energy_j = sum_of_correlated(device.energy_j for device in devices)
    if energy_j.value is not None and covered_ratio < 1:
        reasons = (energy_j.reason, _RESTARTED)
        energy_j = replace(
            energy_j,
            rest=(0.0, math.inf),
            covered_ratio=min(energy_j.covered_ratio, covered_ratio),
            reason="; ".join(reason for reason in reasons if reason),
        )
    attributed_j = None
    if any(device.attributed_j is not None for device in devices):
        attributed_j = math.fsum(
            device.energy_j.value or 0.0 if device.attributed_j is None else device.attributed_j
            for device in devices
        )
    integrated = [device.integrated_j for device in devices if device.integrated_j is not None]
    return RunDevice(
        component=devices[0].component,
        device_id=devices[0].device_id,
        energy_j=energy_j,
        attributed_j=attributed_j,
        before_use_j=math.fsum(device.before_use_j for device in devices),
        integrated_j=math.fsum(integrated) if len(integrated) == len(devices) else None,
        node=node,
        shares_j=_summed(device.shares_j for device in devices),
    )


def _continued_phase(name: str, runs: Sequence[Run]) -> RunPhase:
    parts = [phase for run in runs for phase in run.phases if phase.name == name]
    components = dict.fromkeys(component for part in parts for component in part.energies_j)
    return RunPhase(
        name=name,
        started_at=parts[0].started_at,
        duration_s=math.fsum(part.duration_s for part in parts),
        energies_j={
            component: sum_of_correlated(
                part.energies_j[component] for part in parts if component in part.energies_j
            )
            for component in components
        },
        work=_summed(part.work for part in parts),
        last_started_at=parts[-1].last_started_at,
    )


def combine(runs: Sequence[Run]) -> Run:
    """Return the run of the parts that different nodes measured; one part is the run itself.

    Durations of the run and of its phases are the longest ones, since the clocks of nodes may
    disagree. The outcome is the worst, once all have ended. Energies of a phase add as those of one
    job; work and emissions add. Emissions of a component are left out, with a note, where a node
    has none of them. Results of one name that differ have the names of their nodes, such as
    `loss (gpu-a:9847)`, since they may be rates, times or scores. The parts must not have a device
    in common: see `runs_of_nodes`.

    Raises ValueError without parts.
    """
    if not runs:
        raise ValueError("a run needs at least one part")
    if len(runs) == 1:
        return runs[0]
    ends = [run.ended_at for run in runs if run.ended_at is not None]
    is_ended = len(ends) == len(runs)
    reports = [run.work_reported_at for run in runs if run.work_reported_at is not None]
    settled = [run.settled_until for run in runs if run.settled_until is not None]
    outcomes = {run.outcome for run in runs}
    return Run(
        run_id=runs[0].run_id,
        workload=runs[0].workload,
        state="ended" if is_ended else "running",
        started_at=min(run.started_at for run in runs),
        duration_s=max(run.duration_s for run in runs),
        outcome=next((each for each in OUTCOMES if each in outcomes), None) if is_ended else None,
        ended_at=max(ends) if is_ended else None,
        labels={name: text for run in runs for name, text in run.labels.items()},
        gpus=tuple(gpu for run in runs for gpu in run.gpus),
        devices=tuple(device for run in runs for device in run.devices),
        phases=_combined_phases(runs),
        work=_summed(run.work for run in runs),
        work_unit=_most_declared(runs),
        work_reported_at=max(reports, default=None),
        results=_combined_results(runs),
        settled_until=min(settled, default=None),
        emissions=_combined_emissions(runs),
        power_max_w={uuid: watts for run in runs for uuid, watts in run.power_max_w.items()},
        notes=tuple(_combined_notes(runs)),
        simulation=next((run.simulation for run in runs if run.simulation), None),
    )


def _combined_results(runs: Sequence[Run]) -> dict[str, float]:
    """Return the results; those of one name with different values each with its node."""
    values: defaultdict[str, set[float]] = defaultdict(set)
    for run in runs:
        for name, value in run.results.items():
            values[name].add(value)
    found = {}
    for number, run in enumerate(runs, 1):
        node = next((device.node for device in run.devices if device.node), f"node {number}")
        for name, value in run.results.items():
            found[name if len(values[name]) == 1 else f"{name} ({node})"] = value
    return found


def _combined_phases(runs: Sequence[Run]) -> tuple[RunPhase, ...]:
    """Return the phases in the order of their first starts."""
    names = dict.fromkeys(phase.name for run in runs for phase in run.phases)
    combined = [_combined_phase(name, runs) for name in names]
    return tuple(sorted(combined, key=lambda phase: phase.started_at))


def _combined_phase(name: str, runs: Sequence[Run]) -> RunPhase:
    parts = [phase for run in runs for phase in run.phases if phase.name == name]
    last_starts = [part.last_started_at for part in parts if part.last_started_at is not None]
    components = dict.fromkeys(component for part in parts for component in part.energies_j)
    return RunPhase(
        name=name,
        started_at=min(part.started_at for part in parts),
        duration_s=max(part.duration_s for part in parts),
        energies_j={
            component: sum_of_one_job(_phase_energies(name, component, runs))
            for component in components
        },
        work=_summed(part.work for part in parts),
        last_started_at=max(last_starts, default=None),
    )


def _phase_energies(name: str, component: str, runs: Sequence[Run]) -> Iterator[Figure]:
    """Yield the energies of a component in a phase, by node: unknown on a node that has the
    component but not the phase, since it may have worked for the same phase.
    """
    for run in runs:
        known = [
            phase.energies_j[component]
            for phase in run.phases
            if phase.name == name and component in phase.energies_j
        ]
        if not known and component in run.components:
            yield unknown(f"not every node has the energy of phase {name}")
        yield from known


def _combined_emissions(runs: Sequence[Run]) -> tuple[Emissions, ...]:
    """Return the sums of emissions, without those that a node lacks: see `_lacking_emissions`."""
    lacking = _lacking_emissions(runs)
    grams: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    for run in runs:
        for one in run.emissions:
            if (one.component, one.basis) not in lacking:
                grams[one.component, one.basis, one.quality].append(one.grams)
    return tuple(
        Emissions(
            component, basis, quality, math.fsum(parts), _covered_emissions(runs, component, basis)
        )
        for (component, basis, quality), parts in grams.items()
    )


def _covered_emissions(runs: Sequence[Run], component: str, basis: str) -> float:
    """Return the share of the nodes' energy for which an intensity of the basis was known: the
    smallest one of a node where an energy is unknown.
    """
    ratios = []
    energies_j = []
    for run in runs:
        of_node = [
            one.covered_ratio
            for one in run.emissions
            if (one.component, one.basis) == (component, basis)
        ]
        if of_node:
            ratios.append(min(of_node))
            energies_j.append(run.energy(component).value)
    known_j = [joules for joules in energies_j if joules is not None]
    if len(known_j) < len(ratios) or not math.fsum(known_j) or min(ratios) == 1.0:
        return min(ratios)
    covered_j = [ratio * joules for ratio, joules in zip(ratios, known_j, strict=True)]
    return math.fsum(covered_j) / math.fsum(known_j)


def _lacking_emissions(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return the pairs of component and basis whose emissions are not those of the whole run, since
    a node has the component, and no intensity of that basis.
    """
    known = [{(one.component, one.basis) for one in run.emissions} for run in runs]
    return [
        kind
        for kind in dict.fromkeys(kind for each in known for kind in sorted(each))
        if any(
            kind[0] in run.components and kind not in each
            for run, each in zip(runs, known, strict=True)
        )
    ]


def _combined_notes(runs: Sequence[Run]) -> Iterator[str]:
    yield from dict.fromkeys(note for run in runs for note in run.notes)
    for component, basis in _lacking_emissions(runs):
        yield (
            f"emissions of the {component.upper()} by {basis} intensity are left out: not every "
            "node has a carbon intensity"
        )


def _most_declared(runs: Sequence[Run]) -> str | None:
    """Return the primary unit of most parts, of equally many the first by name."""
    declared = Counter(run.work_unit for run in runs if run.work_unit is not None)
    return max(sorted(declared), key=lambda unit: declared[unit], default=None)


def _summed(amounts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    parts: defaultdict[str, list[float]] = defaultdict(list)
    for each in amounts:
        for unit, amount in each.items():
            parts[unit].append(amount)
    return {unit: math.fsum(values) for unit, values in parts.items()}


def _is_known(figure: Figure | None) -> bool:
    return figure is not None and figure.state == "known"


def _figure_fields(figure: Figure) -> Iterator[tuple[str, object]]:
    """Yield the fields of an energy in JSON that have a value, and its value in any case."""
    for key, value in figures.to_json(figure, "energy", "joules").items():
        if value is not None or key == "energy_joules":
            yield key, value


def _phase_json(phase: RunPhase) -> PhaseJson:
    document: dict[str, Any] = {
        "name": phase.name,
        "started_at": phase.started_at,
        "duration_seconds": phase.duration_s,
        "energy_joules": {},
        "energy_uncertainty_joules": {},
        "work": dict(phase.work),
        "last_started_at": phase.last_started_at,
    }
    for component, energy in phase.energies_j.items():
        for key, value in _figure_fields(energy):
            document.setdefault(key, {})[component] = value
    return cast("PhaseJson", document)


def _by_component(values: Iterable[tuple[RunDevice, float]]) -> dict[str, dict[str, float]]:
    shaped: dict[str, dict[str, float]] = {}
    for device, value in values:
        shaped.setdefault(device.component, {})[device.device_id] = value
    return shaped


_FIGURE_KEYS = (
    "energy_joules",
    "energy_uncertainty_joules",
    "energy_sensor_limits_joules",
    "energy_rest_limits_joules",
    "energy_limits_joules",
    "energy_state",
    "energy_reason",
)
"""Fields of `figures.to_json`, each by component and device."""


@dataclass(frozen=True, slots=True)
class _Fields:
    """Fields of a JSON object; `path` is the start of their names in messages."""

    document: Mapping[str, Any]
    path: str = ""

    def required(self, name: str) -> Any:
        if name not in self.document:
            raise ValueError(f"{self.path}{name}: field required")
        return self.document[name]

    def text(self, name: str) -> str:
        return as_text(self.path + name, self.required(name))

    def optional_text(self, name: str) -> str | None:
        return optional(as_text)(self.path + name, self.document.get(name))

    def number(self, name: str) -> float:
        return as_number(self.path + name, self.required(name))

    def optional_number(self, name: str) -> float | None:
        return optional(as_number)(self.path + name, self.document.get(name))

    def amounts(self, name: str) -> dict[str, float]:
        return as_amounts(self.path + name, self.document.get(name, {}))

    def nested(self, name: str) -> dict[str, dict[str, Any]]:
        """Return an object of objects; an empty one without the field."""
        found = as_object(self.path + name, self.document.get(name, {}))
        return {key: as_object(f"{self.path}{name}.{key}", one) for key, one in found.items()}

    def objects(self, name: str) -> Iterator[_Fields]:
        path = self.path + name
        for index, one in enumerate(as_list(path, self.required(name))):
            yield _Fields(as_object(f"{path}.{index}", one), f"{path}.{index}.")


def _parse(fields: _Fields) -> Run:
    state = fields.text("state")
    if state not in get_args(RunState):
        raise ValueError(f"state: expected {' or '.join(get_args(RunState))}")
    return Run(
        run_id=fields.text("run_id"),
        workload=fields.text("workload"),
        state=cast("RunState", state),
        started_at=fields.number("started_at"),
        duration_s=fields.number("duration_seconds"),
        outcome=optional(as_outcome)("outcome", fields.document.get("outcome")),
        ended_at=fields.optional_number("ended_at"),
        labels=as_labels("labels", fields.required("labels")),
        gpus=tuple(_parse_gpu(one) for one in fields.objects("gpus")),
        devices=tuple(_parse_devices(fields)),
        phases=tuple(_parse_phase(one) for one in fields.objects("phases")),
        work=as_amounts("work", fields.required("work")),
        work_unit=fields.optional_text("work_unit"),
        work_reported_at=fields.optional_number("work_reported_at"),
        results=as_amounts("results", fields.required("results")),
        settled_until=fields.optional_number("settled_until"),
        emissions=tuple(_parse_emissions(one) for one in fields.objects("emissions_grams")),
        power_max_w=fields.amounts("power_max_watts"),
        notes=tuple(as_texts("notes", fields.required("notes"))),
        simulation=fields.optional_text("simulation"),
    )


def _parse_gpu(fields: _Fields) -> RunGpu:
    architecture = fields.optional_text("architecture") or ""
    return RunGpu(fields.text("gpu"), fields.text("uuid"), fields.text("name"), architecture)


def _parse_emissions(fields: _Fields) -> Emissions:
    ratio = fields.optional_number("covered_ratio")
    return Emissions(
        component=fields.text("component"),
        basis=fields.text("basis"),
        quality=fields.text("quality"),
        grams=fields.number("grams"),
        covered_ratio=1.0 if ratio is None else ratio,
    )


def _parse_phase(fields: _Fields) -> RunPhase:
    name = fields.text("name")
    fields.required("energy_joules")
    by_key = {
        key: as_object(f"{fields.path}{key}", fields.document.get(key, {}))
        for key in (*_FIGURE_KEYS, "energy_covered_ratio")
    }
    return RunPhase(
        name=name,
        started_at=fields.number("started_at"),
        duration_s=fields.number("duration_seconds"),
        energies_j={
            component: _parse_figure(by_key, component, fields.path, "")
            for component in by_key["energy_joules"]
        },
        work=fields.amounts("work"),
        last_started_at=fields.optional_number("last_started_at"),
    )


def _parse_devices(fields: _Fields) -> Iterator[RunDevice]:
    fields.required("energy_joules")
    energies = {key: fields.nested(key) for key in _FIGURE_KEYS}
    covered_ratios = fields.nested("covered_ratio")
    attributed = fields.nested("attributed_energy_joules")
    before_use = fields.nested("energy_before_use_joules")
    counters = fields.nested("attributed_counter_joules")
    integrated_j = fields.amounts("integrated_energy_joules")
    for component, devices in energies["energy_joules"].items():
        if component not in COMPONENTS:
            raise ValueError(f"energy_joules.{component}: expected {', '.join(COMPONENTS)}")
        by_key = {key: one.get(component, {}) for key, one in energies.items()}
        by_key["energy_covered_ratio"] = covered_ratios.get(component, {})
        shares = as_amounts(f"attributed_energy_joules.{component}", attributed.get(component, {}))
        unused = as_amounts(f"energy_before_use_joules.{component}", before_use.get(component, {}))
        counters_j = as_amounts(
            f"attributed_counter_joules.{component}", counters.get(component, {})
        )
        for device_id in devices:
            is_counted = device_id in counters_j
            yield RunDevice(
                component=component,
                device_id=device_id,
                energy_j=_parse_figure(by_key, device_id, "", f"{component}."),
                attributed_j=shares.get(device_id),
                before_use_j=unused.get(device_id, 0.0),
                integrated_j=integrated_j.get(device_id) if component == "gpu" else None,
                shares_j={SHARE_POLICY: counters_j[device_id]} if is_counted else {},
            )


def _parse_figure(
    by_key: Mapping[str, Mapping[str, Any]], name: str, start: str, component: str
) -> Figure:
    """Return the figure of `name` from the objects of each field.

    The names of fields in messages are `start`, the field, `component` and `name`.
    """
    document = {key: values[name] for key, values in by_key.items() if name in values}
    try:
        return figures.from_json(document, "energy", "joules")
    except figures.FigureFormatError as error:
        key, _, reason = str(error).partition(":")
        if component:
            key = key.replace("energy_covered_ratio", "covered_ratio")
        raise ValueError(f"{start}{key}.{component}{name}:{reason}") from error
