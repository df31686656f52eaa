"""Record of a run: its request, its devices and the marks that bound its energy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, NamedTuple, Protocol

from pydantic import BeforeValidator, PlainSerializer, TypeAdapter

from wattline.contract.api import Outcome, RunGpu
from wattline.contract.work import is_declaration, is_main
from wattline.figures import JOULES_PER_KWH, Figure, sum_of_correlated
from wattline_exporter.attribution.owner_counters import Owner
from wattline_exporter.meter.uncertainty import EnergyMark, MeasuredEnergy, energy_between
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner
from wattline_exporter.sensors.processes.procfs import ProcessKey
from wattline_exporter.sensors.readings import Device, Slot
from wattline_exporter.storage.saved_state import StoredRun

MAX_NOTES = 64
SAME_INSTANT_S = 1e-3
"""Largest difference of two Unix times, in seconds, that is a rounding error."""


def _stored_key(device: Device) -> str:
    return f"{device.kind}:{device.id}"


def _device(stored: object) -> object:
    if not isinstance(stored, str):
        return stored
    kind, _, identity = stored.partition(":")
    return {"kind": kind, "id": identity}


DeviceKey = Annotated[
    Device, BeforeValidator(_device), PlainSerializer(_stored_key, return_type=str)
]
"""A device; `KIND:ID` in the stored JSON."""

Marks = dict[DeviceKey, EnergyMark]


@dataclass(slots=True)
class Cut:
    """Start of a segment of a run: the run's start, or a change of phase or of carbon intensity.

    `marked_after` is True once the marks were taken with the polls around them, and `settled` once
    further polls no longer improve them.
    """

    t_s: float
    phase: str | None
    slots: tuple[Slot, ...] = ()
    """Slots of carbon intensity in force, at most one per basis."""
    marks: Marks = field(default_factory=dict)
    marked_after: bool = False
    settled: bool = False


@dataclass(slots=True)
class PhaseTotal:
    """Totals of a phase. The values per device include GPUs on which no process of the run has been
    found yet.
    """

    name: str
    started_at: float
    seconds: float = 0.0
    joules: dict[DeviceKey, float] = field(default_factory=dict)
    half_widths_j: dict[DeviceKey, float] = field(default_factory=dict)
    """Sum of the half-widths of the phase's segments: errors at their common edges do not cancel.
    A device whose half-width is unknown has none.
    """
    entered_at: float | None = None
    """Time at which the run last entered the phase; None in records of older versions."""
    until_at: float | None = None
    """End of the last segment that is counted."""

    def energy_j(self, device: DeviceKey) -> Figure:
        """Return the energy of a device so far; exactly 0 before its first segment."""
        if device not in self.joules:
            return Figure(0.0, 0.0)
        return Figure(self.joules[device], self.half_widths_j.get(device))


@dataclass(slots=True)
class RunEmission:
    """Emissions of one device, basis and quality."""

    device: DeviceKey
    basis: str
    quality: str
    grams: float = 0.0
    joules: float = 0.0
    """Energy that emitted them."""


class Segments(NamedTuple):
    """Sums over the segments of a run between its cuts."""

    phases: list[PhaseTotal]
    emissions: list[RunEmission]
    energies_j: dict[Device, float]
    """Energy of each device, also where no intensity was known."""


@dataclass(slots=True)
class RunRecord:
    """A run. Fields in `_s` are CLOCK_BOOTTIME of this boot, fields in `_at` are Unix time.

    The run is a chain of cuts; the first one is its start. When two neighbours are settled, the
    energy between them is added to `phases` and `emissions`, and the older cut is removed.
    """

    run_id: str
    workload: str
    labels: dict[str, str]
    request: str
    """Digest of the request that began it."""
    devices: list[DeviceKey]
    gpus: dict[str, RunGpu]
    """The GPUs among `devices`, by UUID."""
    discovers: bool
    begin_s: float
    started_at: float
    lease_s: float
    lease_until_s: float
    alive_s: float
    begin: Marks = field(default_factory=dict)
    begin_settled: bool = False
    cuts: list[Cut] = field(default_factory=list)
    end_s: float | None = None
    ended_at: float | None = None
    outcome: Outcome | None = None
    final: Marks = field(default_factory=dict)
    final_settled: bool = False
    seen_on: list[str] = field(default_factory=list)
    cgroup: str | None = None
    pending_cgroup: str | None = None
    """Name of the run's cgroup, slurm:JOB[.STEP], until it exists."""
    processes: list[ProcessKey] = field(default_factory=list)
    contributors: dict[str, dict[str, float]] = field(default_factory=dict)
    phases: list[PhaseTotal] = field(default_factory=list)
    phase_work: dict[str, dict[str, float]] = field(default_factory=dict)
    """Work reported during each phase, by unit."""
    work_unit: str = ""
    """Primary unit of work; empty before the first report of it, and in records of older versions.
    """
    work_reported_at: float | None = None
    """Time of the latest report of work; None without one, and in records of older versions."""
    emissions: list[RunEmission] = field(default_factory=list)
    segments_j: dict[DeviceKey, float] = field(default_factory=dict)
    """Energy of the segments in `emissions`, also where no intensity was known."""
    results: dict[str, float] = field(default_factory=dict)
    power_max_w: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    attributed_j: dict[DeviceKey, float] = field(default_factory=dict)
    """The run's share of each device by policy idle_shared, at its end; empty in records of older
    versions.
    """
    whole_node: bool = False
    """True if the request named no GPUs: the run has all GPUs present at its start."""
    discovered: CgroupOwner | None = None
    """Owner of the processes of a run that the exporter began automatically."""
    unwatched: tuple[float, float] | None = None
    """Last scan of the previous exporter that found a process of the run, and the start of this
    exporter; None once a process was found since.
    """
    end_until_s: float | None = None
    """Latest possible end of a run whose processes were gone at a scan, or at the start of this
    exporter; its earliest one is `end_s`.
    """
    last_report: Cut | None = None
    """Last report of a run without processes, with its marks; None until one follows the start."""
    login: str = ""
    """Login name of the user of its processes; empty if it is unknown or a label names the owner.
    """
    first_use: Marks = field(default_factory=dict)
    """Marks of GPUs at the first use by the run that was seen, on GPUs that no other run or process
    used then.
    """

    @property
    def running(self) -> bool:
        return self.end_s is None

    @property
    def owner(self) -> Owner:
        """Owner of the run's energy: the unit of a service, else the user, else the namespace."""
        kind = self.discovered.kind if self.discovered else "run"
        named = self.labels.get("user") or self.labels.get("namespace") or self.login
        if self.discovered and kind == "service":
            named = self.discovered.id
        return Owner(kind, named, self.labels.get("account", ""), self.workload)

    @property
    def labels_with_user(self) -> dict[str, str]:
        """Labels of the run; `user` is the login name if the run names no owner. The owner of a
        service is its unit.
        """
        is_service = self.discovered is not None and self.discovered.kind == "service"
        return {**self.labels, "user": self.login} if self.login and not is_service else self.labels

    @property
    def is_open(self) -> bool:
        """True until the final marks are taken, which is at most half a second after the end."""
        return not self.final_settled

    def known_alive_until(self, t_s: float) -> float:
        """Return the last instant up to `t_s` at which the run is known to be alive, which may
        become its end.
        """
        t_s = min(t_s, self.lease_until_s)
        return min(t_s, self.alive_s) if self.processes or self.cgroup else t_s

    def note_alive(self, seen_s: float) -> None:
        """Note that the run had a process at `seen_s`, after the start of this exporter."""
        self.alive_s = max(self.alive_s, seen_s)
        self.unwatched = self.end_until_s = None

    def note_end(self, end_s: float) -> None:
        """Note that the last process of the run ended at `end_s`; another one may still start."""
        self.alive_s = self.end_until_s = end_s

    def measured(self) -> list[Device]:
        """Return the devices whose energy counts for the run.

        A run that discovers its GPUs has only those on which one of its processes was found.
        """
        if not self.discovers:
            return list(self.devices)
        return [
            device for device in self.devices if device.kind != "gpu" or device.id in self.seen_on
        ]

    def gpu_names(self) -> str:
        """Return the indices of the measured GPUs as text, as in `GPU 0, 1`; empty for none."""
        indices = [self.gpus[device.id].gpu for device in self.measured() if device.kind == "gpu"]
        return f"GPU {', '.join(indices)}" if indices else ""

    def before_use_j(self, device: Device) -> float:
        """Return the GPU's energy from the run's start to the first use, not attributed; 0 if
        others used it.
        """
        begin = self.begin.get(device)
        first = self.first_use.get(device)
        return max(0.0, first.joules - begin.joules) if begin and first else 0.0

    def work(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for amounts in self.contributors.values():
            for unit, amount in amounts.items():
                total[unit] = total.get(unit, 0.0) + amount
        return total

    def add_work(
        self, contributor: str, totals: Mapping[str, float], now_s: float, *, in_phase: bool = True
    ) -> None:
        """Set a contributor's totals at `now_s`; with `in_phase`, add the increase to the current
        phase.

        A declaration of the primary unit is no work.
        """
        is_declared = is_declaration(totals) and not totals.keys() & self.work()
        self.work_unit = self.work_unit or next(
            (unit for unit in totals if is_declared or is_main(unit)), ""
        )
        if is_declared:
            return
        old = self.contributors.get(contributor, {})
        phase = self.cuts[-1].phase if self.cuts and in_phase else None
        if phase is not None:
            phase_totals = self.phase_work.setdefault(phase, {})
            for unit, amount in totals.items():
                # in this order rounding never decreases the sum
                phase_totals[unit] = phase_totals.get(unit, 0.0) + (amount - old.get(unit, 0.0))
        self.contributors[contributor] = {**old, **totals}
        self.work_reported_at = self.started_at + now_s - self.begin_s

    def note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < MAX_NOTES:
            self.notes.append(text)

    def fold(self, now_s: float) -> None:
        """Add the segments between settled cuts to the phases and emissions."""
        while len(self.cuts) > 1 and self.cuts[0].settled and self.cuts[1].settled:
            first = self.cuts[0]
            second = self.cuts[1]
            self._add_energies(
                first,
                second.t_s,
                {
                    d: energy_between(m, second.marks[d])
                    for d, m in shared_marks(first, second.marks)
                },
            )
            del self.cuts[0]
        if self.final_settled and len(self.cuts) == 1 and self.cuts[0].settled:
            last = self.cuts.pop()
            end_s = self.end_s if self.end_s is not None else now_s
            self._add_energies(
                last,
                end_s,
                {d: energy_between(m, self.final[d]) for d, m in shared_marks(last, self.final)},
            )

    def _add_energies(
        self, cut: Cut, until_s: float, energies: dict[Device, MeasuredEnergy]
    ) -> None:
        self.phases, self.emissions, self.segments_j = add_segment(self, cut, until_s, energies)


def shared_marks(cut: Cut, marks: Marks) -> list[tuple[Device, EnergyMark]]:
    """Return the cut's marks of the devices that `marks` has too."""
    return [(device, mark) for device, mark in cut.marks.items() if device in marks]


def add_segment(
    run: RunRecord, cut: Cut, until_s: float, energies: dict[Device, MeasuredEnergy]
) -> Segments:
    """Return copies of the run's sums with the segment from `cut` to `until_s` added."""
    phases = [
        replace(p, joules=dict(p.joules), half_widths_j=dict(p.half_widths_j)) for p in run.phases
    ]
    emissions = [replace(emission) for emission in run.emissions]
    energies_j = dict(run.segments_j)
    for device, energy in energies.items():
        energies_j[device] = energies_j.get(device, 0.0) + energy.joules
    if cut.phase is not None:
        phase = next((p for p in phases if p.name == cut.phase), None)
        segment_at = run.started_at + cut.t_s - run.begin_s
        if phase is None:
            phase = PhaseTotal(cut.phase, segment_at)
            phases.append(phase)
        if phase.until_at is None or segment_at - phase.until_at > SAME_INSTANT_S:
            phase.entered_at = segment_at
        phase.until_at = run.started_at + until_s - run.begin_s
        phase.seconds += max(0.0, until_s - cut.t_s)
        for device, energy in energies.items():
            total = sum_of_correlated(
                [phase.energy_j(device), Figure(energy.joules, energy.half_width_j)]
            )
            phase.joules[device] = total.number
            if total.half_width is not None:
                phase.half_widths_j[device] = total.half_width
    for slot in cut.slots:
        for device, energy in energies.items():
            emission = _emission(emissions, device, slot)
            emission.grams += energy.joules / JOULES_PER_KWH * slot.grams_per_kwh
            emission.joules += energy.joules
    return Segments(phases, emissions, energies_j)


def _emission(emissions: list[RunEmission], device: Device, slot: Slot) -> RunEmission:
    for emission in emissions:
        if (emission.device, emission.basis, emission.quality) == (
            device,
            slot.basis,
            slot.quality,
        ):
            return emission
    emissions.append(RunEmission(device, slot.basis, slot.quality))
    return emissions[-1]


STORED = TypeAdapter(RunRecord)
"""Conversion of a run that is not final to and from the JSON in `state.sqlite`."""


class RunArchive(Protocol):
    """Stored runs."""

    def run(self, run_id: str) -> StoredRun | None: ...

    def runs(self, limit: int, before: tuple[float, str] | None = None) -> list[StoredRun]: ...
