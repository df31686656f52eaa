"""Random nodes with one run, and their reports by the analyzer's own entry points."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st

from tests.analyzer.node import START_S, NodeGpu, NodeRun, run_series, scrape, series_of_scrapes
from tests.analyzer.series_source import SeriesSource
from wattline.contract import metrics as m
from wattline.contract.history import Series
from wattline_analyzer.core.run_report import NO_INPUTS
from wattline_analyzer.core.runs.load import Clock, load_run
from wattline_analyzer.report.assess import assess
from wattline_analyzer.report.assess_untagged import range_report
from wattline_analyzer.report.document import report_document
from wattline_analyzer.report.untagged.load import load_range
from wattline_analyzer.report.untagged.request import RangeRequest

EXAMPLES = int(os.environ.get("WATTLINE_METAMORPHIC_EXAMPLES", "1"))
BUDGET = settings(max_examples=EXAMPLES, deadline=None, phases=[Phase.explicit, Phase.generate])
"""Few examples by default, since one takes 0.2 s of CPU; WATTLINE_METAMORPHIC_EXAMPLES=200 searches
longer.
"""
SLOT_S = 1_800.0
CPU_W = 40.0


class MemorySource(SeriesSource):
    """Source over series in memory."""

    def __init__(self, series: Sequence[Series]) -> None:
        self._series = [
            (one.labels, *np.array(one.samples, dtype=np.float64).T)
            for one in series
            if one.samples
        ]

    def parts(self, metrics, matchers, start_s, end_s):
        names = [metric.name for metric in metrics]
        chosen = []
        for labels, t, value in self._series:
            if labels["__name__"] in names and all(
                labels.get(name, "") == text for name, text in matchers.items()
            ):
                inside = (t >= start_s) & (t <= end_s)
                if inside.any():
                    chosen.append((labels, t[inside], value[inside]))
        yield chosen


class ShuffledSource(SeriesSource):
    """Source that returns series, and the rows of tables, in a random order."""

    def __init__(self, series: Sequence[Series], seed: int) -> None:
        self._chance = random.Random(seed)
        self._source = MemorySource(self._chance.sample(list(series), len(series)))

    def parts(self, metrics, matchers, start_s, end_s):
        for part in self._source.parts(metrics, matchers, start_s, end_s):
            yield self._chance.sample(part, len(part))

    def fetch(self, metrics, matchers, start_s, end_s):
        table = super().fetch(metrics, matchers, start_s, end_s)
        rows = self._chance.sample(range(len(table)), len(table))
        return table.take(np.array(rows, dtype=np.intp))


@dataclass(frozen=True)
class World:
    """A node with GPUs and one run; `loads` are the watts of each GPU in equal parts of the run."""

    start_s: float
    length_s: float
    loads: tuple[tuple[float, ...], ...]
    warmup: float
    """Share of the run before its phase `measure`."""
    tokens_per_s: float
    spacing_s: float
    offset_s: float
    grams: tuple[float, float]
    """Carbon intensity before and after the border of slots that lies in the run."""
    label: str = "tiny"

    @property
    def end_s(self) -> float:
        return self.start_s + self.length_s

    @property
    def measure_s(self) -> float:
        return self.start_s + self.warmup * self.length_s

    @property
    def border_s(self) -> float:
        """The border of carbon intensity slots next to the middle of the run."""
        return round((self.start_s + self.length_s / 2) / SLOT_S) * SLOT_S

    @property
    def gpus(self) -> list[NodeGpu]:
        found = []
        for number, watts in enumerate(self.loads):
            part_s = self.length_s / len(watts)
            steps = [(self.start_s + part_s * n, power_w) for n, power_w in enumerate(watts)]
            idle = (self.start_s - 5_000, 60.0), (self.end_s, 60.0)
            found.append(NodeGpu([idle[0], *steps, idle[1]], index=str(number), limit_w=500.0))
        return found

    def energy_j(self, from_s: float, until_s: float) -> float:
        return sum(gpu.energy_j(until_s) - gpu.energy_j(from_s) for gpu in self.gpus)

    def intensity(self, t: float) -> float:
        return self.grams[t >= self.border_s]

    def run(
        self, t: float, run_id: str = "train-1", span_s: tuple[float, float] | None = None
    ) -> NodeRun:
        """Return the run as the exporter shows it at `t`; `span_s` is a part of it, reported as a
        separate run.
        """
        start_s, end_s = span_s or (self.start_s, self.end_s)
        now_s = min(max(t, start_s), end_s)
        measure_s = min(max(self.measure_s, start_s), end_s)
        spans = {"load": (start_s, min(measure_s, now_s)), "measure": (measure_s, now_s)}
        phases = {name: (b - a, self.energy_j(a, b)) for name, (a, b) in spans.items() if b > a}
        done = self.tokens_per_s * max(now_s - measure_s, 0.0)
        grams = sum(
            self.energy_j(a, b) * self.intensity(a) / 3.6e6
            for a, b in pairwise(
                sorted(
                    {start_s, now_s, *({self.border_s} if start_s < self.border_s < now_s else ())}
                )
            )
        )
        return NodeRun(
            run_id,
            start_s,
            end_s,
            "serve",
            {"model": self.label},
            work={"generated_tokens": done, "prompt_tokens": 3 * done},
            results={"ttft_seconds_p99": 0.3},
            phases=phases,
            phase_work={"measure": {"generated_tokens": done, "prompt_tokens": 3 * done}}
            if "measure" in phases
            else {},
            cpu_j=CPU_W * (now_s - start_s),
            emissions_g=grams,
            uncertainty_j=5.0,
        )

    def scrape(
        self, t: float, runs: Mapping[str, tuple[float, float]] | None = None
    ) -> Iterator[tuple]:
        yield from scrape(self.gpus, NodeRun(start_s=t + 1), t)
        labels = {"region": "GB", "provider": "gb", "basis": "average", "quality": "actual"}
        yield m.CARBON_INTENSITY, labels, self.intensity(t)
        yield (
            m.CARBON_INTENSITY_TIMESTAMP,
            labels,
            self.border_s - (SLOT_S if t < self.border_s else 0),
        )
        yield m.CPU_ENERGY, {"package": "0", "zone": "package"}, CPU_W * (t - self.start_s + 5_000)
        for gpu in self.gpus:
            yield (
                m.GPU_UTILIZATION,
                {"gpu": gpu.index, "uuid": gpu.uuid, "engine": "gpu"},
                float(gpu.power_w(t) > 60),
            )
        for run_id, (start_s, end_s) in (runs or {"train-1": (self.start_s, self.end_s)}).items():
            if t < start_s:
                continue
            run = self.run(t, run_id, (start_s, end_s))
            yield from run_series(self.gpus, run, t)
            measure_s = min(max(self.measure_s, start_s), end_s)
            for phase, since_s in (("load", start_s), ("measure", measure_s)):
                if phase in run.phases:
                    yield m.RUN_PHASE_START, {"run_id": run_id, "phase": phase}, since_s
            for gpu in self.gpus:
                share_j = 0.8 * (gpu.energy_j(min(t, end_s)) - gpu.energy_j(start_s))
                where = {
                    "run_id": run_id,
                    "component": "gpu",
                    "device": gpu.uuid,
                    "policy": "idle_shared",
                }
                yield m.RUN_ATTRIBUTED_ENERGY, where, share_j

    def times(self) -> list[float]:
        first_s = self.start_s - 60 + self.offset_s
        return [
            round(t, 3)
            for t in np.arange(first_s, self.end_s + 60 + self.spacing_s, self.spacing_s).tolist()
        ]

    def series(
        self, runs: Mapping[str, tuple[float, float]] | None = None, instance: str = "a:9847"
    ) -> list[Series]:
        return series_of_scrapes(((t, list(self.scrape(t, runs))) for t in self.times()), instance)


def world_of(seed: int) -> World:
    """Return a run of 15 to 90 s on one or two GPUs, with a border of slots in it."""
    chance = random.Random(seed)
    length_s = chance.uniform(15, 90)
    border_s = START_S // SLOT_S * SLOT_S + SLOT_S
    return World(
        round(border_s - length_s * chance.uniform(0.2, 0.8), 3),
        length_s,
        tuple(
            tuple(chance.uniform(100, 480) for _ in range(chance.randint(1, 4)))
            for _ in range(chance.randint(1, 2))
        ),
        chance.uniform(0.1, 0.4),
        chance.uniform(10, 1_000),
        chance.choice([1.0, 2.0, 5.0]),
        chance.random(),
        (chance.uniform(50, 600), chance.uniform(50, 600)),
    )


def _loads(chance: random.Random) -> tuple[float, ...]:
    return tuple(chance.uniform(100, 480) for _ in range(chance.randint(1, 4)))


def worlds() -> st.SearchStrategy[World]:
    return st.integers(0, 2**32).map(world_of)


@lru_cache
def expected_document(world: World) -> dict[str, Any]:
    """Return the document of the run without any change; it must not be changed."""
    return run_document(world.series())


def run_document(series, run_id="train-1", *, seed=None, now_s=START_S + 7_200, inputs=NO_INPUTS):
    """Return the JSON document of a run's report."""
    source = MemorySource(series) if seed is None else ShuffledSource(series, seed)
    clock = Clock(lambda: now_s, lambda _: None)
    return report_document(assess(load_run(source, run_id, 86_400, clock, lambda _: None), inputs))


def range_document(series, span_s, *, seed=None, node=None) -> dict[str, Any]:
    """Return the JSON document of a time range without a run."""
    source = MemorySource(series) if seed is None else ShuffledSource(series, seed)
    found = load_range(
        source, RangeRequest(span_s[0], span_s[1], node, schema="wattline"), lambda _: None
    )
    return report_document(range_report(assess(found.recorded), found.quality))
