"""New runs, of the run API and discovered ones; checks of requests, and lookup of the GPUs, CPUs,
processes and cgroup that they name.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from wattline.contract.api import (
    DEFAULT_LEASE_S,
    MAX_CONTRIBUTORS,
    MAX_LEASE_S,
    MAX_PHASES,
    MAX_PROCESSES,
    MAX_RECENT_PHASES,
    MAX_UNITS,
    RECENT_S,
    Outcome,
    RunGpu,
    unknown_gpu,
)
from wattline_exporter.meter.totals import poll_time_s
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.runs.lifecycle import find_login
from wattline_exporter.runs.marks import Meters, time_text
from wattline_exporter.runs.run_record import Cut, RunRecord
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner
from wattline_exporter.sensors.processes.cgroups import (
    MissingCgroupError,
    is_cgroup_populated,
    resolve_cgroup,
)
from wattline_exporter.sensors.processes.procfs import ProcessKey, find_process, is_process_alive
from wattline_exporter.sensors.readings import ClockReading, Device, RunError

MAX_BEGIN_AGE_S = 10.0
"""Longest time by which the start of a run may lie in the past: the meters keep the polls of 12 s.
"""


@dataclass(frozen=True, slots=True)
class RunStart:
    """Request for a run; the fields are those of `wattline_exporter.web.bodies.BeginRequest`."""

    workload: str
    labels: Mapping[str, str] = field(default_factory=dict)
    gpus: Sequence[str] | None = None
    pids: Sequence[int] = ()
    pid_namespace: int | None = None
    cgroup: str | None = None
    run_id: str | None = None
    lease_seconds: float = DEFAULT_LEASE_S

    @property
    def digest(self) -> str:
        """Digest of all fields, equal for equal requests."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class RunProcesses:
    """Processes for a run, by pid in the PID namespace with this inode, or by their cgroup."""

    pids: Sequence[int] = ()
    pid_namespace: int | None = None
    cgroup: str | None = None


@dataclass(frozen=True, slots=True)
class RunEnd:
    """End of a run, at the Unix time `ended_at`, or now."""

    outcome: Outcome = "ok"
    ended_at: float | None = None
    work: Mapping[str, float] = field(default_factory=dict)
    """Totals of the contributor that ends the run, by unit."""
    results: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DiscoveredRun:
    """A run to begin at `begin_s` (CLOCK_BOOTTIME).

    `gpus`: UUIDs of the GPUs that were assigned to the owner; empty for those that its processes
    use, at first `seen_on`. `processes`: the processes of a user; other owners have a cgroup.
    `shared`: UUIDs of the GPUs that other owners use, too.
    """

    run_id: str
    owner: CgroupOwner
    begin_s: float
    labels: Mapping[str, str]
    gpus: tuple[str, ...] = ()
    seen_on: tuple[str, ...] = ()
    processes: list[ProcessKey] = field(default_factory=list)
    shared: frozenset[str] = frozenset()


def find_gpus(live: LiveState, names: Sequence[str] | None) -> list[Device]:
    """Return GPUs by index or UUID, or by the UUID of a MIG instance; None means all GPUs.

    Raises RunError for one that this node does not have.
    """
    by_name = {gpu.info.index: uuid for uuid, gpu in live.gpus.items()} | {u: u for u in live.gpus}
    by_name |= {instance: uuid for uuid, gpu in live.gpus.items() for instance in gpu.instances()}
    unknown = [name for name in names or () if name not in by_name]
    if unknown:
        available = [f"{g.info.index} ({uuid})" for uuid, g in live.gpus.items()]
        raise RunError(422, f"gpus: {unknown_gpu(unknown[0], available)}")
    chosen = [by_name[name] for name in names] if names else list(live.gpus)
    return [Device("gpu", uuid) for uuid in dict.fromkeys(chosen)]


def assigned_gpus(live: LiveState, names: Sequence[str]) -> list[str]:
    """Return the UUIDs of the GPUs that a scheduler assigned by index or UUID.

    Empty if one is unknown, and for an index with MIG instances, which Slurm numbers instead of the
    GPUs.
    """
    gpus = live.gpus.values()
    by_index = (
        {}
        if any(gpu.instances() for gpu in gpus)
        else {gpu.info.index: gpu.info.uuid for gpu in gpus}
    )
    known = by_index | {gpu.info.uuid: gpu.info.uuid for gpu in gpus}
    return [known[name] for name in names] if all(name in known for name in names) else []


