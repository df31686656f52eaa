"""Energy of a run's GPUs between two samples, for the division among requests."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType

import numpy as np

from analyzer.model.devices import SIMULATED
from analyzer.model.ledger import LedgerDevice
from analyzer.model.sample_table import Row, last, samples
from analyzer.model.samples import GAP_FACTOR, FloatArray, Samples
from analyzer.model.time_text import local_time
from analyzer.model.timeline import other_runs
from analyzer.sources.base import FetchError, SampleSource
from analyzer.sources.fetch import Place, SeriesRequest, TimeRange, fetch
from analyzer.sources.requests.loaded_run import LoadedRun
from analyzer.sources.requests.notes import gap_notes, joules_text, run_notes
from analyzer.sources.requests.shares import OwnEnergy, RunsOnGpu, fetch_runs_on_gpu
from exporter.contract import metrics as m
from exporter.request_energy.divide import Role
from exporter.request_energy.load import quotient
from exporter.request_energy.spans import EnergySlots

MAX_SLOT_S = 2.0
"""Widest slot: the intervals of the division were checked with updates of 0.1 to 1 s."""
MAX_DIFFERENCE, MAX_AGE_S = 0.01, 0.5
"""Largest difference of the samples from the energy of the run: a ratio, and seconds of its mean power."""
SENSOR_AGE_S = 0.1
"""Longest usual age of a sample: counters are updated every 20 to 100 ms."""
_LOW_PERCENTILE = 1.0


RoleGpus = Mapping[Role, Sequence[str]]
"""Indexes or UUIDs of the GPUs of each role; empty for a server that is not disaggregated."""
_NO_LEDGER: Mapping[Place, LedgerDevice] = MappingProxyType({})
GpuRuns = Mapping[Place, RunsOnGpu | None]
"""GPUs with the runs among which their energy is divided; None for a GPU of which all energy counts."""


@dataclass(frozen=True, slots=True)
class ServerEnergy:
    """Energy of a server's GPUs during a run, with notes for the user."""

    slots: EnergySlots
    gpus: int
    notes: tuple[str, ...]
    simulated: bool
    roles: Mapping[Role, EnergySlots] = field(default_factory=dict)
    """Energy of the GPUs of each role of a disaggregated server."""
    warnings: tuple[str, ...] = ()
    half_j: float | None = None
    """Half-width of the energy of all slots, as far as it is known."""

    def between(self, start_s: float, end_s: float) -> ServerEnergy:
        """Return the energy of the slots in a part of the time. Raises FetchError if there is none."""
        slots = _between(self.slots, start_s, end_s)
        roles = {role: _between(each, start_s, end_s) for role, each in self.roles.items()}
        if roles:
            slots = _sum_of(roles)
        first_s, last_s = slots.edges_s[[0, -1]].tolist()
        span = f"{local_time(first_s)} to {local_time(last_s)}"
        note = f"a part of the run of {last_s - first_s:.0f} s counts: {span}"
        return replace(self, slots=slots, roles=roles, notes=(note, *self.notes), half_j=None)


def _span_text(start_s: float, end_s: float) -> str:
    """Return a time range, also without a start."""
    start = "its start" if math.isinf(start_s) else local_time(start_s)
    return f"the time from {start} to {local_time(end_s)}"


def _between(slots: EnergySlots, start_s: float, end_s: float) -> EnergySlots:
    first, last = np.searchsorted(slots.edges_s, start_s), np.searchsorted(slots.edges_s, end_s, side="right")
    if last - first < 2:  # edges of a slot
        raise FetchError(
            f"no samples of the run are in {_span_text(start_s, end_s)}",
            "check --start and --end; see: analyzer runs",
        )
    chosen = slice(first, last - 1)
    half_j = slots.edge_half_j
    return replace(
        slots,
        edges_s=slots.edges_s[first:last],
        joules=slots.joules[chosen],
        idle_w=slots.idle_w if isinstance(slots.idle_w, float) else slots.idle_w[chosen],
        edge_half_j=None if half_j is None else half_j[first:last],
    )


