"""Agreement of a run's energy between ledger, two servers and the true value."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import binom

from tests.end_to_end.cluster_node import Node
from wattline.figures import Figure
from wattline_analyzer.core.runs import load as runs
from wattline_analyzer.core.sources.base import FetchError
from wattline_analyzer.core.sources.prometheus import PrometheusSource
from wattline_analyzer.report.assess import assess

LONG_S = 10.0
"""Duration from which a run is compared with a tolerance; shorter runs use their interval."""
TOLERANCE = 0.005
ROUNDING = 1e-9
"""Relative tolerance between server and ledger: the order of the sum only."""
MIN_UNSEEN_S = 0.01
"""Seconds of unseen time below which they are rounding."""
PEAK_W = 700.0
MAX_HALF_WIDTHS = 2.0
"""Limit of the deviation in half-widths; 5 % of the runs may lie outside their 95 % interval, but
not this far.
"""
_CHANCE = 0.001
_CLOCK = runs.Clock(time.time, time.sleep)


@dataclass(frozen=True, slots=True)
class ReportedEnergy:
    """Energy of a run as the ledger or a server reports it.

    `unseen_s` is the time without data, added up over the GPUs.
    """

    joules: float | None
    half_j: float = 0.0
    unseen_s: float = 0.0
    own: Figure | None = None
    """Energy that the analyzer computes from raw samples, if any."""
    notes: tuple[str, ...] = ()

    @property
    def missing_j(self) -> float:
        """Return the most energy that can be missing in the declared unseen time."""
        return self.unseen_s * PEAK_W if self.unseen_s > MIN_UNSEEN_S else 0.0


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Energies of one run by source, the ledger first. `trouble` lists problems other than
    energies.
    """

    run_id: str
    nodes: int
    gpus: int
    duration_s: float
    true_j: float
    energies: Mapping[str, ReportedEnergy]
    trouble: tuple[str, ...] = ()

    @property
    def is_long(self) -> bool:
        return self.duration_s >= LONG_S

    @property
    def unseen_s(self) -> float:
        """Return the longest declared unseen time."""
        return max(
            (energies.unseen_s for energies in self.energies.values() if energies.missing_j),
            default=0.0,
        )

    @property
    def deviation(self) -> float:
        """Return the largest relative deviation from the true value."""
        offs = [
            energies.joules / self.true_j - 1
            for energies in self.energies.values()
            if energies.joules is not None
        ]
        return max(offs, key=abs, default=math.nan)

    @property
    def agrees(self) -> bool:
        """Return True if all sources agree with the true value, without allowance for unseen
        time.
        """
        return all(
            abs(self._off_j(energies)) <= self._bound_j(energies)
            for energies in self.energies.values()
        )

    @property
    def bounds(self) -> tuple[Figure, ...]:
        """Return the figures from the servers' raw samples."""
        return tuple(
            energies.own for energies in self.energies.values() if energies.own is not None
        )

    def problems(self) -> Iterator[str]:
        yield from self.trouble
        (_, first), *others = self.energies.items()
        for source, energies in others:
            if energies.joules is not None and not math.isclose(
                energies.joules, first.joules or 0.0, rel_tol=ROUNDING
            ):
                yield (
                    f"{source} reports {energies.joules:.1f} J, the ledger "
                    f"{first.joules or 0.0:.1f} J"
                )
        for source, energies in self.energies.items():
            off_j, bound_j = (
                self._off_j(energies),
                self._bound_j(energies) * (1.0 if self.is_long else MAX_HALF_WIDTHS),
            )
            if energies.joules is None:
                yield f"{source} has no such run: {' '.join(energies.notes)}"
            elif off_j > bound_j:
                yield (
                    f"{source} is {off_j:.1f} J above the true value, by more than {bound_j:.1f} J"
                )
            elif off_j < -bound_j - energies.missing_j:
                declared = f"{bound_j:.1f} J, and {energies.unseen_s:.2f} s of a GPU unseen"
                yield f"{source} is {-off_j:.1f} J below the true value; declared are {declared}"

    @property
    def is_outside(self) -> bool:
        """Return True for a short, fully sampled run whose interval misses the true value."""
        return not (self.is_long or self.unseen_s or self.agrees)

    def _off_j(self, energies: ReportedEnergy) -> float:
        return math.inf if energies.joules is None else energies.joules - self.true_j

    def _bound_j(self, energies: ReportedEnergy) -> float:
        return TOLERANCE * self.true_j if self.is_long else energies.half_j


def too_many_outside(comparisons: Sequence[RunComparison]) -> bool:
    """Return True if more short runs miss their 95 % intervals than chance explains."""
    sampled = [run for run in comparisons if not run.is_long and not run.unseen_s]
    return (
        sum(run.is_outside for run in sampled) > binom.isf(_CHANCE, len(sampled), 0.05)
        if sampled
        else False
    )


@dataclass(frozen=True, slots=True)
class RunLedgers:
    """Summed ledgers of a run's nodes; `answers` are the nodes' runs."""

    answers: tuple[dict[str, Any], ...]
    energies: ReportedEnergy
    true_j: float

    @property
    def duration_s(self) -> float:
        return min(run["duration_seconds"] for run in self.answers)


def sum_ledgers(nodes: Sequence[Node], run_id: str, gpus: Sequence[int]) -> RunLedgers:
    """Sum the ledgers; `gpus` are the run's GPUs on each node. Without energy if a ledger lacks a
    GPU.
    """
    answers = [node.run(run_id) for node in nodes]
    true_by_node_j = [node.true_j(run, gpus) for node, run in zip(nodes, answers, strict=True)]
    energies_j = [run["energy_joules"].get("gpu", {}) for run in answers]
    halves_j = [run["energy_uncertainty_joules"].get("gpu", {}) for run in answers]
    complete = all(
        set(energy) == set(true_by_gpu_j)
        for energy, true_by_gpu_j in zip(energies_j, true_by_node_j, strict=True)
    )
    energies = ReportedEnergy(
        math.fsum(joules for energy in energies_j for joules in energy.values())
        if complete
        else None,
        math.fsum(joules for half in halves_j for joules in half.values()),
        math.fsum(
            _unseen_s(run["covered_ratio"].get("gpu", {}), run["duration_seconds"])
            for run in answers
        ),
        notes=tuple(note for run in answers for note in run["notes"]),
    )
    return RunLedgers(
        tuple(answers),
        energies,
        math.fsum(joules for true_by_gpu_j in true_by_node_j for joules in true_by_gpu_j.values()),
    )


def _unseen_s(covered: Mapping[str, float], duration_s: float) -> float:
    return math.fsum((1.0 - ratio) * duration_s for ratio in covered.values())


def server_energy(address: str, run_id: str, labels: Mapping[str, str]) -> ReportedEnergy:
    """Return the analyzer's report of the run from that server."""
    source = PrometheusSource(address)
    try:
        report = assess(runs.load_run(source, run_id, 3_600.0, _CLOCK, lambda _: None))
    except FetchError as error:
        return ReportedEnergy(None, notes=(str(error),))
    finally:
        source.close()
    if report.headline is None or report.ended_at_s is None or dict(report.labels) != dict(labels):
        return ReportedEnergy(
            None, notes=(f"it ended at {report.ended_at_s}, its labels are {report.labels}",)
        )
    unseen_s = math.fsum(
        (1.0 - device.covered_ratio) * device.duration_s
        for device in report.gpus
        if device.covered_ratio is not None
    )
    return ReportedEnergy(
        report.headline.value,
        report.headline.half_width or 0.0,
        unseen_s,
        report.energies.from_raw_samples,
    )
