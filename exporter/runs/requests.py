"""What a request names, found on this node: GPUs, CPUs, processes, a cgroup."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path

from exporter.attribution import cgroups
from exporter.attribution.procfs import Process, find, is_alive
from exporter.contract.run import MAX_CONTRIBUTORS, MAX_PROCESSES, MAX_RECENT_PHASES, MAX_UNITS, RECENT_S, RunGpu
from exporter.live_state import Store
from exporter.model import Device
from exporter.runs.record import RunRecord


class LedgerError(Exception):
    """What was asked cannot be done. `status` is the HTTP status that says so."""

    def __init__(self, status: int, detail: str, retry_after_s: int | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.retry_after_s = retry_after_s


def gpus(store: Store, wanted: list[str] | None) -> list[Device]:
    """GPUs by index or UUID, or by that of a MIG instance, whose energy is its GPU's; None is all of them.

    Raises LedgerError for one that this node does not have.
    """
    by_name = {gpu.info.index: uuid for uuid, gpu in store.gpus.items()} | {u: u for u in store.gpus}
    by_name |= {instance: uuid for uuid, gpu in store.gpus.items() for instance in gpu.instances()}
    unknown = [name for name in wanted or () if name not in by_name]
    if unknown:
        known = ", ".join(f"{g.info.index} ({uuid})" for uuid, g in store.gpus.items()) or "none"
        raise LedgerError(422, f"gpus: no GPU {unknown[0]!r} on this node; it has: {known}")
    chosen = [by_name[name] for name in wanted] if wanted else list(store.gpus)
    return [Device("gpu", uuid) for uuid in dict.fromkeys(chosen)]


def introduced(store: Store, uuid: str) -> RunGpu:
    info = store.gpus[uuid].info
    return RunGpu(gpu=info.index, uuid=uuid, name=info.name)


def cpus(store: Store) -> list[Device]:
    return [device for device in store.seen if device.component in ("cpu", "dram")]


def processes(pids: list[int], namespace: int | None = None) -> list[Process]:
    """Those that are there. Raises LedgerError for a process that the exporter cannot see.

    `namespace` is the one in which the numbers are meant, where that is known.
    """
    if pids and namespace is not None and namespace != _own_namespace():
        raise LedgerError(
            422,
            "pids: they are of another PID namespace than the exporter's, where the same numbers are other processes; "
            "name the control group: WATTLINE_CGROUP=pod:UID, or container:ID",
        )
    found = {pid: find(pid) for pid in pids}
    for pid, process in found.items():
        if process is None:
            raise LedgerError(422, f"pids: the exporter sees no process {pid}; does it run in another PID namespace?")
    return [process for process in found.values() if process]


def _own_namespace() -> int | None:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return None


def joined(known: list[Process], own: list[Process], most: int = MAX_PROCESSES) -> list[Process]:
    """The processes of a run that gets more of them. Raises LedgerError where more than `most` live at once."""
    every = list(dict.fromkeys([*known, *own]))
    if len(every) > most:
        every = [process for process in every if is_alive(process)]
    if len(every) > most:
        raise LedgerError(422, f"pids: a run names at most {most} living processes; name their parent, or its cgroup")
    return every


def cgroup(wanted: str | None) -> str | None:
    """The path of a cgroup below the hierarchy. Raises LedgerError for one that the exporter cannot see."""
    if wanted is None:
        return None
    try:
        return cgroups.resolve(wanted)
    except ValueError as error:
        raise LedgerError(422, f"cgroup: {error}") from error


def add_work(run: RunRecord, contributor: str, amounts: dict[str, float], *, in_phase: bool = True) -> None:
    old = run.contributors.get(contributor, {})
    for unit, amount in amounts.items():
        if amount < old.get(unit, 0.0):
            raise LedgerError(
                422,
                f"{unit}: {amount:g} is less than the {old[unit]:g} that contributor {contributor!r} reported "
                "before; send totals so far, not increments",
            )
    units = {unit for known in run.contributors.values() for unit in known} | set(amounts)
    if len(units) > MAX_UNITS:
        raise LedgerError(422, f"work: more than {MAX_UNITS} units in one run")
    if contributor not in run.contributors and len(run.contributors) >= MAX_CONTRIBUTORS:
        raise LedgerError(422, f"contributor: more than {MAX_CONTRIBUTORS} in one run")
    if amounts:
        run.add_work(contributor, amounts, in_phase=in_phase)


def refuse_hasty_phase(run: RunRecord, now_s: float) -> None:
    """Raises LedgerError where the run changes its phase too often: no sensor would tell such phases apart."""
    if sum(now_s - cut.t_s < RECENT_S for cut in run.cuts[1:]) < MAX_RECENT_PHASES:
        return
    most = f"{MAX_RECENT_PHASES} times in {RECENT_S:g} s"
    run.note(f"it changed its phase more than {most}: what came beyond was refused and counts to the phase before")
    raise LedgerError(429, f"name: a run changes its phase at most {most}; join short phases", retry_after_s=1)


def new_run_id() -> str:
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
