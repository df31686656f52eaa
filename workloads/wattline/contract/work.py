"""Units of work, and the one definition of energy per unit, for Python and PromQL.

The energy per unit is the energy of the GPUs, or of the CPUs in a run without GPUs, divided by the
amount of work:

- on a device that the run shares with others, the energy attributed to the run, of the whole run;
- else the energy of the phases in which the work was done, if they are known;
- else the energy of the whole run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline.figures import Figure

GFLOP = "gflop"
FLOP_PER_GFLOP = 1e9
_PRIMARY = (
    "generated_tokens",
    "trained_tokens",
    "tokens",
    "prompt_tokens",
    "images",
    "samples",
    "requests",
    "steps",
)
"""Units of useful work, the most specific first."""
_SECONDARY = ("padding_tokens", "cached_tokens", "requests_failed")
_AUXILIARY = ("flop", "bytes", *_SECONDARY)
"""Units that measure the effort of the useful work, or accompany it."""
_RESULTS = ("score", "time", "seconds", "duration", "latency")
"""Names under which benchmarks report how long they took."""
_SINGULAR_ENDS = ("ss", "us", "is", "series")
_PLURAL_ENDS = (
    ("ies", "y"),
    ("sses", "ss"),
    ("xes", "x"),
    ("shes", "sh"),
    ("tches", "tch"),
    ("rches", "rch"),
)
"""Ends of plurals, with that of the singular; other plurals lose their s."""

SHARE_POLICY: Literal["idle_shared"] = "idle_shared"
"""Policy that attributes all of the energy of a shared device to its runs."""
_LEAST_WORK = 0.01
"""A smaller share of the work was reported late, after the end of the phase in which it was done.
"""
_MOST_TIME = 0.99
"""Phases that take a larger share of the run count as the whole run, whose interval is narrower."""
_ROUNDING = 1e-6
LEAST_SHARED_RATIO = 0.02
_LEAST_J = 1.0
EDGE_S = 0.25
"""A device is shared if more than this ratio, energy and time at either edge is attributed to
others.
"""
SHORTEST_PHASE_S = 1.0
"""Shortest phase with an energy for most sensors; the analyzer knows each sensor's update interval.
"""


def is_amount(unit: str) -> bool:
    """Return False for a score or a time, which is a result: less of it is no less work."""
    return unit not in _RESULTS and not unit.endswith("_seconds")


def energy_of_one(energy: Figure, amount: float) -> Figure | None:
    """Return the joules of one of `amount` units of work, with the errors of `energy`.

    None without work, where the energy is unknown, and where the result is not a finite number.
    """
    if amount <= 0 or energy.value is None:
        return None
    each = energy.scaled(1 / amount)
    return each if math.isfinite(each.number) else None


def is_useful(unit: str) -> bool:
    """Return False for a unit that accompanies the useful work, and for a result."""
    return unit not in _SECONDARY and is_amount(unit)


def is_declaration(totals: Mapping[str, float]) -> bool:
    """Return True for the report of one unit with no work yet, with which a job declares its
    primary unit.
    """
    return list(totals.values()) == [0.0]


def is_main(unit: str) -> bool:
    """Return False for a unit that measures the effort of the useful work or accompanies it, and
    for a result.
    """
    return unit not in _AUXILIARY and is_amount(unit)


def primary_first(units: Iterable[str], primary: str | None = None) -> list[str]:
    """Return the units with the `primary` one of the job first, then by usefulness; unknown ones
    are before auxiliary.

    Without a primary unit, as in runs of older exporters, the most useful one is the first.
    """
    return sorted(units, key=lambda unit: (unit != primary, _rank(unit)))


def most_common_first(orders: Iterable[Sequence[str]]) -> list[str]:
    """Return the units of several runs, those first that are the primary one of most runs; each run
    has an order.
    """
    known = [order for order in orders if order]
    counts = Counter(order[0] for order in known)
    return sorted(
        {unit for order in known for unit in order}, key=lambda unit: (-counts[unit], _rank(unit))
    )


def unit_of_one(unit: str) -> str:
    """Return the words of a unit for an amount of one: `generated token`, `sample loaded`,
    `batch`.
    """
    words, at, noun = _singular(unit)
    return " ".join([*words[:at], noun, *words[at + 1 :]])


def noun_of_one(unit: str) -> str:
    """Return the counted thing alone: `token`, `sample`."""
    return _singular(unit)[2]


def _singular(unit: str) -> tuple[list[str], int, str]:
    """Return the words, the position of the last plural, and its singular; without a plural, the
    last word.
    """
    words = unit.split("_")
    for at in reversed(range(len(words))):
        word = words[at]
        if not word.endswith("s") or word.endswith(_SINGULAR_ENDS):
            continue
        stem = next(
            (word[: -len(end)] + one for end, one in _PLURAL_ENDS if word.endswith(end)), word[:-1]
        )
        return words, at, stem
    return words, len(words) - 1, words[-1]


def _rank(unit: str) -> tuple[int, str]:
    if unit in _PRIMARY:
        return _PRIMARY.index(unit), unit
    return len(_PRIMARY) + (1 + _AUXILIARY.index(unit) if unit in _AUXILIARY else 0), unit


def is_shared(
    energy_j: float,
    attributed_j: float,
    *,
    mean_power_w: float,
    max_power_w: float,
    half_j: float | None,
) -> bool:
    """Return True if a part of a device's energy is attributed to others than the run.

    Where the half-width is unknown, the other margins decide: the run then has its share, which is
    counted, instead of the energy of others.
    """
    edges_j = 2 * EDGE_S * max(mean_power_w, max_power_w)
    if half_j is not None:
        edges_j += half_j
    return energy_j - attributed_j > max(LEAST_SHARED_RATIO * energy_j, _LEAST_J, edges_j)


def phases_of_work(
    amount: float, done_in: Mapping[str, float], measured_s: Mapping[str, float], run_s: float
) -> tuple[str, ...]:
    """Return the phases of an ended run in which the work was done; empty if the whole run counts.

    `done_in` is the work by phase. `measured_s` are the durations of the phases with an energy, in
    their order.
    """
    working = {name for name, done in done_in.items() if done > 0} - _late_reports(amount, done_in)
    is_known = math.isclose(math.fsum(done_in.values()), amount, rel_tol=_ROUNDING)
    if not working or not is_known or not working <= measured_s.keys():
        return ()
    is_part = math.fsum(measured_s[name] for name in working) < _MOST_TIME * run_s
    return tuple(name for name in measured_s if name in working) if is_part else ()


def _late_reports(amount: float, done_in: Mapping[str, float]) -> set[str]:
    """Return the phases of least work, as many as have no more than _LEAST_WORK of it together."""
    found = set()
    left = _LEAST_WORK * amount
    for name, done in sorted(done_in.items(), key=lambda item: item[1]):
        left -= done
        if left < 0:
            break
        found.add(name)
    return found


@dataclass(frozen=True, slots=True)
class WorkQueries:
    """PromQL of the energy per unit; `run` and `node_run` are the labels of a run, and of a run on
    one node.

    `counter` returns the query for the last values of a run's metric by `node_run` and the given
    labels; it takes the metric, the labels and further matchers.
    """

    run: str
    node_run: str
    counter: Callable[[Metric, tuple[str, ...], str], str]

    def amount(self) -> str:
        """Return the query for the work by run and unit."""
        return self._sum("unit", self.counter(m.RUN_WORK, ("unit",), ""))

    def joules(self) -> str:
        """Return the query for the energy of each unit of a run: of its GPUs, else of its CPUs in
        the whole run.
        """
        done = self._amount_of("")
        gpu = 'component="gpu"'
        cpu = 'component="cpu"'
        shared = self._each(done, f"({self._share(gpu)} and on ({self.run}) {self._shared(gpu)})")
        of_gpus = (
            f"{shared} or {self._in_phases(gpu, done)} or {self._each(done, self._whole(gpu))}"
        )
        of_cpus = self._each(done, f"({self._share(cpu)} or {self._whole(cpu)})")
        return f"({of_gpus} or {of_cpus})"

    def energy_per_unit(self) -> str:
        return f"({self.joules()} / ({self.amount()} > 0))"

    def gpu_joules_in_phases(self) -> str:
        """Return the query for the GPUs' energy of each unit in its phases, also of runs that share
        GPUs.
        """
        return self._in_phases('component="gpu"', self._amount_of(""))

    def primary(self, values: str) -> str:
        """Return the values of each run's primary unit.

        Runs of older exporters have no such series: theirs is the most useful unit, and of several
        unknown ones that with the most work; those with auxiliary units only have none.
        """
        declared = self.counter(m.RUN_WORK_UNIT, ("unit",), "")
        known = "|".join((*_PRIMARY, *_AUXILIARY, *_RESULTS, ".+_seconds"))
        other = self._amount_of('unit!~"' + known + '"')
        unknown = f"topk by ({self.run}) (1, {other})"
        choices = [f"({self._amount_of('')} and on ({self.run}, unit) {declared})"]
        choices += [*map(self._amount_of_unit, _PRIMARY), unknown]
        return f"({values} and on ({self.run}, unit) ({f' or on ({self.run}) '.join(choices)}))"

    def _amount_of_unit(self, unit: str) -> str:
        return self._amount_of(f'unit="{unit}"')

    def _amount_of(self, matcher: str) -> str:
        return f"({self._sum('unit', self.counter(m.RUN_WORK, ('unit',), matcher))} > 0)"

    def _whole(self, of: str) -> str:
        return self._sum("", self.counter(m.RUN_ENERGY, ("device",), of))

    def _attributed(self, of: str) -> str:
        """Return the query for the shares, with the energy before the run's first use of a
        device.
        """
        shares = self.counter(
            m.RUN_ATTRIBUTED_ENERGY, ("device",), f'{of},policy="{SHARE_POLICY}",run_id!=""'
        )
        return f"({shares} + {self.counter(m.RUN_ENERGY_BEFORE_USE, ('device',), of)} or {shares})"

    def _share(self, of: str) -> str:
        return self._sum("", self._attributed(of))

    def _shared(self, of: str) -> str:
        """Return the query for devices of which a part is attributed to others; see `is_shared`."""
        device = ("device",)
        energy = self.counter(m.RUN_ENERGY, device, of)
        missing = f"({energy} - {self._attributed(of)})"
        beyond = f"({missing} - {self.counter(m.RUN_ENERGY_UNCERTAINTY, device, of)})"
        highest_w = f"on ({self.node_run}) group_left () {self.counter(m.RUN_POWER_MAX, (), '')}"
        at_edges = f"{beyond} / {highest_w} <= {2 * EDGE_S:g}"
        return (
            f"({missing} > {_LEAST_J:g} unless {missing} <= {LEAST_SHARED_RATIO} * {energy} "
            f"unless {at_edges})"
        )

    def _in_phases(self, of: str, done: str) -> str:
        """Return the query for the energy in the phases of each unit; see `phases_of_work`.

        If phases with little work have more than _LEAST_WORK of it together, the whole run counts;
        and where a node with devices of the component lacks the energy of a phase, since it may
        have worked for the same phase.
        """
        phase = f"on ({self.run}, phase)"
        by_phase = self._sum("phase, unit", self.counter(m.RUN_PHASE_WORK, ("phase", "unit"), ""))
        seconds = (
            f"max by ({self.run}, phase) ({self.counter(m.RUN_PHASE_SECONDS, ('phase',), '')})"
        )
        energies = self.counter(m.RUN_PHASE_ENERGY, ("phase",), of)
        nodes = f"count by ({self.run}) ({self.counter(m.RUN_ENERGY, (), of)})"
        measured = (
            f"({self._sum('phase', energies)} and {seconds} >= {SHORTEST_PHASE_S:g} and count by "
            f"({self.run}, phase) ({energies}) == on ({self.run}) group_left () {nodes})"
        )
        working = f"({by_phase} > on ({self.run}, unit) group_left () {_LEAST_WORK} * {done})"
        within = self._sum("unit", f"{working} ^ 0 * {phase} group_left () {measured}")
        within_s = self._sum("unit", f"{working} ^ 0 * {phase} group_left () {seconds}")
        run_s = f"max by ({self.run}) ({self.counter(m.RUN_DURATION, (), '')})"
        part_s = f"{within_s} < on ({self.run}) group_left () {_MOST_TIME} * {run_s}"
        is_known = f"{self._sum('unit', by_phase)} >= {1 - _ROUNDING} * {done}"
        is_most = (
            f"{self._sum('unit', f'{working} and {phase} {measured}')} >= {1 - _LEAST_WORK} "
            f"* {done}"
        )
        ended = f"on ({self.run}) {self.counter(m.RUN_END, (), '')}"
        return f"({within} and {ended} and {part_s} and {is_known} and {is_most})"

    def _sum(self, labels: str, values: str) -> str:
        return f"sum by ({self.run}{', ' if labels else ''}{labels}) ({values})"

    def _each(self, done: str, joules: str) -> str:
        """Return the joules of a run for each of its units."""
        return f"({done} ^ 0 * on ({self.run}) group_left () {joules})"