def job_of(request: RunStart) -> CgroupOwner | None:
    """Return the Slurm job whose run the request begins, as a prolog does; its cgroup may not exist
    yet.

    Such a request has the label `discovered=slurm` and the cgroup `slurm:JOB`.
    """
    match = re.fullmatch(r"slurm:(\d+)", request.cgroup or "")
    return (
        CgroupOwner("slurm", match[1], "")
        if match and request.labels.get("discovered") == "slurm"
        else None
    )


def _run_gpu(live: LiveState, uuid: str) -> RunGpu:
    info = live.gpus[uuid].info
    return RunGpu(gpu=info.index, uuid=uuid, name=info.name, architecture=info.architecture)


def _cpu_devices(live: LiveState) -> list[Device]:
    return [device for device in live.energy.polled if device.component in ("cpu", "dram")]


def find_processes(
    pids: Sequence[int],
    namespace: int | None = None,
    find: Callable[[int], ProcessKey | None] = find_process,
) -> list[ProcessKey]:
    """Return the processes with these pids. Raises RunError for one that the exporter cannot see.

    `namespace` is the client's PID namespace, if it is known.
    """
    if pids:
        check_namespace(namespace)
    processes = {pid: find(pid) for pid in pids}
    for pid, process in processes.items():
        if process is None:
            raise RunError(
                422,
                f"pids: the exporter sees no process {pid}; check whether it has another PID "
                "namespace",
            )
    return [process for process in processes.values() if process]


def check_namespace(namespace: int | None) -> None:
    """Raise RunError for pids of another PID namespace than the exporter's, if the client's is
    known.
    """
    if namespace is not None and namespace != _own_namespace():
        raise RunError(
            422,
            "pids: they belong to a PID namespace other than the exporter's, where the same "
            "numbers are other "
            "processes; name the control group instead: WATTLINE_CGROUP=pod:UID, or container:ID",
        )


def _own_namespace() -> int | None:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return None


def merge_processes(
    earlier: list[ProcessKey], new: list[ProcessKey], limit: int = MAX_PROCESSES
) -> list[ProcessKey]:
    """Return the processes of a run with the new ones. Raises RunError where more than `limit` of
    them live.
    """
    merged = list(dict.fromkeys([*earlier, *new]))
    if len(merged) > limit:
        merged = [process for process in merged if is_process_alive(process)]
    if len(merged) > limit:
        raise RunError(
            422,
            f"pids: a run has at most {limit} living processes; name their parent process or their "
            "cgroup",
        )
    return merged


def find_cgroup(name: str | None) -> tuple[str | None, str | None]:
    """Return the path of a cgroup in the hierarchy, or the name of a Slurm job's that has no
    process yet.

    Raises RunError for another one that the exporter cannot see.
    """
    if name is None:
        return None, None
    try:
        path = resolve_cgroup(name)
    except ValueError as error:
        if isinstance(error, MissingCgroupError) and name.startswith("slurm:"):
            return None, name
        raise RunError(422, f"cgroup: {error}") from error
    is_pending = name.startswith("slurm:") and not is_cgroup_populated(path)
    return (None, name) if is_pending else (path, None)


def add_reported_work(
    run: RunRecord,
    contributor: str,
    amounts: Mapping[str, float],
    now_s: float,
    *,
    in_phase: bool = True,
) -> None:
    """Set a contributor's totals at `now_s`. Raises RunError for totals that fall, and beyond the
    limits of a run.
    """
    old = run.contributors.get(contributor, {})
    for unit, amount in amounts.items():
        if amount < old.get(unit, 0.0):
            raise RunError(
                422,
                f"{unit}: {amount:g} is less than the {old[unit]:g} that contributor "
                f"{contributor!r} reported "
                "before; send totals so far, not increments",
            )
    units = {unit for totals in run.contributors.values() for unit in totals} | set(amounts)
    if len(units) > MAX_UNITS:
        raise RunError(422, f"work: a run has at most {MAX_UNITS} units")
    if contributor not in run.contributors and len(run.contributors) >= MAX_CONTRIBUTORS:
        raise RunError(422, f"contributor: a run has at most {MAX_CONTRIBUTORS} contributors")
    if amounts:
        run.add_work(contributor, amounts, now_s, in_phase=in_phase)


