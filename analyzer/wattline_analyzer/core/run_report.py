"""Report of a run: its energies, work and findings, and the inputs of the user."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from wattline.contract.run import Run, RunDevice
from wattline.contract.work import SHARE_POLICY
from wattline.figures import JOULES_PER_KWH, Figure, ratio, sum_of_correlated, sum_of_one_job
from wattline_analyzer.core.devices import (
    CalibratedGpu,
    Calibration,
    DeviceKey,
    ReportDevice,
    UncertaintyBudget,
)
from wattline_analyzer.core.emissions import (
    CarbonSlot,
    Emission,
    EmissionTotal,
    Hardware,
    PastIntensities,
    Restatement,
    Sci,
    total_emissions,
)
from wattline_analyzer.core.timeline import RunTimes
from wattline_analyzer.core.units import WHOLE_RATIO

Level = Literal["note", "warning", "bad"]
_LEVELS = ("bad", "warning", "note")
FORMAT_LABEL = "import_format"
FILE_LABEL = "import_file"
SPACING_LABEL = "import_spacing_seconds"
NOTES_LABELS = ("import_notes", "import_notes_2", "import_notes_3")
"""Labels with the notes of the import, by commas; a further one is used once the value of a label
is full.
"""
IMPORT_LABELS = (FORMAT_LABEL, FILE_LABEL, SPACING_LABEL, *NOTES_LABELS)
"""Labels that the importer adds to a run; they are no settings of the job."""
POWER_COLUMN_NOTE = "power_column:"
"""Note of the import with the column of power that was read."""
GPUS_BY_ORDER = "gpus_by_order"
"""Note of the import of a log whose lines name no GPU."""
LABELS_CUT = "labels_cut"
"""Note of the import of a file with more or longer labels than those of a run."""
DUPLICATE_SAMPLES = "duplicate_samples"
"""Note of an import that left out samples with the time of another one."""
GPUS_WITHOUT_ENERGY = "gpus_without_energy"
"""Note of the import of a run on more GPUs than its file has energies of."""
WHOLE_SECONDS = "whole_seconds"
"""Note of the import of a file that gives only the second in which it was written."""
CLAIMED_ENERGY = "claimed_energy_joules"
WALL_ENERGY = "wall_energy_joules"
WALL_RATIO = "wall_covered_ratio"


@dataclass(frozen=True, slots=True)
class Price:
    """Price of a kWh; `currency` is empty if unknown."""

    per_kwh: float
    currency: str = ""

    def of(self, energy: Figure) -> Figure:
        """Return the price of `energy` in joules."""
        return energy.scaled(self.per_kwh / JOULES_PER_KWH)


@dataclass(frozen=True, slots=True)
class UserInputs:
    """Inputs of the user that no sensor measures.

    `grams_per_kwh` is one intensity for the whole run, `pue` the facility's power usage
    effectiveness. `past` are intensities known now for the time of the run, at most one per basis.
    """

    grams_per_kwh: float | None = None
    pue: float | None = None
    price: Price | None = None
    past: tuple[PastIntensities, ...] = ()
    hardware: Hardware | None = None
    calibrations: tuple[Calibration, ...] = ()


NO_INPUTS = UserInputs()


@dataclass(frozen=True, slots=True)
class Finding:
    """Fact to know before relying on a figure.

    `code` is stable, for scripts; `subject` is a device or node (`GPU 0`), empty for the whole run.
    """

    level: Level
    code: str
    subject: str
    text: str


def ordered_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings by severity; equal texts are merged into one finding with all their
    subjects.
    """
    subjects: dict[Finding, list[str]] = {}
    for finding in sorted(findings, key=lambda finding: _LEVELS.index(finding.level)):
        subjects.setdefault(replace(finding, subject=""), []).append(finding.subject)
    return tuple(
        replace(finding, subject=", ".join(filter(None, names)))
        for finding, names in subjects.items()
    )


@dataclass(frozen=True, slots=True)
class Work:
    """Amount of work; `energy_per_unit` is a ratio of sums, in joules; see
    `wattline.contract.work`.

    If the work was done in certain `phases` only, rate and energy cover these phases only. On
    shared devices, the energy is the attributed share of the whole run, without interval, and
    `whole_devices` is the energy per unit of the devices together with the other runs' part.
    """

    unit: str
    amount: float
    per_second: float | None
    energy_per_unit: Figure | None
    phases: tuple[str, ...] = ()
    whole_devices: Figure | None = None

    @property
    def energy_phases(self) -> tuple[str, ...]:
        """The phases of `energy_per_unit`; the share of a phase is unknown, so that a share is of
        the whole run.
        """
        return self.phases if self.whole_devices is None else ()


