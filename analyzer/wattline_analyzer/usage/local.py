"""Fleet of a source without aggregation, such as an exporter or a history file, from its raw
samples.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from wattline.contract import metrics as m
from wattline.contract.api import OTHER_RUNS
from wattline.contract.metrics import Metric
from wattline_analyzer.core.sources.base import SampleSource
from wattline_analyzer.core.sources.open import missing_data_remedy
from wattline_analyzer.core.sources.promql import LATE_MS
from wattline_analyzer.usage.cut import NODE, device_keys, folded_keys
from wattline_analyzer.usage.emission_coverage import METRICS as COVERAGE_METRICS
from wattline_analyzer.usage.emission_coverage import local_emission_energy
from wattline_analyzer.usage.fleet import (
    Counts,
    Keys,
    Means,
    NodeTimes,
    Sums,
    end_tolerance_s,
    start_tolerance_s,
)
from wattline_analyzer.usage.queries import LONE_RATIO, POLICY
from wattline_analyzer.usage.results import FleetRequest, no_samples
from wattline_analyzer.usage.tallies import (
    METRICS,
    GroupKeys,
    RunKey,
    Tally,
    component_of,
    fetch_window,
    run_of,
)
from wattline_analyzer.usage.unit_energy import METRICS as UNIT_METRICS
from wattline_analyzer.usage.unit_energy import joules_of_work

Amounts = Iterable[tuple[Keys | None, Keys, float]]
"""Keys of a group, further labels, and an amount."""


def fetch_local_fleet(source: SampleSource, request: FleetRequest) -> tuple[Counts, bool]:
    """Return the sums of a fleet, and True if a GPU is simulated. Raises FetchError."""
    local = LocalFleet(source, request)
    return local.counts(), local.window.simulated


class LocalFleet:
    """Window of a source; `further` metrics are read together with those of the sums. Raises
    FetchError.
    """

    def __init__(
        self, source: SampleSource, request: FleetRequest, further: Sequence[Metric] = ()
    ) -> None:
        metrics = (*METRICS, *UNIT_METRICS, *COVERAGE_METRICS, *further)
        self.window = fetch_window(source, request.start_s, request.end_s, metrics)
        self._request = request
        self._name, self._remedy = source.name, missing_data_remedy(source)
        self._keys = GroupKeys(request.by, self.window)
        of_runs = [
            tally
            for tally in self.window.of(m.RUN_ATTRIBUTED_ENERGY)
            if _policy(tally) == request.policy
        ]
        self._attributed = [
            tally for tally in of_runs if tally.labels.get("run_id", "") not in ("", OTHER_RUNS)
        ]
        self._folded = [tally for tally in of_runs if tally.labels.get("run_id") == OTHER_RUNS]
        self._unattributed = [tally for tally in of_runs if not tally.labels.get("run_id")]

    def counts(self) -> Counts:
        """Return the sums. Raises FetchError without any device."""
        devices = _summed(
            self._rises([*self.window.of(m.GPU_ENERGY), *self.window.of(m.CPU_ENERGY)])
        )
        if not devices:
            raise no_samples(self._name, self._request, self._remedy)
        emissions, work = self._request.emissions, _summed(self._work())
        idle = [
            one
            for one in self.window.of(m.RUN_ATTRIBUTED_ENERGY)
            if _policy(one) == POLICY and _is_idle_gpu(one)
        ]
        device_grams = _summed(self._device_grams()) if emissions else {}
        return Counts(
            devices=devices,
            unclaimed=_summed(self._rises(self._unattributed)),
            claimed=_summed(self._claimed()),
            work=work,
            working=_summed(self._working()) if work else {},
            unmeasured=_summed(self._unmeasured()) if work else {},
            primary=self._primary_units(),
            grams=_summed(self._grams()) if device_grams else {},
            device_grams=device_grams,
            runs=_summed(self._runs()),
            idle=_summed(self._rises(idle)),
            means=Means(
                "raw samples", self._request.start_s, self._request.end_s, self._name, 1, 0, 0
            ),
            gpu_seconds=_summed(self._gpu_seconds()),
            certain=_summed(self._certain()),
            squared_halves=_summed(self._squared_halves()),
            nodes=self._nodes(),
            emission_energy=local_emission_energy(self.window) if device_grams else {},
        )

    def _rises(self, tallies: Iterable[Tally]) -> Iterator[tuple[Keys | None, Keys, float]]:
        for tally in tallies:
            component, gpu = component_of(tally)
            if component:  # other zones of a CPU overlap
                yield self._keys.of_device(tally, gpu), (component,), tally.rise

    def _device_grams(self) -> Iterator[tuple[Keys | None, Keys, float]]:
        for tally in self.window.of(m.EMISSIONS):
            yield device_keys(self._request.by, {}), _basis(tally), tally.rise

    def _claimed(self) -> Iterator[tuple[Keys | None, Keys, float]]:
        for tally in self._attributed:
            component, gpu = component_of(tally)
            keys = self._keys.of_run(run_of(tally), gpu or None)
            yield keys, (component,), self.window.increase(tally)
        for tally in self._folded:
            component, gpu = component_of(tally)
            yield self._keys.of_device(tally, gpu, folded_keys), (component,), tally.rise

    def _work(self) -> Iterator[tuple[Keys | None, Keys, float]]:
        for tally in self.window.of(m.RUN_WORK):
            yield (
                self._keys.of_run(run_of(tally)),
                (tally.labels["unit"],),
                self.window.increase(tally),
            )

    def _primary_units(self) -> dict[str, float]:
        runs = {
            (tally.labels["run_id"], tally.labels["unit"])
            for tally in self.window.of(m.RUN_WORK_UNIT)
        }
        return {unit: float(count) for unit, count in Counter(unit for _, unit in runs).items()}

    def _working(self) -> Iterator[tuple[Keys | None, Keys, float]]:
        """Yield the energy of runs by unit; a run on several nodes may count its work on one of
        them.
        """
        one_of = {self._identity(tally): run_of(tally) for tally in self.window.of(m.RUN_WORK)}
        whole, inside = (
            self._working_joules(lambda tally: tally.highest),
            self._working_joules(self.window.increase),
        )
        for (run, unit), joules in joules_of_work(self.window, self._identity).items():
            if whole.get(run, 0.0) > 0:
                yield self._keys.of_run(one_of[run]), (unit,), joules * inside[run] / whole[run]

    def _unmeasured(self) -> Iterator[tuple[Keys | None, Keys, float]]:
        """Yield the work of runs without energy."""
        by_run = self._working_joules(lambda tally: tally.highest)
        for tally in self.window.of(m.RUN_WORK):
            if not by_run.get(self._identity(tally)):
                yield (
                    self._keys.of_run(run_of(tally)),
                    (tally.labels["unit"],),
                    self.window.increase(tally),
                )

    def _working_joules(self, joules_of: Callable[[Tally], float]) -> dict[RunKey, float]:
        """Return the attributed energy of each run: of GPUs, else of CPUs in runs without GPUs."""
        by_run: defaultdict[tuple[RunKey, str], float] = defaultdict(float)
        for tally in self._attributed:
            by_run[self._identity(tally), component_of(tally)[0]] += joules_of(tally)
        on_gpus = {self._identity(tally) for tally in self.window.of(m.RUN_GPU_INFO)}
        cpus = {
            run: joules
            for (run, component), joules in by_run.items()
            if component == "cpu" and run not in on_gpus
        }
        return cpus | {
            run: joules for (run, component), joules in by_run.items() if component == "gpu"
        }

    def _identity(self, tally: Tally) -> RunKey:
        instance, run_id = run_of(tally)
        return (instance if NODE in self._request.by else ""), run_id

    def _shares(self) -> dict[tuple[RunKey, str], tuple[float, float]]:
        """Return the attributed share of a run's energy by component, and the part of it in the
        window.
        """
        energy, whole, inside = (defaultdict[tuple[RunKey, str], float](float) for _ in range(3))
        for tally in self.window.of(m.RUN_ENERGY):
            energy[run_of(tally), component_of(tally)[0]] += tally.highest
        for tally in self._attributed:
            key = run_of(tally), component_of(tally)[0]
            whole[key] += tally.highest
            inside[key] += self.window.increase(tally)
        return {
            key: (joules / energy[key], inside[key] / joules if joules > 0 else 0.0)
            for key, joules in whole.items()
            if energy.get(key, 0.0) > 0
        }

    def _grams(self) -> Iterator[tuple[Keys | None, Keys, float]]:
        shares = self._shares()
        for tally in self.window.of(m.RUN_EMISSIONS):
            run = run_of(tally)
            attributed, inside = shares.get((run, tally.labels["component"]), (0.0, 0.0))
            end = self.window.one(m.RUN_END, run)
            if end is not None and end.highest < self._request.start_s + LATE_MS / 1_000:
                emitted = tally.highest * inside  # by joules: emissions are counted seconds later
            else:
                emitted = self.window.increase(tally)
            yield self._keys.of_run(run), _basis(tally), emitted * attributed

    def _runs(self) -> Iterator[tuple[Keys | None, Keys, float]]:
        active = set()
        for tally in self.window.of(m.RUN_INFO):
            end = self.window.one(m.RUN_END, run_of(tally))
            if end is None or end.highest >= self._request.start_s:
                active.add((run_of(tally)[1], self._keys.of_run(run_of(tally))))
        yield from ((keys, (), 1.0) for _, keys in active)

    def _gpu_seconds(self) -> Iterator[tuple[Keys | None, Keys, float]]:
        for tally in self.window.of(m.RUN_GPU_INFO):
            duration = self.window.one(m.RUN_DURATION, run_of(tally))
            if duration is not None:
                keys = self._keys.of_run(run_of(tally), tally.labels.get("uuid", ""))
                yield keys, (), self.window.increase(duration)

    def _certain(self) -> Iterator[tuple[Keys | None, Keys, float]]:
        known = self._half_widths()
        for tally in self._attributed:
            if run_of(tally) in known:
                yield (
                    self._keys.of_run(run_of(tally), component_of(tally)[1] or None),
                    (),
                    self.window.increase(tally),
                )

    def _squared_halves(self) -> Iterator[tuple[Keys | None, Keys, float]]:
        yield from (
            (self._keys.of_run(run), (), half_j**2) for run, half_j in self._half_widths().items()
        )

    def _half_widths(self) -> dict[RunKey, float]:
        """Return the half-widths of the runs that had their devices to themselves; see the
        query.
        """
        energy, attributed, halves = (
            self._highest(tallies)
            for tallies in (
                self.window.of(m.RUN_ENERGY),
                self._attributed,
                self.window.of(m.RUN_ENERGY_UNCERTAINTY),
            )
        )
        return {
            run: half_j + abs(energy[run] - attributed.get(run, 0.0))
            for run, half_j in halves.items()
            if energy.get(run, 0.0) > 0 and attributed.get(run, 0.0) >= LONE_RATIO * energy[run]
        }

    def _highest(self, tallies: Iterable[Tally]) -> dict[RunKey, float]:
        by_run: defaultdict[RunKey, float] = defaultdict(float)
        for tally in tallies:
            by_run[run_of(tally)] += tally.highest
        return dict(by_run)

    def _nodes(self) -> NodeTimes:
        first: dict[str, float] = {}
        final: dict[str, float] = {}
        gaps_s: dict[str, float] = {}
        for tally in [*self.window.of(m.GPU_ENERGY), *self.window.of(m.CPU_ENERGY)]:
            name = tally.labels.get("instance", "") or self._name
            first[name] = min(first.get(name, math.inf), tally.known_s)
            final[name] = max(final.get(name, -math.inf), tally.last_s)
            gaps_s[name] = max(gaps_s.get(name, 0.0), tally.longest_gap_s)
        start_s, end_s = self._request.start_s, self._request.end_s
        late_s = start_s + start_tolerance_s(end_s - start_s)
        early_s = {
            name: end_s - end_tolerance_s(end_s - start_s, gap_s) for name, gap_s in gaps_s.items()
        }
        return NodeTimes(
            tuple(sorted(first)),
            tuple(sorted(one for one, t in first.items() if t > late_s)),
            tuple(sorted(one for one, t in final.items() if t < early_s[one])),
        )


def _summed(amounts: Amounts) -> Sums:
    """Add the amounts of each group; a run without information belongs to none."""
    found: defaultdict[tuple[Keys, Keys], float] = defaultdict(float)
    for keys, what, amount in amounts:
        if keys is not None:
            found[keys, what] += amount
    return dict(found)


def _policy(tally: Tally) -> str:
    return tally.labels.get("policy", "")


def _is_idle_gpu(tally: Tally) -> bool:
    return not tally.labels.get("run_id") and tally.labels.get("component") == "gpu"


def _basis(tally: Tally) -> Keys:
    return tally.labels["basis"], tally.labels["quality"]
