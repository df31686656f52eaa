"""Energy of a run's GPUs, or of a time range, for the division among requests."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from wattline.contract import metrics as m
from wattline.contract.run import RunDevice
from wattline.figures import short_joules_text, sum_of_one_job
from wattline_analyzer.core.devices import SIMULATED
from wattline_analyzer.core.facts import Fact
from wattline_analyzer.core.fetch import Place, TimeRange
from wattline_analyzer.core.sample_table import last
from wattline_analyzer.core.sources.base import FetchError, SampleSource
from wattline_analyzer.requests.client_runs import AnalyzedRequests, RunRequests
from wattline_analyzer.requests.gpu_energy import (
    RunGpus,
    energy_slots,
    sampled_energy,
    sharing_runs,
)
from wattline_analyzer.requests.loaded_run import LoadedRun, no_samples_error
from wattline_analyzer.requests.notes import (
    RunNotes,
    gap_notes,
    run_notes,
    server_note,
    undivided_notes,
)
from wattline_analyzer.requests.other_work import working_runs
from wattline_analyzer.requests.part import MeasuredPart
from wattline_analyzer.requests.stored import read_divided_seconds
from wattline_analyzer.requests.stored_division import DividedSeconds
from wattline_exporter.requests.division.model import Role
from wattline_exporter.requests.division.spans import EnergySlots

MAX_DIFFERENCE = 0.01
MAX_AGE_S = 0.5
"""Largest difference of the samples from the energy of the run: a ratio, and seconds of its mean
power.
"""

RoleGpus = Mapping[Role, Sequence[str]]
"""Indexes or UUIDs of the GPUs of each role; empty for a server that is not disaggregated."""


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
    divided: DividedSeconds | None = None
    """Energy that the exporter divided among its requests, None if it is divided here."""

    def part(self, part_s: TimeRange | None, client_s: TimeRange | None = None) -> MeasuredPart:
        """Return the energy of the slots that begin in a part of the time, and that overlap with
        that of a client.

        Parts that follow each other therefore add up. Raises FetchError if there is no slot.
        """
        start_s, end_s = part_s or (-math.inf, math.inf)
        joules = 0.0
        idle_j = 0.0
        found = None
        for slots in self.roles.values() or [self.slots]:
            begins_s = slots.edges_s[:-1]
            first, final = np.searchsorted(begins_s, (start_s, end_s)).tolist()
            if client_s is not None:
                first = max(first, int(np.searchsorted(begins_s, client_s[0], side="right")) - 1)
                final = min(final, int(np.searchsorted(begins_s, client_s[1])))
            if final <= first:
                raise no_samples_error(part_s or client_s or (start_s, end_s))
            found = found or (float(slots.edges_s[first]), float(slots.edges_s[final]))
            joules += float(slots.joules[first:final].sum())
            idle_j += float(slots.without_deficits().idle_j[first:final].sum())
        assert found is not None, "a server has GPUs"
        return MeasuredPart(found, joules, idle_j)


def fetch_server_energy(
    source: SampleSource, requests: RunRequests, roles: RoleGpus
) -> ServerEnergy:
    """Return the energy in slots of the GPUs of the run that has the requests, in the time that is
    analyzed.

    Of requests that an exporter has, it is the energy that it divided, else that of samples. The
    runs of its clients hold its GPUs and do no work on them. Raises FetchError with samples too far
    apart.
    """
    run = requests.run
    span_s = requests.time_s
    sharer = requests.server or run.run_id
    gpus = _run_gpus(source, run, sharer, span_s)
    known = {}
    if span_s == run.span_s:
        known = {
            (device.node, device.device_id): device
            for device in run.run.devices
            if (device.node, device.device_id) in run.places
        }
    infos = last(run.recorded.raw, m.GPU_INFO)
    simulated = any(info.labels.get("name", "").startswith(SIMULATED) for info in infos)
    notes: list[str] = []
    divided = None
    if requests.table.energies is not None and not roles:
        divided = read_divided_seconds(source, run.run_id)
        slots = _divided_slots(divided, requests, gpus, known, notes)
    elif roles:
        of_role = _role_places(source.facts((m.GPU_INFO,), {}, *span_s), roles)
        of_run = {
            role: RunGpus(sharer, {place: gpus.others.get(place, frozenset()) for place in places})
            for role, places in of_role.items()
        }
        of_roles = _role_slots(source, of_run, span_s, notes)
        slots = _sum_of(of_roles)
    else:
        measured = sampled_energy(source, gpus, span_s, known=known)
        notes += gap_notes(measured.gaps_s, requests.part_s, requests.client_s)
        notes += _scale_notes(measured.sampled_j, known, span_s)
        slots = energy_slots(measured, notes)
    divided_j = float(slots.joules.sum()) if requests.counted is None and not roles else None
    warnings, of_run_notes = _run_notes(
        source, requests, gpus, divided_j, is_stored=divided is not None
    )
    half_j = None
    if known and not roles and divided_j is not None and not requests.server:
        half_j = _half_j(known.values(), gpus)
    return ServerEnergy(
        slots,
        len(gpus.others),
        (*of_run_notes, *notes),
        simulated,
        of_roles if roles else {},
        tuple(warnings),
        half_j,
        divided,
    )


def _run_gpus(source: SampleSource, run: LoadedRun, sharer: str, span_s: TimeRange) -> RunGpus:
    """Return the GPUs of a run with the other runs that report requests on them."""
    open_s = {
        (each.instance, each.run_id): (each.start_s, each.end_s) for each in run.recorded.others
    }
    open_s |= {
        (instance, run.run_id): (window.start_s, window.end_s)
        for instance, window in run.windows.items()
    }
    others = {
        place: sharing_runs(source, sharer, span_s, open_s, place) - {run.run_id}
        for place in run.places
    }
    return RunGpus(sharer, others)


def _run_notes(
    source: SampleSource,
    requests: RunRequests,
    gpus: RunGpus,
    divided_j: float | None,
    *,
    is_stored: bool,
) -> RunNotes:
    """Return warnings and notes on the run of the requests and on the other runs on its GPUs."""
    run = requests.run
    sharer = requests.server or run.run_id
    beside_s = requests.client_s or requests.part_s or run.span_s
    beside = run.beside(beside_s) - requests.clients - {str(requests.client)}
    beside = working_runs(source, beside, sharer, run.places, beside_s)
    warnings, notes = run_notes(gpus, beside, run.run, divided_j, is_stored=is_stored)
    notes += [server_note(run.run_id)] if requests.client else []
    return RunNotes(warnings, notes)


def _divided_slots(
    divided: DividedSeconds,
    requests: RunRequests,
    gpus: RunGpus,
    known: Mapping[Place, RunDevice],
    notes: list[str],
) -> EnergySlots:
    """Return the slots of the energy that the exporter divided; add notes on the time without it.

    The whole energy of a run is known that shares no GPU.
    """
    whole_j = None
    if known and not gpus.is_shared:
        whole_j = sum(device.energy_j.number for device in known.values())
    slots, gaps_s = divided.slots(requests.time_s, whole_j)
    is_known = whole_j is not None
    notes += undivided_notes(gaps_s, requests.part_s, requests.client_s, is_known=is_known)
    if not slots.idle_known:
        notes.append(
            "idle power unknown: the lowest power is assumed; the half-widths include this energy, "
            "and the energies of prefill and decode are not stated; leave the GPUs without load "
            "for ten seconds, once: their idle power is stored"
        )
    return slots


def _scale_notes(total_j: float, known: Mapping[Place, RunDevice], span_s: TimeRange) -> list[str]:
    """Return a note if the energy of the samples differs from that of the run."""
    run_j = sum(device.energy_j.number for device in known.values())
    most_j = MAX_DIFFERENCE * run_j + MAX_AGE_S * run_j / (span_s[1] - span_s[0])
    if not known or abs(total_j - run_j) <= most_j:
        return []
    sums = f"the samples give {short_joules_text(total_j)}, the run {short_joules_text(run_j)}"
    return [f"{sums}: the energies of the samples are scaled to that of the run"]


def _half_j(devices: Collection[RunDevice], gpus: RunGpus) -> float | None:
    """Return the half-width of the run's energy, None where a part is unknown or divided."""
    if gpus.is_shared:
        return None
    return sum_of_one_job(device.energy_j for device in devices).half_width


