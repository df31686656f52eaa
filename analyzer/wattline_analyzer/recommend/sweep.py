"""Runs of sweeps: setting, energy, power and temperature of each run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from wattline.contract.work import FLOP_PER_GFLOP, GFLOP
from wattline.figures import Figure
from wattline_analyzer.core.conditions import gpu_conditions, highest, work_spans
from wattline_analyzer.core.recorded_run import RecordedRun
from wattline_analyzer.core.run_report import IMPORT_LABELS, Report, Work
from wattline_analyzer.report import clock

SETTINGS = ("power_limit_watts", "sm_clock_hertz")
RUN_LABELS = frozenset({"experiment", "plan", "repeat", "seed", "phase", *SETTINGS, *IMPORT_LABELS})
_SLOWED_SHARE = 0.02


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """Power limit or clock of a sweep's run, neither for the node's default; `others` are labels
    chosen with it.
    """

    others: tuple[tuple[str, str], ...] = ()
    power_limit_w: float | None = None
    sm_clock_hz: float | None = None

    def __str__(self) -> str:
        parts = [f"{name}={text}" for name, text in self.others]
        if self.power_limit_w is not None:
            parts.append(f"{self.power_limit_w:g} W")
        if self.sm_clock_hz is not None:
            parts.append(f"{self.sm_clock_hz / 1e6:g} MHz")
        if self.power_limit_w is None and self.sm_clock_hz is None:
            parts.append("default")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class SweepGpu:
    instance: str
    index: str
    uuid: str


@dataclass(frozen=True, slots=True)
class HostEnergy:
    """Energy of GPUs and host together, of the run and per unit of work."""

    components: tuple[str, ...]
    energy: Figure
    per_unit: Mapping[str, Figure]


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One run. `energy` covers all its GPUs; power, clock and memory are the highest of them;
    utilizations are means over time and GPUs.

    `capped_s` is the time with a power cap event, `slowed_s` with a thermal or hardware slowdown
    event; None where unknown. `unfit` is the reason why the run cannot be compared.
    """

    run_id: str
    workload: str
    labels: Mapping[str, str]
    setting: Setting
    repeat: str
    gpus: tuple[SweepGpu, ...]
    gpu_name: str
    started_at_s: float
    duration_s: float
    energy: Figure
    longest_phase_s: float | None = None
    work: Mapping[str, Work] = field(default_factory=dict)
    results: Mapping[str, float] = field(default_factory=dict)
    p95_power_w: float | None = None
    mean_power_w: float | None = None
    limit_w: float | None = None
    capped_s: float | None = None
    slowed_s: float | None = None
    temperature_celsius: float | None = None
    sm_clock_hz: float | None = None
    simulated: bool = False
    unfit: str | None = None
    utilization: float | None = None
    memory_utilization: float | None = None
    memory_used_bytes: float | None = None
    with_host: HostEnergy | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """Runs that differ in their setting and their repeat only."""

    title: str
    runs: tuple[SweepRun, ...]
    unfit: tuple[SweepRun, ...] = ()
    in_whole_runs: bool = False
    """True if costs are of whole runs, since the phases of the work have no energy in some runs."""

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Settings in rising order; the default comes last."""
        return tuple(sorted({run.setting for run in self.runs}, key=_rank))


def _rank(setting: Setting) -> tuple[tuple[tuple[float, str], ...], float, float]:
    return (
        tuple((float(text) if text.isdecimal() else 0.0, text) for _, text in setting.others),
        setting.power_limit_w or np.inf,
        setting.sm_clock_hz or np.inf,
    )


def setting_of(labels: Mapping[str, str], joint: Sequence[str] = ()) -> Setting:
    """Return the setting in the runner's labels. Raises ValueError for a label that is no
    number.
    """
    found: dict[str, float | None] = {}
    for name in SETTINGS:
        try:
            found[name] = float(labels[name]) if labels.get(name) else None
        except ValueError as error:
            raise ValueError(f"label {name} is {labels[name]!r}, not a number") from error
    others = tuple((name, labels.get(name, "")) for name in joint)
    return Setting(others, found["power_limit_watts"], found["sm_clock_hertz"])


def sweep_run(recorded: RecordedRun, report: Report, joint: Sequence[str] = ()) -> SweepRun | None:
    """Return a run of a sweep; None for warm-up and idle runs. Raises ValueError for a run without
    GPU energy.
    """
    labels = report.labels
    if labels.get("phase") in ("idle", "warm-up"):
        return None
    energy = report.energy.get("gpu")
    if energy is None:
        raise ValueError("it has no GPU energy")
    raw = clock.usable_samples(recorded.raw, report.times.windows)
    work = {one.unit: one for one in report.work}
    busy = {phase for one in report.work for phase in one.phases}
    spans = {one: work_spans(recorded.scrapes, one, busy) for one in report.instances}
    gpus = [
        gpu_conditions(raw, report.times.windows[gpu.instance], gpu.device, spans[gpu.instance])
        for gpu in report.gpus
    ]
    busy_s = (
        sum(phase.duration_s for phase in report.phases if phase.name in busy) or report.duration_s
    )
    busy_j = (
        sum(p.energy["gpu"].number for p in report.phases if p.name in busy and "gpu" in p.energy)
        or energy.number
    )
    return SweepRun(
        run_id=report.run_id,
        workload=report.workload,
        labels=labels,
        setting=setting_of(labels, joint),
        repeat=labels.get("repeat", report.run_id),
        gpus=tuple(
            SweepGpu(gpu.instance, gpu.label.rpartition(" ")[2], gpu.device) for gpu in report.gpus
        ),
        gpu_name=" + ".join(sorted({gpu.name for gpu in report.gpus})),
        started_at_s=report.started_at_s,
        duration_s=report.duration_s,
        energy=energy,
        longest_phase_s=max((phase.duration_s for phase in report.phases), default=None),
        work=work,
        results=report.results,
        p95_power_w=highest(one.p95_power_w for one in gpus),
        mean_power_w=busy_j / busy_s / len(report.gpus) if busy_s > 0 else None,
        limit_w=highest(gpu.power_limit_w for gpu in report.gpus),
        capped_s=highest(one.capped_s for one in gpus),
        slowed_s=highest(one.slowed_s for one in gpus),
        temperature_celsius=highest(one.temperature_celsius for one in gpus),
        sm_clock_hz=highest(one.sm_clock_hz for one in gpus),
        simulated=report.simulated,
        unfit=_unfit(report, highest(one.slowed_s for one in gpus)),
        utilization=_mean(one.utilization for one in gpus),
        memory_utilization=_mean(one.memory_utilization for one in gpus),
        memory_used_bytes=highest(one.memory_used_bytes for one in gpus),
        with_host=_with_host(report),
    )


def _with_host(report: Report) -> HostEnergy | None:
    """Return the energy of GPUs, CPU and DRAM; None where the host is not measured or other runs
    used it.
    """
    wider = [
        boundary
        for boundary in report.boundaries
        if boundary.pue is None and len(boundary.components) > 1
    ]
    if not wider:
        return None
    per_unit = {work.unit: work.energy_per_unit for work in wider[-1].work}
    if GFLOP in per_unit:
        per_unit["flop"] = per_unit[GFLOP].scaled(1 / FLOP_PER_GFLOP)
    return HostEnergy(wider[-1].components, wider[-1].energy, per_unit)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _unfit(report: Report, slowed_s: float | None) -> str | None:
    if report.ended_at_s is None:
        return "it has not ended"
    if report.outcome in ("failed", "interrupted"):
        return f"it {report.outcome}" if report.outcome == "failed" else "it was interrupted"
    if any(gpu.energy.number <= 0 for gpu in report.gpus):
        return "the energy of a GPU is zero: its sensor or counter did not change"
    if any(gpu.shared for gpu in report.gpus):
        return "other runs used its GPUs at the same time"
    if (slowed_s or 0.0) > _SLOWED_SHARE * report.duration_s:
        return f"thermal or hardware slowdown for {slowed_s:.1f} s"
    return next((f"{f.subject}: {f.text}" for f in report.findings if f.level == "bad"), None)


def group_sweeps(runs: Iterable[SweepRun], joint: Sequence[str] = ()) -> list[Sweep]:
    """Group runs by workload, GPU model, number of GPUs and labels that are not a setting."""
    groups: dict[tuple[str, str, int, tuple[tuple[str, str], ...]], list[SweepRun]] = {}
    for run in sorted(runs, key=lambda run: run.started_at_s):
        fixed = {
            name: text for name, text in run.labels.items() if name not in RUN_LABELS | set(joint)
        }
        key = (run.workload, run.gpu_name, len(run.gpus), tuple(sorted(fixed.items())))
        groups.setdefault(key, []).append(run)
    several = [dict(key[3]) for key in groups]
    found = []
    for key, members in groups.items():
        differing = [f"{n}={t}" for n, t in key[3] if any(other.get(n) != t for other in several)]
        gpus = f"{key[2]} × {key[1]}" if key[1] else f"{key[2]} GPU{'s' if key[2] > 1 else ''}"
        fit = tuple(run for run in members if run.unfit is None)
        found.append(
            Sweep(
                "  ".join([key[0], gpus, *differing]),
                fit,
                tuple(run for run in members if run.unfit),
            )
        )
    return found
