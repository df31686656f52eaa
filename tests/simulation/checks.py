"""Invariants of the exporter, checked on each page of metrics, at each answer, and at the end."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from tests.simulation.clients import Acknowledged, Node
from tests.simulation.exporter import CPU_W, Life
from tests.simulation.gpus import SimulatedGpu
from wattline.contract.metrics import OWNER_ENERGY
from wattline.contract.run import Run
from wattline_exporter.attribution.policy import POLICIES
from wattline_exporter.runs.run_record import RunRecord
from wattline_exporter.sensors.readings import RunError

SILENT_S = 5.0
"""Time after which a silent GPU's series must be gone: they are late after 2.5 s, which is checked
once a second.
"""
RECOVERED_S = 75.0
"""Time after the last fault after which a GPU must be up again: the longest pause before a new
worker is 30 s.
"""
CHANCE = 3.0
"""Ratio of an error to its 95 % interval that no chance explains."""
_MICROJOULE = 1e-6


@dataclass
class Tally:
    """Counts of checked pages and runs."""

    pages: int = 0
    runs: int = 0
    outside: int = 0
    """Runs with a device whose true energy is outside of its interval, but with a note or within
    CHANCE.
    """
    outside_noted: int = 0
    undeclared: int = 0
    """Runs outside of their interval without a note, within CHANCE."""
    clean: int = 0
    """Runs without a note."""


@dataclass
class Checks:
    """State of the checks of one simulation."""

    node: Node
    tally: Tally = field(default_factory=Tally)
    _live: dict[str, float] = field(default_factory=dict)
    _saved: dict[str, float] = field(default_factory=dict)
    _shares: dict[tuple[str, str], dict[str, float]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    _checked: set[str] = field(default_factory=set)
    _forgotten: set[str] = field(default_factory=lambda: {"forgotten before"})
    calm_since_s: float = 0.0
    """End of the last fault that may have silenced the sensors."""
    awake_since_s: float = 0.0
    """End of the last stop of the exporter."""

    # -- pages

    def page(self, life: Life, body: str) -> None:
        """Check one scrape."""
        self.tally.pages += 1
        values = _parse(body)
        save = life.metrics._save
        counters = {
            series: value
            for series, value in values.items()
            if series.partition("{")[0].endswith("_total")
        }
        for series, value in counters.items():
            if value < self._live.get(series, -math.inf):
                self.node.fail(f"{series} fell from {self._live[series]!r} to {value!r}")
        self._live.update(counters)
        if save and save.done() and save.result():
            self._saved.update(counters)
        self._check_shares(values)
        self._check_owners(life)
        self._check_freshness(life, values)

    def after_kill(self, *, power_cut: bool) -> None:
        """Note that the exporter was killed: a counter may fall to its last saved value."""
        self._saved = {} if power_cut else self._saved
        self._live = dict(self._saved)

    def after_start(self, life: Life, *, power_cut: bool) -> None:
        """Take the restored shares; follow the runs that are forgotten, whose shares are no longer
        on a page.

        Shares that could not be saved on a failing disk are lost.
        """
        restored = {(key.device.id, key.policy, key.run_id) for key in life.energies.microjoules}
        for (device_id, policy), known in self._shares.items():
            for run_id in known.keys() - self._forgotten:
                if (device_id, policy, run_id) not in restored:
                    del known[run_id]
        self._note_shares(life)
        if power_cut:
            self._shares.clear()
            self._note_shares(life)
            for device, meter in life.live.energy.meters.items():
                for policy in POLICIES:
                    shares = self._shares[device.id, policy]
                    shares["forgotten before"] = meter.totals.energy_j - sum(shares.values())
        keep = life.energies.keep

        def follow(run_ids: Collection[str]) -> None:
            forgotten = {key.run_id for key in life.energies.microjoules} - set(run_ids) - {""}
            self._note_shares(life, forgotten)
            self._forgotten |= forgotten
            keep(run_ids)

        life.energies.keep = follow

    def _note_shares(self, life: Life, run_ids: Collection[str] | None = None) -> None:
        for (device, policy, run_id), amount in life.energies.microjoules.items():
            if run_ids is None or run_id in run_ids:
                self._shares[device.id, policy][run_id] = amount * _MICROJOULE

    def _check_shares(self, values: dict[str, float]) -> None:
        for series, value in values.items():
            if series.startswith("wattline_run_attributed_energy_joules_total"):
                labels = _labels(series)
                self._shares[labels["device"], labels["policy"]][labels["run_id"]] = value
        for (device, policy), shares in self._shares.items():
            name = "wattline_cpu_energy_j" if device == "0" else "wattline_gpu_energy_j"
            found = [
                value
                for series, value in values.items()
                if series.startswith(name) and f'"{device}"' in series
            ]
            if found and abs(sum(shares.values()) - found[0]) > 2 * _MICROJOULE + 1e-12 * found[0]:
                self.node.fail(
                    f"{policy} shares of {device} add up to {sum(shares.values())!r}, not "
                    f"{found[0]!r}"
                )

    def _check_owners(self, life: Life) -> None:
        """Compare the sums over all owners, and of deferred ones, with the energies of the devices,
        in microjoules.
        """
        found: dict[tuple[str, ...], int] = defaultdict(int)
        owners = life.energies.owners
        for (name, labels), amount in owners._amounts.items():
            if name == OWNER_ENERGY.name:
                found[labels[4:]] += amount
        for deferred in owners._deferred.values():  # of runs whose owner is not known yet
            for (name, labels), amount in deferred.items():
                if name == OWNER_ENERGY.name:
                    found[labels] += amount
        for (component, policy), owned_uj in found.items():
            devices = life.energies._done_uj.items()
            total_uj = sum(
                energy_uj for device, energy_uj in devices if device.component == component
            )
            if owned_uj != total_uj:
                self.node.fail(
                    f"{policy} owners of {component} add up to {owned_uj} uJ, not {total_uj} uJ"
                )

    def _check_freshness(self, life: Life, values: dict[str, float]) -> None:
        now_s = life.world.virtual.s
        for gpu in life.world.gpus:
            labels = f'gpu="{gpu.info.index}",uuid="{gpu.uuid}"'
            up = values.get(f"wattline_gpu_up{{{labels}}}")
            has_power = f"wattline_gpu_power_watts{{{labels}}}" in values
            has_energy = f"wattline_gpu_energy_joules_total{{{labels}}}" in values
            since_s = max(self.awake_since_s, gpu.silent_since_s or 0.0, life.started_s)
            if (
                gpu.silent_since_s is not None
                and now_s - since_s > SILENT_S
                and (up or has_power or has_energy)
            ):
                self.node.fail(
                    f"GPU {gpu.info.index} is silent for {now_s - since_s:.1f} s, and its series "
                    "remain"
                )
            if now_s - max(self.calm_since_s, life.started_s) > RECOVERED_S and not (
                up and has_energy
            ):
                self.node.fail(f"GPU {gpu.info.index} is healthy, and its series are absent")
        down_s = life.world.cpu_fails_until_s
        is_down = (
            now_s < down_s
            and now_s - max(self.cpu_failed_s, life.started_s, self.awake_since_s) > SILENT_S
        )
        if is_down and any(series.startswith("wattline_cpu_energy_j") for series in values):
            self.node.fail("the CPU energy cannot be read, and its series remain")

    cpu_failed_s: float = 0.0

    # -- runs

    def end(self, acknowledged: Acknowledged, view: Run, record: RunRecord) -> None:
        """Check a run that has ended."""
        run_id = view.run_id
        self.run(acknowledged, view)
        end = acknowledged.end
        is_wider = end is not None and _half_widths(end) != _half_widths(view)
        if end is not None and _figures(end, is_wider) != _figures(view, is_wider):
            self.node.fail(f"{run_id}: its figures changed after its end: {end} -> {view}")
        if end is not None and _narrowed(end, view):
            self.node.fail(f"{run_id}: an interval is narrower after its end: {end} -> {view}")
        if run_id in self._checked or record.end_s is None:
            return
        self._checked.add(run_id)
        self.tally.runs += 1
        self.tally.clean += not view.notes
        energies = [
            (device.device_id, device.energy_j.number, device.energy_j.half_width)
            for device in view.devices
            if device.energy_j.state != "unknown"
        ]
        gpus = {gpu.uuid: gpu for gpu in acknowledged.gpus}
        missing = gpus.keys() - {device for device, _, _ in energies}
        if missing and not view.notes:
            self.node.fail(f"{run_id}: no energy of {missing}, and no note")
        ratios = [
            _ratio(gpus.get(device), record, joules, half_j) for device, joules, half_j in energies
        ]
        worst = max(ratios, default=0.0)
        self.tally.outside += worst > 1
        self.tally.outside_noted += worst > 1 and bool(view.notes)
        self.tally.undeclared += worst > 1 and not view.notes
        self.node.trace(
            "checked",
            run_id,
            f"{worst:.3f}",
            len(view.notes),
            *(f"{j:.6f}" for _, j, _ in energies),
        )
        if worst > CHANCE and not view.notes:
            truths = {gpu.uuid: _truth_j(gpu, record) for gpu in acknowledged.gpus}
            self.node.fail(
                f"{run_id}: {energies} are outside of the interval without a note; true: {truths}"
            )

    def run(self, acknowledged: Acknowledged, view: Run) -> None:
        """Check that a run has all that was acknowledged, and that its phases do not exceed it."""
        run_id, steps = view.run_id, view.work.get("steps", 0.0)
        if not sum(acknowledged.work.values()) <= steps <= sum(acknowledged.sent.values()):
            self.node.fail(
                f"{run_id}: acknowledged {acknowledged.work}, sent {acknowledged.sent}, found "
                f"{steps}"
            )
        names = [phase.name for phase in view.phases]
        if view.state == "ended" and not set(acknowledged.phases) <= set(names):
            self.node.fail(f"{run_id}: acknowledged phases {acknowledged.phases}, found {names}")
        seconds = sum(phase.duration_s for phase in view.phases)
        if seconds > view.duration_s + 1e-6:
            self.node.fail(f"{run_id}: phases of {seconds} s exceed the run of {view.duration_s} s")
        for component in view.components:
            run_j = view.energy(component).value
            if run_j is None:
                continue
            phases_j = sum(
                phase.energies_j[component].value or 0.0
                for phase in view.phases
                if component in phase.energies_j
            )
            if view.state == "ended" and phases_j > run_j + 1e-6 * max(1.0, run_j):
                self.node.fail(f"{run_id}: phases of {phases_j} J exceed the run of {run_j} J")

    def all_runs(self, life: Life, runs: dict[str, Acknowledged]) -> None:
        """Check all runs that were acknowledged against the exporter's."""
        for run in runs.values():
            try:
                found = life.ledger.find(run.run_id)
            except RunError:
                if run.begun and not run.may_be_lost:
                    self.node.fail(f"run {run.run_id} was acknowledged and is unknown")
                continue
            view = life.ledger.measured(found)
            record = life.ledger.runs.get(run.run_id) or life.world.final_records[run.run_id]
            known = {process.pid for process in record.processes}
            if not run.may_be_lost and not run.pids <= known:
                self.node.fail(
                    f"{run.run_id}: acknowledged processes {run.pids - known} are missing"
                )
            if run.may_be_lost:
                continue
            if run.end is not None and view.state != "ended":
                self.node.fail(f"{run.run_id}: its end was acknowledged, and it is {view.state}")
            if view.state == "ended":
                self.end(run, view, record)
            else:
                self.run(run, view)


