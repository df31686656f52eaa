"""A run as the run API shows it."""

from __future__ import annotations

from pydantic import BaseModel

from wattline.contract.api import Outcome, RunGpu, RunState


class PhaseView(BaseModel):
    name: str
    started_at: float
    duration_seconds: float
    energy_joules: dict[str, float]
    """Energy by component."""
    energy_uncertainty_joules: dict[str, float] = {}
    """Half-width of the 95 % confidence interval, by component, once the run has ended."""
    work: dict[str, float] = {}
    """Work reported during the phase."""
    last_started_at: float | None = None
    """Unix time at which the run last entered the phase."""


class Emissions(BaseModel):
    component: str
    basis: str
    quality: str
    grams: float


class EnergyPerUnit(BaseModel):
    """Energy per unit of work over `phases`, over the whole run if there are none; see
    `wattline.contract.work`.

    `joules` is the energy of all devices of `component`. On devices that others used as well,
    `joules` is the run's attributed share, and `whole_device_joules` the energy of the whole
    devices.
    """

    unit: str
    name: str
    """Words of the unit for an amount of one: `generated token`."""
    component: str
    joules: float
    phases: list[str] = []
    whole_device_joules: float | None = None


class RunView(BaseModel):
    """State of a run. Times are in Unix seconds, energies in joules by component and device."""

    run_id: str
    workload: str
    labels: dict[str, str]
    gpus: list[RunGpu]
    state: RunState
    outcome: Outcome | None
    started_at: float
    ended_at: float | None
    duration_seconds: float
    phases: list[PhaseView]
    work: dict[str, float]
    work_unit: str | None = None
    """Primary unit of work: the one that the job declared, else the first one that it reported."""
    work_reported_at: float | None = None
    """Unix time of the latest report of work; None without one, and for runs of older exporters."""
    results: dict[str, float]
    settled_until: float | None = None
    """Unix time up to which seconds and energies of `phases` of a running run count, about six
    seconds ago: later marks may still change. Energy, work and duration are up to now, and so are
    `emissions_grams` of the answer to GET of one run; in lists they are up to this time. None once
    the run has ended.
    """
    energy_joules: dict[str, dict[str, float]]
    energy_uncertainty_joules: dict[str, dict[str, float]]
    """Half-widths of the 95 % confidence intervals of `energy_joules`, once the run has ended."""
    energy_sensor_limits_joules: dict[str, dict[str, tuple[float, float]]] = {}
    """Least and most by which the true energy differs from `energy_joules` by the accuracy of the
    GPUs' sensors, which the interval does not include; none for simulated GPUs.
    """
    integrated_energy_joules: dict[str, float]
    """Integrated power as a cross-check, by GPU UUID."""
    emissions_grams: list[Emissions]
    covered_ratio: dict[str, dict[str, float]]
    notes: list[str]
    attributed_energy_joules: dict[str, dict[str, float]] = {}
    """The run's share of devices that others used as well, by policy idle_shared; see
    `wattline.contract.work`.
    """
    energy_before_use_joules: dict[str, dict[str, float]] = {}
    """Energy from the run's start to its first use of a GPU that nothing else used then; it is not
    attributed.
    """
    energy_per_unit: list[EnergyPerUnit] = []
    """Energy per unit of work, the primary unit first, once the run has ended."""
    simulation: str | None = None
    """Path of the state file of simulated GPUs (see `wattline_exporter.simulation`)."""