def fetch_range_energy(
    source: SampleSource, requests: AnalyzedRequests, gpus: Sequence[str], roles: RoleGpus
) -> ServerEnergy:
    """Return the energy of GPUs in the time that is analyzed, around the part that counts as far as
    there are samples.

    `gpus` are indexes or UUIDs, none for all GPUs in the part. Raises FetchError as
    `fetch_server_energy` does.
    """
    time_s = requests.time_s
    span_s = requests.part_s or requests.time_s
    infos = source.facts((m.GPU_INFO,), {}, *span_s)
    chosen = _chosen(infos, gpus)
    if not chosen:
        raise FetchError(
            "the source has no GPU in the time range", "check --start, --end, --gpus and --source"
        )
    notes: list[str] = []
    simulated = any(one.labels.get("name", "").startswith(SIMULATED) for one in chosen)
    if roles:
        of_role = {
            role: RunGpus.alone(places) for role, places in _role_places(infos, roles).items()
        }
        slots = _role_slots(source, of_role, time_s, notes, within_s=span_s)
        return ServerEnergy(_sum_of(slots), len(chosen), tuple(notes), simulated, slots)
    measured = sampled_energy(source, RunGpus.alone(_places(chosen)), time_s, within_s=span_s)
    notes += gap_notes(measured.gaps_s, span_s)
    slots_of_all = energy_slots(measured, notes)
    return ServerEnergy(slots_of_all, len(chosen), tuple(notes), simulated)


