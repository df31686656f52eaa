"""A run as the ledger keeps it: what it was asked for, and the marks between which its energy lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter

from exporter.attribution.procfs import Process
from exporter.contract.run import Outcome, RunGpu
from exporter.energy.marks import EnergyMark, MeasuredEnergy, energy_between
from exporter.model import Device, Slot

MOST_NOTES = 64

Marks = dict[str, EnergyMark]


def key(device: Device) -> str:
    return f"{device.kind}:{device.id}"


def device_of(text: str) -> Device:
    kind, _, identity = text.partition(":")
    return Device(kind, identity)  # type: ignore[arg-type]  # written by `key`


@dataclass
class Cut:
    """An instant of the run from which on another phase or another carbon intensity holds.

    `settled` once the marks are as good as they get.
    """

    t_s: float
    phase: str | None
    slots: tuple[Slot, ...] = ()
    """At most one a basis."""
    marks: Marks = field(default_factory=dict)
    settled: bool = False


@dataclass
class PhaseTotal:
    """`joules` by device, also of GPUs on which the run has not been seen yet."""

    name: str
    started_at: float
    seconds: float = 0.0
    joules: dict[str, float] = field(default_factory=dict)
    half_widths_j: dict[str, float] = field(default_factory=dict)
    """Likewise; those of its segments added up, as if none of an edge's error were the next one's gain."""


@dataclass
class Emission:
    """Of one device, likewise."""

    device: str
    basis: str
    quality: str
    grams: float = 0.0


@dataclass
class RunRecord:
    """Seconds ending in `_s` are CLOCK_BOOTTIME of this boot, those ending in `_at` Unix time.

    The run is a chain of cuts; the first is its begin. Once two neighbours are settled, the energy between them goes
    into `phases` and `emissions`, and the older cut is dropped.
    """

    run_id: str
    workload: str
    labels: dict[str, str]
    request: str
    devices: list[str]
    gpus: dict[str, RunGpu]
    """Those of `devices`, by UUID, as they introduced themselves."""
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
    processes: list[Process] = field(default_factory=list)
    contributors: dict[str, dict[str, float]] = field(default_factory=dict)
    phases: list[PhaseTotal] = field(default_factory=list)
    phase_work: dict[str, dict[str, float]] = field(default_factory=dict)
    """By phase and unit: what was reported while it was on."""
    emissions: list[Emission] = field(default_factory=list)
    results: dict[str, float] = field(default_factory=dict)
    power_max_w: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    whole_node: bool = False
    """It named no GPUs: all that there were at its begin are its own."""

    @property
    def running(self) -> bool:
        return self.end_s is None

    @property
    def is_open(self) -> bool:
        """Until its last marks are taken, which is a moment after its end."""
        return not self.final_settled

    def measured(self) -> list[Device]:
        """The devices whose energy is the run's: of the GPUs only those it was seen on, where it asked for that."""
        devices = [device_of(text) for text in self.devices]
        if not self.discovers:
            return devices
        return [device for device in devices if device.kind != "gpu" or device.id in self.seen_on]

    def work(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for amounts in self.contributors.values():
            for unit, amount in amounts.items():
                total[unit] = total.get(unit, 0.0) + amount
        return total

    def add_work(self, contributor: str, totals: Mapping[str, float], *, in_phase: bool = True) -> None:
        """A contributor's totals so far. `in_phase`: what is new in them was done in the phase that is on."""
        old = self.contributors.get(contributor, {})
        phase = self.cuts[-1].phase if self.cuts and in_phase else None
        if phase is not None:
            done = self.phase_work.setdefault(phase, {})
            for unit, amount in totals.items():
                # in this order, in which rounding never lets it fall
                done[unit] = done.get(unit, 0.0) + (amount - old.get(unit, 0.0))
        self.contributors[contributor] = {**old, **totals}

    def note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < MOST_NOTES:
            self.notes.append(text)

    def fold(self, now_s: float) -> None:
        """Books the segments whose two ends are settled."""
        while len(self.cuts) > 1 and self.cuts[0].settled and self.cuts[1].settled:
            first, second = self.cuts[0], self.cuts[1]
            self._book(
                first, second.t_s, {k: energy_between(m, second.marks[k]) for k, m in shared(first, second.marks)}
            )
            del self.cuts[0]
        if self.final_settled and len(self.cuts) == 1 and self.cuts[0].settled:
            last = self.cuts.pop()
            end_s = self.end_s if self.end_s is not None else now_s
            self._book(last, end_s, {k: energy_between(m, self.final[k]) for k, m in shared(last, self.final)})

    def _book(self, cut: Cut, until_s: float, energies: dict[str, MeasuredEnergy]) -> None:
        self.phases, self.emissions = booked(self, cut, until_s, energies)


def shared(cut: Cut, marks: Marks) -> list[tuple[str, EnergyMark]]:
    return [(device, mark) for device, mark in cut.marks.items() if device in marks]


def booked(
    run: RunRecord, cut: Cut, until_s: float, energies: dict[str, MeasuredEnergy]
) -> tuple[list[PhaseTotal], list[Emission]]:
    """The phases and emissions of the run with the segment that began at `cut` added to copies of them."""
    phases = [replace(p, joules=dict(p.joules), half_widths_j=dict(p.half_widths_j)) for p in run.phases]
    emissions = [Emission(e.device, e.basis, e.quality, e.grams) for e in run.emissions]
    if cut.phase is not None:
        phase = next((p for p in phases if p.name == cut.phase), None)
        if phase is None:
            phase = PhaseTotal(cut.phase, run.started_at + cut.t_s - run.begin_s)
            phases.append(phase)
        phase.seconds += max(0.0, until_s - cut.t_s)
        for device, energy in energies.items():
            phase.joules[device] = phase.joules.get(device, 0.0) + energy.joules
            phase.half_widths_j[device] = phase.half_widths_j.get(device, 0.0) + energy.half_width_j
    for slot in cut.slots:
        for device, energy in energies.items():
            _emission(emissions, device, slot).grams += energy.joules / 3.6e6 * slot.grams_per_kwh
    return phases, emissions


def _emission(emissions: list[Emission], device: str, slot: Slot) -> Emission:
    for emission in emissions:
        if (emission.device, emission.basis, emission.quality) == (device, slot.basis, slot.quality):
            return emission
    emissions.append(Emission(device, slot.basis, slot.quality))
    return emissions[-1]


STORED = TypeAdapter(RunRecord)
"""A run to and from JSON, as `state.sqlite` holds it."""
