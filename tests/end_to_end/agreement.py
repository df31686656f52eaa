"""Whether the ledger and two servers tell the same energy of a run, and whether that is the energy that was drawn."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import binom

from analyzer.assess.run import assess
from analyzer.model.interval import Interval
from analyzer.sources.base import FetchError
from analyzer.sources.prometheus import PrometheusSource
from analyzer.sources.runs import load as runs
from tests.end_to_end.cluster_node import Node

LONG_S = 10.0
"""Runs of this length are held to a tolerance, shorter ones to their own interval."""
TOLERANCE = 0.005
SAME = 1e-9
"""What a server stores is the ledger's figure, digit by digit but for the sum's order."""
SEEN_S = 0.01
"""So little unseen time is rounding."""
PEAK_W = 700.0
FAR = 2.0
"""An interval holds the truth with 95 %: some runs lie outside of theirs, but hardly one so many halves away."""
_CHANCE = 0.001
_CLOCK = runs.Clock(time.time, time.sleep)


@dataclass(frozen=True, slots=True)
class Told:
    """A run's energy as one place tells it: its joules, half of its interval, and for how long it did not see a GPU,
    in seconds that are added up over the GPUs.
    """

    joules: float | None
    half_j: float = 0.0
    unseen_s: float = 0.0
    own: Interval | None = None
    """The analyzer's figure from raw samples, where one was made."""
    notes: tuple[str, ...] = ()

    @property
    def missing_j(self) -> float:
        """The most that may have been drawn while nobody saw it, where the place declares such a time."""
        return self.unseen_s * PEAK_W if self.unseen_s > SEEN_S else 0.0


@dataclass(frozen=True, slots=True)
class Compared:
    """`told` by place, of which the ledger is the first. `trouble` is what is wrong besides the energies."""

    run_id: str
    nodes: int
    gpus: int
    duration_s: float
    truth_j: float
    told: Mapping[str, Told]
    trouble: tuple[str, ...] = ()

    @property
    def is_long(self) -> bool:
        return self.duration_s >= LONG_S

    @property
    def unseen_s(self) -> float:
        """As declared, at most."""
        return max((told.unseen_s for told in self.told.values() if told.missing_j), default=0.0)

    @property
    def deviation(self) -> float:
        """The farthest from the truth, relative."""
        offs = [told.joules / self.truth_j - 1 for told in self.told.values() if told.joules is not None]
        return max(offs, key=abs, default=math.nan)

    @property
    def agrees(self) -> bool:
        """With the truth, as nearly as is asked of a run of this length, whatever is declared."""
        return all(abs(self._off_j(told)) <= self._bound_j(told) for told in self.told.values())

    @property
    def bounds(self) -> tuple[Interval, ...]:
        """Of the servers' raw samples."""
        return tuple(told.own for told in self.told.values() if told.own is not None)

    def problems(self) -> Iterator[str]:
        yield from self.trouble
        (_, first), *others = self.told.items()
        for where, told in others:
            if told.joules is not None and not math.isclose(told.joules, first.joules or 0.0, rel_tol=SAME):
                yield f"{where} tells {told.joules:.1f} J, the ledger {first.joules or 0.0:.1f} J"
        for where, told in self.told.items():
            off_j, bound_j = self._off_j(told), self._bound_j(told) * (1.0 if self.is_long else FAR)
            if told.joules is None:
                yield f"{where} does not know it: {' '.join(told.notes)}"
            elif off_j > bound_j:
                yield f"{where} is {off_j:.1f} J above the truth, by more than {bound_j:.1f} J"
            elif off_j < -bound_j - told.missing_j:
                declared = f"{bound_j:.1f} J, and {told.unseen_s:.2f} s of a GPU unseen"
                yield f"{where} is {-off_j:.1f} J below the truth; declared are {declared}"

    @property
    def is_outside(self) -> bool:
        """A short run that was seen all the time, and yet the truth is not in its interval."""
        return not (self.is_long or self.unseen_s or self.agrees)

    def _off_j(self, told: Told) -> float:
        return math.inf if told.joules is None else told.joules - self.truth_j

    def _bound_j(self, told: Told) -> float:
        return TOLERANCE * self.truth_j if self.is_long else told.half_j


def too_many_outside(compared: Sequence[Compared]) -> bool:
    """Whether more short runs lie outside of their intervals than chance explains where those hold 95 %."""
    seen = [run for run in compared if not run.is_long and not run.unseen_s]
    return sum(run.is_outside for run in seen) > binom.isf(_CHANCE, len(seen), 0.05) if seen else False


@dataclass(frozen=True, slots=True)
class Ledgers:
    """What the ledgers of a run's nodes tell, added up; `answers` are those of each."""

    answers: tuple[dict[str, Any], ...]
    told: Told
    truth_j: float

    @property
    def duration_s(self) -> float:
        return min(run["duration_seconds"] for run in self.answers)


def ledgers(nodes: Sequence[Node], run_id: str, gpus: Sequence[int]) -> Ledgers:
    """`gpus` are the run's on each of its nodes. No joules where a ledger lacks one of them."""
    answers = [node.run(run_id) for node in nodes]
    truths_j = [node.truth_j(run, gpus) for node, run in zip(nodes, answers, strict=True)]
    energies_j = [run["energy_joules"].get("gpu", {}) for run in answers]
    halves_j = [run["energy_uncertainty_joules"].get("gpu", {}) for run in answers]
    whole = all(set(energy) == set(truth) for energy, truth in zip(energies_j, truths_j, strict=True))
    told = Told(
        math.fsum(joules for energy in energies_j for joules in energy.values()) if whole else None,
        math.fsum(joules for half in halves_j for joules in half.values()),
        math.fsum(_unseen_s(run["covered_ratio"].get("gpu", {}), run["duration_seconds"]) for run in answers),
        notes=tuple(note for run in answers for note in run["notes"]),
    )
    return Ledgers(tuple(answers), told, math.fsum(joules for truth in truths_j for joules in truth.values()))


def _unseen_s(covered: Mapping[str, float], duration_s: float) -> float:
    return math.fsum((1.0 - ratio) * duration_s for ratio in covered.values())


def reported(address: str, run_id: str, labels: Mapping[str, str]) -> Told:
    """What the analyzer reports of the run from that server."""
    source = PrometheusSource(address)
    try:
        report = assess(runs.load_run(source, run_id, 3_600.0, _CLOCK, lambda _: None))
    except FetchError as error:
        return Told(None, notes=(str(error),))
    finally:
        source.close()
    if report.headline is None or report.ended_at_s is None or dict(report.labels) != dict(labels):
        return Told(None, notes=(f"it ended at {report.ended_at_s}, its labels are {report.labels}",))
    unseen_s = math.fsum(
        (1.0 - device.covered_ratio) * device.duration_s for device in report.gpus if device.covered_ratio is not None
    )
    return Told(report.headline.value, report.headline.half or 0.0, unseen_s, report.own)
