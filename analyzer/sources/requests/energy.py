"""Energy of a run's GPUs between two samples, for the division among requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.model.devices import SIMULATED
from analyzer.model.ledger import RunLedger, parse_ledger
from analyzer.model.sample_table import RunFrames, last, samples
from analyzer.model.samples import GAP_FACTOR, FloatArray, Samples
from analyzer.model.timeline import other_runs
from analyzer.sources.base import FetchError, SampleSource
from analyzer.sources.fetch import SeriesRequest, fetch
from analyzer.sources.runs.load import Clock, load_run
from analyzer.studies.requests.table import RequestTable
from exporter.contract import metrics as m
from exporter.request_energy.spans import EnergySlots

MAX_SLOT_S = 2.0
"""Widest slot: the intervals of the division were checked with updates of 0.1 to 1 s."""
MAX_DIFFERENCE, MAX_AGE_S = 0.01, 0.5
"""Largest difference of the samples from the energy of the run: a ratio, and seconds of its mean power."""
SENSOR_AGE_S = 0.1
"""Longest usual age of a sample: counters are updated every 20 to 100 ms."""
_LOW_PERCENTILE = 1.0


@dataclass(frozen=True, slots=True)
class ServerEnergy:
    """Energy of a server's GPUs during a run, with notes for the user."""

    slots: EnergySlots
    gpus: int
    notes: tuple[str, ...]
    simulated: bool


def fetch_server_energy(
    source: SampleSource, run_id: str, since_s: float, clock: Clock, log: Callable[[str], None]
) -> ServerEnergy:
    """Return the energy of the run's GPUs in slots. Raises FetchError without GPUs, or with samples too far apart."""
    frames = load_run(source, run_id, since_s, clock, log)
    ledger = parse_ledger(frames.ledger, run_id)
    gpus = [(one.instance, one.device) for one in ledger.devices if one.component == "gpu"]
    if not gpus:
        raise FetchError(f"run {run_id} used no GPU", "start the run with --gpus")
    start_s = min(window.start_s for window in ledger.windows.values())
    end_s = max(window.end_s for window in ledger.windows.values())
    counters, idle_w = [], []
    for instance in sorted({instance for instance, _ in gpus}):
        where = {"instance": instance} if instance else {}
        raw = fetch(
            source, SeriesRequest((m.GPU_ENERGY, m.IDLE_POWER), where, (start_s - MAX_SLOT_S, end_s + MAX_SLOT_S))
        )
        for uuid in sorted(uuid for place, uuid in gpus if place == instance):
            counters.append(samples(raw, m.GPU_ENERGY, uuid=uuid, **where))
            idle_w += [row.value for row in last(raw, m.IDLE_POWER, component="gpu", device=uuid, **where)]
    edges_s, joules, gap_s = _slots(counters, start_s, end_s, run_id)
    run_j = sum(one.energy_j for one in ledger.devices if one.component == "gpu")
    notes = _notes(frames, ledger, gpus, gap_s)
    if abs(joules.sum() - run_j) > MAX_DIFFERENCE * run_j + MAX_AGE_S * run_j / (end_s - start_s):
        notes.append(f"the samples give {joules.sum():.4g} J, the run {run_j:.4g} J; the slots are scaled to the run")
    joules = _with_total(joules, run_j)
    if len(idle_w) < len(gpus):
        known_w = float(np.percentile(joules / np.diff(edges_s), _LOW_PERCENTILE))
        notes.append(f"idle power unknown: {known_w:.0f} W are assumed, the lowest of the run")
    else:
        known_w = sum(idle_w)
    names = [row.labels.get("name", "") for row in last(frames.raw, m.GPU_INFO)]
    return ServerEnergy(
        EnergySlots(edges_s, joules, known_w, SENSOR_AGE_S),
        len(gpus),
        tuple(notes),
        any(one.startswith(SIMULATED) for one in names),
    )


def _slots(
    counters: Sequence[Samples], start_s: float, end_s: float, run_id: str
) -> tuple[FloatArray, FloatArray, float]:
    """Return the edges, the joules of all GPUs between them, and the seconds in gaps."""
    if any(len(one) < 2 for one in counters):
        raise FetchError(
            f"run {run_id}: a GPU has no energy samples at this source", "use the source that measured the run"
        )
    times = counters[0].t
    edges_s = np.concatenate([[start_s], times[(times > start_s) & (times < end_s)], [end_s]])
    edges_s = edges_s[np.append(True, np.diff(edges_s) > 1e-6)]
    widths_s = np.diff(edges_s)
    usual_s = float(np.median(np.diff(times)))
    if usual_s > MAX_SLOT_S:
        raise FetchError(
            f"samples are {usual_s:.3g} s apart, requests need {MAX_SLOT_S:g} s or less",
            "give --source the exporter or its history file",
        )
    total = sum(np.interp(edges_s, one.t, one.value) for one in counters)
    return edges_s, np.diff(total), float(widths_s[widths_s > GAP_FACTOR * usual_s].sum())


def _with_total(joules: FloatArray, total_j: float) -> FloatArray:
    """Return the energies with the total of the run.

    A sample has the counter's last update. Between samples this averages out; at the start and the end of the run it
    does not, and the ledger of the run knows the energies at both.
    """
    half_j = (joules.sum() - total_j) / 2
    if min(joules[0], joules[-1]) > half_j:
        joules = joules.copy()
        joules[[0, -1]] -= half_j
    scaled: FloatArray = joules * (total_j / joules.sum())
    return scaled


def request_notes(table: RequestTable, slots: EnergySlots) -> list[str]:
    """Return notes on faulty requests. Raises FetchError if none is in the time of the run."""
    start_s, end_s = float(slots.edges_s[0]), float(slots.edges_s[-1])
    spans, notes = table.spans, []
    outside = (spans.ended_s <= start_s) | (spans.arrived_s >= end_s)
    partly = ~outside & ((spans.arrived_s < start_s) | (spans.ended_s > end_s))
    if np.all(outside):
        raise FetchError(
            f"no request is in the time of the run, {start_s:.0f} to {end_s:.0f}",
            "check that the times are Unix seconds of the node's clock, and --run-id",
        )
    if np.any(outside):
        notes.append(f"{np.count_nonzero(outside)} requests are outside of the run: they have no energy")
    if np.any(partly):
        notes.append(
            f"{np.count_nonzero(partly)} requests are partly outside of the run: that part of their energy is missing"
        )
    if table.untimed:
        notes.append(f"{table.untimed} requests have no first_token_at: prefill and decode are not separated")
    if table.repeated:
        notes.append(f"{table.repeated} requests occur more than once and count once")
    return notes


def _notes(frames: RunFrames, ledger: RunLedger, gpus: Sequence[tuple[str, str]], gap_s: float) -> list[str]:
    notes = []
    other = sorted(
        {
            run.run_id
            for run in other_runs(frames.others, frames.run_id)
            for instance, uuid in gpus
            if run.instance == instance and uuid in run.gpus and run.overlaps(ledger.windows[instance])
        }
    )
    if other:
        more = f" and {len(other) - 3} more" if len(other) > 3 else ""
        notes.append(
            f"GPUs also used by {', '.join(other[:3])}{more}: their energy is divided among these requests too"
        )
    if gap_s > 0:
        notes.append(f"{gap_s:.0f} s without samples: their energy is spread evenly over that time")
    if not all(window.ended for window in ledger.windows.values()):
        notes.append("the run has not ended")
    return notes