def _places(infos: Sequence[Fact]) -> list[Place]:
    return [(row.instance, row.labels["uuid"]) for row in infos]


def _chosen(infos: Sequence[Fact], gpus: Sequence[str]) -> list[Fact]:
    """Return the GPUs with these indexes or UUIDs. Raises FetchError for an unknown one."""
    for name in gpus:
        if not any(name in (row.labels.get("gpu"), row.labels["uuid"]) for row in infos):
            known = (
                ", ".join(sorted({row.labels.get("gpu", row.labels["uuid"]) for row in infos}))
                or "none"
            )
            raise FetchError(f"GPU {name} is not known", f"known GPUs: {known}")
    return [
        row for row in infos if not gpus or {row.labels.get("gpu"), row.labels["uuid"]} & set(gpus)
    ]


def _role_places(infos: Sequence[Fact], roles: RoleGpus) -> dict[Role, list[Place]]:
    """Return the GPUs of each role, of which a run may have no other ones."""
    return {role: _places(_chosen(infos, names)) for role, names in roles.items()}


def _role_slots(
    source: SampleSource,
    gpus: Mapping[Role, RunGpus],
    time_s: TimeRange,
    notes: list[str],
    within_s: TimeRange | None = None,
) -> dict[Role, EnergySlots]:
    return {
        role: energy_slots(sampled_energy(source, places, time_s, within_s=within_s), notes)
        for role, places in gpus.items()
    }


def _sum_of(slots: Mapping[Role, EnergySlots]) -> EnergySlots:
    """Return one slot with the energy of all roles."""
    edges = next(iter(slots.values())).edges_s[[0, -1]]
    joules = np.array([sum(float(one.joules.sum()) for one in slots.values())])
    is_known = all(one.idle_known for one in slots.values())
    idle_w = sum(float(one.idle_j.sum()) for one in slots.values()) / float(edges[1] - edges[0])
    return EnergySlots(edges, joules, idle_w, idle_known=is_known)