def fetch_server_energy(
    source: SampleSource,
    run: LoadedRun,
    roles: RoleGpus,
    reporter: str | None = None,
    clients: Collection[str] = (),
) -> ServerEnergy:
    """Return the energy of the run's GPUs in slots; of the run `reporter` on these GPUs, if that has the requests.

    The runs of `clients` hold its GPUs and do no work on them. Raises FetchError with samples too
    far apart.
    """
    run_id, frames, ledger, places = run.run_id, run.frames, run.ledger, run.places
    start_s, end_s = run.span_s
    open_s = {(run.instance, run.run_id): (run.start_s, run.end_s) for run in other_runs(frames.others, run_id)}
    open_s |= {(instance, run_id): (window.start_s, window.end_s) for instance, window in ledger.windows.items()}
    runs_on = partial(fetch_runs_on_gpu, source, reporter or run_id, (start_s, end_s), open_s)
    gpus = {place: runs_on(place) for place in places}
    known = {(one.instance, one.device): one for one in ledger.devices if one.component == "gpu"}
    measured = _measured(source, gpus, (start_s, end_s), f"run {run_id}", known=known)
    beside, divided_j = run.beside - set(clients), float(measured.joules.sum())
    warnings, notes = run_notes(gpus, beside, ledger, reporter or run_id, divided_j)
    notes += gap_notes(measured.gap_s)
    run_j, total_j = sum(one.energy_j for one in known.values()), measured.sampled_j
    if abs(total_j - run_j) > MAX_DIFFERENCE * run_j + MAX_AGE_S * run_j / (end_s - start_s):
        sums = f"the samples give {joules_text(total_j)}, the run {joules_text(run_j)}"
        notes.append(f"{sums}: the energies of the samples are scaled to that of the run")
    names = [row.labels.get("name", "") for row in last(frames.raw, m.GPU_INFO)]
    simulated = any(one.startswith(SIMULATED) for one in names)
    if roles:
        of_role = _role_places(_gpu_infos(source, (start_s, end_s)), roles)
        of_run = {role: {place: runs_on(place) for place in places} for role, places in of_role.items()}
        slots = _role_slots(source, of_run, (start_s, end_s), notes)
        return ServerEnergy(_sum_of(slots), len(gpus), tuple(notes), simulated, slots, tuple(warnings))
    slots_of_run = _energy_slots(measured, notes)
    half_j = None if reporter else _half_j(known.values(), gpus)
    return ServerEnergy(slots_of_run, len(gpus), tuple(notes), simulated, {}, tuple(warnings), half_j)


def _half_j(devices: Collection[LedgerDevice], gpus: GpuRuns) -> float | None:
    """Return the half-width of the run's energy, None where a part is unknown or divided."""
    halves_j = [one.half_j for one in devices]
    known_j = [each for each in halves_j if each is not None]
    return sum(known_j) if len(known_j) == len(halves_j) and not any(gpus.values()) else None


def fetch_range_energy(
    source: SampleSource, span_s: tuple[float, float], gpus: Sequence[str], roles: RoleGpus
) -> ServerEnergy:
    """Return the energy of GPUs in a time range; `gpus` are indexes or UUIDs, none for all.

    Raises FetchError as `fetch_server_energy` does.
    """
    infos = _gpu_infos(source, span_s)
    chosen = _chosen(infos, gpus)
    if not chosen:
        raise FetchError("the source has no GPU in the time range", "check --start, --end, --gpus and --source")
    notes: list[str] = []
    simulated = any(one.labels.get("name", "").startswith(SIMULATED) for one in chosen)
    if roles:
        of_role = {role: dict.fromkeys(places) for role, places in _role_places(infos, roles).items()}
        slots = _role_slots(source, of_role, span_s, notes)
        return ServerEnergy(_sum_of(slots), len(chosen), tuple(notes), simulated, slots)
    measured = _measured(source, dict.fromkeys(_places(chosen)), span_s, "time range")
    notes += gap_notes(measured.gap_s)
    slots_of_all = _energy_slots(measured, notes)
    return ServerEnergy(slots_of_all, len(chosen), tuple(notes), simulated)


def _gpu_infos(source: SampleSource, span_s: tuple[float, float]) -> list[Row]:
    return last(fetch(source, SeriesRequest((m.GPU_INFO,), {}, span_s)), m.GPU_INFO)


def _places(infos: Sequence[Row]) -> list[Place]:
    return [(row.instance, row.labels["uuid"]) for row in infos]


def _chosen(infos: Sequence[Row], gpus: Sequence[str]) -> list[Row]:
    """Return the GPUs with these indexes or UUIDs. Raises FetchError for an unknown one."""
    for name in gpus:
        if not any(name in (row.labels.get("gpu"), row.labels["uuid"]) for row in infos):
            known = ", ".join(sorted({row.labels.get("gpu", row.labels["uuid"]) for row in infos})) or "none"
            raise FetchError(f"GPU {name} is not known", f"known GPUs: {known}")
    return [row for row in infos if not gpus or {row.labels.get("gpu"), row.labels["uuid"]} & set(gpus)]