@dataclass(frozen=True, slots=True)
class ReportPhase:
    """Phase of a run; `energy` is by component, in joules."""

    name: str
    duration_s: float
    energy: Mapping[str, Figure]


@dataclass(frozen=True, slots=True)
class BoundaryUnitEnergy:
    """Energy of a unit of work at a boundary, in joules.

    `energy_per_unit` is a ratio of sums over the `phases` in which the work was done, else over the
    whole run; of the energy `attributed` to the run on shared devices. `per_second` is always over
    the duration of the whole run.
    """

    unit: str
    amount: float
    per_second: float | None
    energy_per_unit: Figure
    phases: tuple[str, ...] = ()
    attributed: bool = False

    @property
    def units_per_joule(self) -> Figure | None:
        """Reciprocal with the same relative half-width; None without energy."""
        joules = self.energy_per_unit
        if joules.number <= 0:
            return None
        return ratio(Figure(1.0, 0.0), joules)


@dataclass(frozen=True, slots=True)
class Boundary:
    """Energy of all `components`, times `pue` if given; `attributed_j` is the run's part of devices
    that it shared.
    """

    components: tuple[str, ...]
    energy: Figure
    work: tuple[BoundaryUnitEnergy, ...]
    pue: float | None = None
    attributed_j: float | None = None

    @property
    def name(self) -> str:
        measured = "+".join(self.components)
        return measured if self.pue is None else f"{measured} × PUE {self.pue:g}"


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Calibrated energies in joules: of the run's GPUs, of all of them together, and by unit of
    work. `energy` is None if a GPU lacks a calibration.
    """

    gpus: Mapping[DeviceKey, CalibratedGpu]
    energy: Figure | None
    per_unit: Mapping[str, Figure]


@dataclass(frozen=True, slots=True)
class RunEnergies:
    """Energies of a run: of its devices, by component, and by phase.

    `from_raw_samples` is a sum over all GPUs, None if one of them lacks the value. With
    `is_sampled`, the energies are sums of samples, as in a range or an imported run.
    """

    devices: tuple[ReportDevice, ...]
    by_component: Mapping[str, Figure]
    phases: tuple[ReportPhase, ...]
    from_raw_samples: Figure | None
    is_sampled: bool
    unknown: tuple[RunDevice, ...] = ()
    """Devices of the run whose energy is unknown; sums without them are lower limits."""

    @property
    def gpus(self) -> tuple[ReportDevice, ...]:
        return tuple(device for device in self.devices if device.component == "gpu")

    @property
    def simulated(self) -> bool:
        return any(gpu.simulated for gpu in self.gpus)

    @property
    def headline_component(self) -> str:
        """The first component with an energy, "" without any."""
        return next(iter(self.by_component), "")

    @property
    def headline(self) -> Figure | None:
        """The energy of the run: of its GPUs, else of the CPU, else of the DRAM."""
        return self.by_component.get(self.headline_component)

    @property
    def whole(self) -> Figure | None:
        """The sum of all components; None where there is only one, or another run shared a
        device.
        """
        if len(self.by_component) < 2 or any(device.shared for device in self.devices):
            return None
        return sum_of_one_job(self.by_component.values())

    @property
    def integral_j(self) -> float | None:
        """The integral of the power of all GPUs; None where one of them is unknown."""
        known = [gpu.integral_j for gpu in self.gpus if gpu.integral_j is not None]
        return math.fsum(known) if known and self._has_all_gpus(known) else None

    @property
    def net(self) -> Figure | None:
        """The energy of all GPUs above idle; None where one of them is unknown."""
        known = [gpu.net for gpu in self.gpus if gpu.net]
        return sum_of_correlated(known) if known and self._has_all_gpus(known) else None

    def _has_all_gpus(self, values: Sequence[object]) -> bool:
        """Return whether there is a value of each of the run's GPUs."""
        return len(values) == len(self.gpus) and not any(
            device.component == "gpu" for device in self.unknown
        )

    @property
    def estimated(self) -> frozenset[str]:
        """The components whose energy is at least in part an estimate."""
        return frozenset(device.component for device in self.devices if device.estimated)

    @property
    def headline_estimated(self) -> bool:
        return self.headline_component in self.estimated

    @property
    def shares(self) -> dict[str, dict[str, float]]:
        """The run's joules by component and policy, for components that it shares with others.

        All of a device without a share counts, as in `Run.attributed_j`.
        """
        found: dict[str, dict[str, float]] = {}
        for component in self.by_component:
            mine = [device for device in self.devices if device.component == component]
            if any(device.divided for device in mine):
                policies = dict.fromkeys(
                    policy for device in mine for policy in device.attributed_j
                )
                found[component] = {
                    policy: math.fsum(
                        device.attributed_j.get(policy, device.energy.number) for device in mine
                    )
                    for policy in policies
                }
        return found

    @property
    def share_ratios(self) -> dict[str, float]:
        """The run's part of each component that it shares with others, by the policy that divides
        idle power, too.
        """
        return {
            component: min(joules[SHARE_POLICY] / self.by_component[component].number, 1.0)
            for component, joules in self.shares.items()
            if SHARE_POLICY in joules and self.by_component[component].number > 0
        }


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """The source of a run; `untagged` says that it is a range of time without a run ID."""

    source: str
    untagged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run as its exporters recorded it, and what is known about its figures.

    `budgets` are by device, for those whose uncertainty is known. `restated`, `sci` and
    `calibrated` follow from the inputs of the user.
    """

    run: Run
    origin: RunOrigin
    times: RunTimes
    energies: RunEnergies
    work: tuple[Work, ...]
    emissions: tuple[Emission, ...]
    carbon_slots: tuple[CarbonSlot, ...]
    budgets: Mapping[DeviceKey, UncertaintyBudget]
    findings: tuple[Finding, ...]
    boundaries: tuple[Boundary, ...] = ()
    price: Price | None = None
    restated: tuple[Restatement, ...] = ()
    sci: tuple[Sci, ...] = ()
    calibrated: Calibrated | None = None

    @property
    def run_id(self) -> str:
        return self.run.run_id

    @property
    def workload(self) -> str:
        return self.run.workload

    @property
    def labels(self) -> Mapping[str, str]:
        return self.run.labels

    @property
    def outcome(self) -> str | None:
        return self.run.outcome

    @property
    def results(self) -> Mapping[str, float]:
        """The job's results, with the scores and times that it reported as work."""
        return {**self.run.misreported_work, **self.run.results}

    @property
    def source(self) -> str:
        return self.origin.source

    @property
    def untagged(self) -> bool:
        return self.origin.untagged

    @property
    def instances(self) -> tuple[str, ...]:
        return self.times.instances

    @property
    def started_at_s(self) -> float:
        return self.times.started_at_s

    @property
    def ended_at_s(self) -> float | None:
        return self.times.ended_at_s

    @property
    def duration_s(self) -> float:
        return self.times.duration_s

    @property
    def devices(self) -> tuple[ReportDevice, ...]:
        return self.energies.devices

    @property
    def gpus(self) -> tuple[ReportDevice, ...]:
        return self.energies.gpus

    @property
    def energy(self) -> Mapping[str, Figure]:
        """The energy by component."""
        return self.energies.by_component

    @property
    def phases(self) -> tuple[ReportPhase, ...]:
        return self.energies.phases

    @property
    def headline(self) -> Figure | None:
        return self.energies.headline

    @property
    def estimated(self) -> frozenset[str]:
        return self.energies.estimated

    @property
    def simulated(self) -> bool:
        return self.energies.simulated

    @property
    def covers_part(self) -> bool:
        """True for a range or an imported run if the headline's energy lacks a part of the time."""
        return self.energies.is_sampled and any(
            device.component == self.energies.headline_component
            and device.duration_s < WHOLE_RATIO * self.duration_s
            for device in self.devices
        )

    @property
    def mean_power_w(self) -> Figure | None:
        """The power of the headline's devices together, each over the time that its energy
        covers.
        """
        if self.covers_part:
            component = self.energies.headline_component
            mine = [device for device in self.devices if device.component == component]
            return sum_of_one_job(device.mean_power_w for device in mine if device.mean_power_w)
        if self.headline is None or self.duration_s <= 0:
            return None
        return self.headline.scaled(1 / self.duration_s)

    @property
    def emission_totals(self) -> tuple[EmissionTotal, ...]:
        return tuple(total_emissions(self.emissions))


def with_unit(report: Report, unit: str | None) -> Report:
    """Return the report with the work in this unit only; unchanged for None."""
    return (
        report
        if unit is None
        else replace(report, work=tuple(one for one in report.work if one.unit == unit))
    )