def _truth_j(gpu: SimulatedGpu, record: RunRecord) -> float:
    assert record.end_s is not None
    return gpu.energy_j(record.end_s) - gpu.energy_j(record.begin_s)


def _ratio(gpu: SimulatedGpu | None, record: RunRecord, joules: float, half_j: float) -> float:
    assert record.end_s is not None
    truth_j = _truth_j(gpu, record) if gpu else CPU_W * (record.end_s - record.begin_s)
    return abs(joules - truth_j) / max(half_j, 1e-3, 1e-9 * truth_j)


def _figures(view: Run, is_wider: bool) -> dict[str, object]:
    """Return the figures that do not change after a run's end, when a late doubt may still widen an
    interval.

    A share that is not certain to differ from the whole energy is left out, so a wider interval may
    remove one.
    """
    others = {
        "notes",
        "simulation",
        "started_at",
        "ended_at",
        "phases",
        "energy_uncertainty_joules",
    }
    if is_wider:
        others |= {"attributed_energy_joules", "energy_per_unit"}
    return {name: value for name, value in view.to_json().items() if name not in others}


def _narrowed(before: Run, after: Run) -> bool:
    later_j = _half_widths(after)
    return any(later_j.get(device, 0.0) < half_j for device, half_j in _half_widths(before).items())


def _half_widths(run: Run) -> dict[tuple[str, str], float]:
    return {
        (device.component, device.device_id): device.energy_j.half_width
        for device in run.devices
        if device.energy_j.half_width is not None
    }


def _parse(body: str) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in body.splitlines() if not line.startswith("#"))
    return {series: float(value) for series, _, value in lines}


def _labels(series: str) -> dict[str, str]:
    pairs = series.partition("{")[2].rstrip("}").split(",")
    return {name: value.strip('"') for name, _, value in (pair.partition("=") for pair in pairs)}