def refuse_phase(run: RunRecord, name: str) -> RunError | None:
    """Return the refusal where the run has as many phases as it can have, and none of this name;
    note it.
    """
    names = {phase.name for phase in run.phases} | {cut.phase for cut in run.cuts if cut.phase}
    if name in names or len(names) < MAX_PHASES:
        return None
    run.note(
        f"the run has more than {MAX_PHASES} phases: time and work of the further ones count to no "
        "phase"
    )
    return RunError(
        422, f"name: a run has at most {MAX_PHASES} phases; it has {', '.join(sorted(names))}"
    )


def check_phase_rate(run: RunRecord, now_s: float) -> None:
    """Raise RunError where the run changes its phase too often for any sensor to resolve."""
    if sum(now_s - cut.t_s < RECENT_S for cut in run.cuts[1:]) < MAX_RECENT_PHASES:
        return
    limit = f"{MAX_RECENT_PHASES} times in {RECENT_S:g} s"
    run.note(
        f"the phases are incomplete: the run changed its phase more than {limit}; further changes "
        "were rejected, and "
        "count to the last phase"
    )
    raise RunError(
        429, f"name: a run changes its phase at most {limit}; merge short phases", retry_after_s=1
    )


def discard_after_end(run: RunRecord, meters: Meters, now: ClockReading, ended_at: float) -> float:
    """Return the end of a run that ended at the Unix time `ended_at`, and discard its cuts after
    it.

    Such a cut is of a phase whose request was delayed as well. Where the polls of that time are no
    longer kept, the end is the first instant whose polls are, which a note declares.
    """
    end_s = max(now.s - max(0.0, now.at - ended_at), run.begin_s)
    while len(run.cuts) > 1 and run.cuts[-1].t_s > end_s and not run.cuts[-1].settled:
        del run.cuts[-1]
    end_s = max(end_s, run.cuts[-1].t_s)
    polls = [meter.polls for device in run.measured() if (meter := meters.get(device)) is not None]
    kept_s = max([end_s, *(poll_time_s(kept[0]) for kept in polls if kept.has_discarded(end_s))])
    if kept_s > end_s:
        run.note(
            f"its end at {time_text(ended_at)} was reported {now.s - end_s:.0f} s late, when the "
            "readings of that time "
            f"were no longer kept: the run includes the {kept_s - end_s:.0f} s after it"
        )
    return kept_s


def _generate_run_id() -> str:
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def new_run(
    live: LiveState,
    request: RunStart,
    now: ClockReading,
    find: Callable[[int], ProcessKey | None],
) -> RunRecord:
    """Return the record of a run that begins now. Raises RunError."""
    gpus = find_gpus(live, request.gpus or None)
    cgroup, pending_cgroup = find_cgroup(request.cgroup)
    processes = find_processes(request.pids, request.pid_namespace, find)
    job = job_of(request)
    return RunRecord(
        run_id=request.run_id or _generate_run_id(),
        workload=request.workload,
        labels=dict(request.labels),
        request=request.digest,
        devices=[*gpus, *_cpu_devices(live)],
        gpus={gpu.id: _run_gpu(live, gpu.id) for gpu in gpus},
        discovers=request.gpus is not None and not request.gpus,
        whole_node=request.gpus is None,
        begin_s=now.s,
        started_at=now.at,
        lease_s=request.lease_seconds,
        lease_until_s=now.s + request.lease_seconds,
        alive_s=now.s,
        cgroup=cgroup,
        pending_cgroup=pending_cgroup,
        processes=processes,
        discovered=replace(job, path=cgroup or "") if job else None,
        cuts=[Cut(now.s, None, live.energy.slots_at(now.at))],
    )


def discovered_record(
    live: LiveState,
    found: DiscoveredRun,
    now: ClockReading,
    find: Callable[[int], ProcessKey | None],
) -> RunRecord:
    """Return the record of a discovered run. Raises RunError where the node lacks one of its
    GPUs.
    """
    request = RunStart(
        workload=found.owner.kind,
        labels=dict(found.labels),
        gpus=list(found.gpus),
        run_id=found.run_id,
        lease_seconds=MAX_LEASE_S,
    )
    run = new_run(live, request, now.earlier(max(found.begin_s, now.s - MAX_BEGIN_AGE_S)), find)
    run.discovered = found.owner
    run.cgroup = found.owner.path or None
    run.processes = list(found.processes)
    run.seen_on = list(found.seen_on)
    run.alive_s = now.s
    find_login(run)
    return run
