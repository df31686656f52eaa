"""Energy that the work of each run is divided by, from raw samples; `wattline.contract.work` has
the definition.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline.contract.work import SHARE_POLICY, SHORTEST_PHASE_S, is_shared, phases_of_work
from wattline_analyzer.usage.samples import Run, Tally, WindowTallies, component_of, run_of

METRICS: tuple[Metric, ...] = (
    *(
        m.RUN_ENERGY_BEFORE_USE,
        m.RUN_POWER_MAX,
        m.RUN_PHASE_SECONDS,
        m.RUN_PHASE_ENERGY,
        m.RUN_PHASE_WORK,
    ),
)
"""Metrics of the definition that no other sum of a fleet needs."""
_Device = tuple[str, str]
"""Instance and device."""


class UnitEnergies:
    """Runs of a window; `identity` returns the run of a series, with one instance where nodes are
    not separate.
    """

    def __init__(self, window: WindowTallies, identity: Callable[[Tally], Run]) -> None:
        self._window, self._identity = window, identity
        self._energy = self._by_run(m.RUN_ENERGY)
        shares = (
            one
            for one in window.of(m.RUN_ATTRIBUTED_ENERGY)
            if one.labels.get("policy") == SHARE_POLICY
        )
        self._shares = self._grouped(one for one in shares if one.labels.get("run_id"))
        self._before_use = self._by_run(m.RUN_ENERGY_BEFORE_USE)
        self._halves = self._by_run(m.RUN_ENERGY_UNCERTAINTY)
        self._highest_w = self._by_run(m.RUN_POWER_MAX)
        self._durations = self._by_run(m.RUN_DURATION)
        self._phase_energy, self._phase_work = (
            self._by_run(m.RUN_PHASE_ENERGY),
            self._by_run(m.RUN_PHASE_WORK),
        )
        self._phase_seconds = self._by_run(m.RUN_PHASE_SECONDS)
        self._ended = self._by_run(m.RUN_END)

    def joules(self) -> dict[tuple[Run, str], float]:
        """Return the energy by run and unit."""
        amounts: defaultdict[tuple[Run, str], float] = defaultdict(float)
        for tally in self._window.of(m.RUN_WORK):
            amounts[self._identity(tally), tally.labels["unit"]] += tally.highest
        energies = {
            (run, unit): self._energy_of(run, unit, amount)
            for (run, unit), amount in amounts.items()
        }
        return {key: joules for key, joules in energies.items() if joules is not None}

    def _energy_of(self, run: Run, unit: str, amount: float) -> float | None:
        gpus = self._of_component(self._energy, run, "gpu")
        if not gpus:
            cpus = self._of_component(self._shares, run, "cpu") or self._of_component(
                self._energy, run, "cpu"
            )
            return _sum(cpus) if cpus else None
        if self._is_shared(run, gpus):
            return _sum(
                [*self._of_component(self._shares, run, "gpu"), *self._before_use.get(run, ())]
            )
        names = self._phases(run, unit, amount) if run in self._ended else ()
        if names:
            phases = self._of_component(self._phase_energy, run, "gpu")
            return _sum(one for one in phases if one.labels["phase"] in names)
        return _sum(gpus)

    def _is_shared(self, run: Run, gpus: Iterable[Tally]) -> bool:
        shares_j: defaultdict[_Device, float] = defaultdict(float)
        for tally in [
            *self._of_component(self._shares, run, "gpu"),
            *self._before_use.get(run, ()),
        ]:
            shares_j[_device(tally)] += tally.highest
        halves_j = {_device(tally): tally.highest for tally in self._halves.get(run, ())}
        highest_w = {_device(tally): tally.highest for tally in self._highest_w.get(run, ())}
        duration_s = max((tally.highest for tally in self._durations.get(run, ())), default=0.0)
        return any(
            is_shared(
                gpu.highest,
                shares_j[_device(gpu)],
                mean_power_w=gpu.highest / duration_s if duration_s > 0 else 0.0,
                max_power_w=highest_w.get(_device(gpu), 0.0),
                half_j=halves_j.get(_device(gpu), 0.0),
            )
            for gpu in gpus
            if _device(gpu) in shares_j
        )

    def _phases(self, run: Run, unit: str, amount: float) -> tuple[str, ...]:
        seconds: dict[str, float] = {}
        for tally in self._phase_seconds.get(run, ()):
            seconds[tally.labels["phase"]] = max(
                tally.highest, seconds.get(tally.labels["phase"], 0.0)
            )
        known = {
            tally.labels["phase"] for tally in self._of_component(self._phase_energy, run, "gpu")
        }
        measured_s = {
            name: s for name, s in seconds.items() if name in known and s >= SHORTEST_PHASE_S
        }
        done_in: defaultdict[str, float] = defaultdict(float)
        for tally in self._phase_work.get(run, ()):
            if tally.labels["unit"] == unit:
                done_in[tally.labels["phase"]] += tally.highest
        run_s = max((tally.highest for tally in self._durations.get(run, ())), default=0.0)
        return phases_of_work(amount, done_in, measured_s, run_s)

    def _by_run(self, metric: Metric) -> dict[Run, list[Tally]]:
        return self._grouped(self._window.of(metric))

    def _grouped(self, tallies: Iterable[Tally]) -> dict[Run, list[Tally]]:
        found: defaultdict[Run, list[Tally]] = defaultdict(list)
        for tally in tallies:
            found[self._identity(tally)].append(tally)
        return dict(found)

    @staticmethod
    def _of_component(by_run: dict[Run, list[Tally]], run: Run, component: str) -> list[Tally]:
        return [tally for tally in by_run.get(run, ()) if component_of(tally)[0] == component]


def _device(tally: Tally) -> _Device:
    return run_of(tally)[0], tally.labels.get("uuid") or tally.labels.get("device", "")


def _sum(tallies: Iterable[Tally]) -> float:
    return math.fsum(tally.highest for tally in tallies)