def _role_places(infos: Sequence[Row], roles: RoleGpus) -> dict[Role, list[Place]]:
    """Return the GPUs of each role, of which a run may have no other ones."""
    return {role: _places(_chosen(infos, names)) for role, names in roles.items()}


def _role_slots(
    source: SampleSource, gpus: Mapping[Role, GpuRuns], span_s: TimeRange, notes: list[str]
) -> dict[Role, EnergySlots]:
    return {
        role: _energy_slots(_measured(source, places, span_s, f"role {role}"), notes) for role, places in gpus.items()
    }


def _sum_of(slots: Mapping[Role, EnergySlots]) -> EnergySlots:
    """Return one slot with the energy of all roles."""
    edges = next(iter(slots.values())).edges_s[[0, -1]]
    joules = np.array([sum(float(one.joules.sum()) for one in slots.values())])
    is_known = all(one.idle_known for one in slots.values())
    idle_w = sum(float(one.idle_j.sum()) for one in slots.values()) / float(edges[1] - edges[0])
    return EnergySlots(edges, joules, idle_w, idle_known=is_known)


@dataclass(frozen=True, slots=True)
class _Measured:
    """Energy of GPUs between samples, or a run's part; `idle_w` has the power of those whose idle power is known."""

    edges_s: FloatArray
    joules: FloatArray
    sampled_j: float
    """Energy of the whole GPUs by the samples."""
    gap_s: float
    gpus: int
    idle_w: tuple[FloatArray, ...]


def _measured(
    source: SampleSource,
    gpus: GpuRuns,
    span_s: TimeRange,
    what: str,
    *,
    known: Mapping[Place, LedgerDevice] = _NO_LEDGER,
) -> _Measured:
    """Return the energy of GPUs, scaled to the `known` energies of a run."""
    start_s, end_s = span_s
    counters: dict[Place, Samples] = {}
    idle_of: dict[Place, float] = {}
    for instance in sorted({instance for instance, _ in gpus}):
        where = {"instance": instance} if instance else {}
        raw = fetch(
            source, SeriesRequest((m.GPU_ENERGY, m.IDLE_POWER), where, (start_s - MAX_SLOT_S, end_s + MAX_SLOT_S))
        )
        for place in sorted(place for place in gpus if place[0] == instance):
            counters[place] = samples(raw, m.GPU_ENERGY, uuid=place[1], **where)
            for row in last(raw, m.IDLE_POWER, component="gpu", device=place[1], **where):
                idle_of[place] = row.value
    edges_s, gap_s = _edges(list(counters.values()), start_s, end_s, what)
    joules, idle_w, sampled_j = np.zeros(len(edges_s) - 1), [], 0.0
    for place, counter in counters.items():
        if runs := gpus[place]:
            own = runs.own_energy(counter, edges_s)
        else:
            all_j = np.diff(np.interp(edges_s, counter.t, counter.value))
            own = OwnEnergy(all_j, all_j, np.ones(len(all_j)))
        # a slot without samples has no energy yet, and then the part of idle power
        part = np.where(own.whole_j > 0.0, quotient(own.joules, own.whole_j), own.idle_ratio)
        sampled_j += float(own.whole_j.sum())
        joules += part * (_with_total(own.whole_j, one.energy_j) if (one := known.get(place)) else own.whole_j)
        if place in idle_of:
            idle_w.append(idle_of[place] * own.idle_ratio)
    return _Measured(edges_s, joules, sampled_j, gap_s, len(gpus), tuple(idle_w))


def _energy_slots(measured: _Measured, notes: list[str]) -> EnergySlots:
    """Return the slots with the idle power, and add a note if it is assumed."""
    idle_w: float | FloatArray = np.sum(measured.idle_w, axis=0)
    if len(measured.idle_w) < measured.gpus:
        idle_w = float(np.percentile(measured.joules / np.diff(measured.edges_s), _LOW_PERCENTILE))
        notes.append(
            f"idle power unknown: {idle_w:.0f} W are assumed, the lowest of the time; the half-widths include this "
            "energy, and the energies of prefill and decode are not stated"
        )
    is_known = len(measured.idle_w) == measured.gpus
    return EnergySlots.of_samples(measured.edges_s, measured.joules, idle_w, SENSOR_AGE_S, idle_known=is_known)


def _edges(counters: Sequence[Samples], start_s: float, end_s: float, what: str) -> tuple[FloatArray, float]:
    """Return the edges of the slots, and the seconds in gaps."""
    if any(len(one) < 2 for one in counters):
        raise FetchError(f"{what}: a GPU has no energy samples at this source", "use the source that measured the run")
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
    return edges_s, float(widths_s[widths_s > GAP_FACTOR * usual_s].sum())


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
