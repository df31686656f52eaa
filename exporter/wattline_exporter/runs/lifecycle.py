"""Life of a run: death of its processes, expiry of its lease, GPUs found later, clock steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping

from wattline.contract.api import ESTIMATED_PACKAGE
from wattline_exporter.meter.emissions import SlotLookup, slots_since
from wattline_exporter.meter.plausibility import REASON_TEXTS
from wattline_exporter.polling.health import GpuHealth
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.polling.meters import PowerSample
from wattline_exporter.runs.run_record import Cut, RunRecord
from wattline_exporter.sensors.processes.cgroups import is_cgroup_populated, pids_in_cgroup
from wattline_exporter.sensors.processes.exits import ProcessExits
from wattline_exporter.sensors.processes.procfs import (
    ProcessKey,
    is_process_alive,
    login_name,
    process_user,
)
from wattline_exporter.sensors.readings import ClockReading, Device

STEP_S = 1.0
"""Smallest change of the wall clock that counts as a step; less is drift."""
GONE_S = 8.0
"""Time without any process after which a run ends. A launcher may start the next process earlier.
"""
DISCOVERED_GONE_S = 10.0
"""The same for a discovered run. The discovery ends it earlier, at the exact time, unless it was
switched off.

It is shorter than the 12 s for which the meters keep their polls, so that the energy at the end is
known.
"""
EXIT_SEEN_S = 1.5
"""Longest time from the last scan of a process to its exit that ends the run at the exit. A later
exit means that the exporter was paused.
"""
EMPTY_SEEN_S = 1.0
"""Time between two scans of the processes of a run."""
UNKNOWN_S = 10.0
"""Longest wait for an unknown carbon intensity: the meters keep the polls of 12 s."""
MIN_SLOT_S = 60.0
"""Shortest slot of carbon intensity; a shorter period contains at most one change."""


class ClockSteps:
    """Detector of wall clock steps and system sleep. `read_s`: time of the last reading
    (CLOCK_BOOTTIME).
    """

    def __init__(self) -> None:
        self.read_s = -math.inf
        self._last: ClockReading | None = None

    def take(self, reading: ClockReading) -> tuple[float, float]:
        """Return the wall clock's step and the seconds of sleep since the last reading; 0 for
        none.
        """
        last = self._last
        self._last = reading
        self.read_s = reading.s
        if last is None:
            return 0.0, 0.0
        elapsed_s = reading.s - last.s
        step_s = reading.at - last.at - elapsed_s
        sleep_s = elapsed_s - (reading.awake_s - last.awake_s)
        return step_s if abs(step_s) > STEP_S else 0.0, sleep_s if sleep_s > STEP_S else 0.0


def discover_gpus(
    run: RunRecord, gpus: Mapping[str, GpuHealth], pids: Collection[int]
) -> list[Device]:
    """Add the GPUs that one of the run's processes `pids` uses; return the new ones that no other
    process uses.

    A GPU that appeared after the run's start has no mark at the start: a note names it, and its
    energy is not counted.
    """
    alone = []
    for uuid, gpu in gpus.items() if run.discovers or run.whole_node else ():
        is_here = run.whole_node or any(process.pid in pids for process in gpu.processes)
        if is_here and Device("gpu", uuid) not in run.devices:
            run.note(
                f"gpu {uuid}: appeared after the run's start; its energy is not counted; begin "
                "another run for it"
            )
        elif is_here and uuid not in run.seen_on and run.discovers:
            run.seen_on.append(uuid)
            if all(process.pid in pids for process in gpu.processes):
                alone.append(Device("gpu", uuid))
    return alone


def find_login(run: RunRecord) -> None:
    """Set the login name of the user of the run's processes, where it has processes and no label
    names its owner.
    """
    if run.login or run.labels.get("user") or run.labels.get("namespace"):
        return
    if run.discovered and run.discovered.kind == "user":
        run.login = login_name(int(run.discovered.id))
    elif run.processes or run.cgroup:
        pids = [process.pid for process in run.processes] or sorted(
            pids_in_cgroup(run.cgroup or "")
        )
        run.login = next(filter(None, map(process_user, pids)), "")


def has_living_process(run: RunRecord) -> bool:
    return any(map(is_process_alive, run.processes)) or bool(
        run.cgroup and is_cgroup_populated(run.cgroup)
    )


def became_empty_s(run: RunRecord, now_s: float) -> float | None:
    """Return when the job, pod or container of a run lost its last process, to a second; None if it
    has one.
    """
    if not run.discovered or not run.cgroup or is_cgroup_populated(run.cgroup):
        return None
    return min(now_s, run.alive_s + EMPTY_SEEN_S)


def find_death(
    run: RunRecord, now_s: float, is_alive: Callable[[RunRecord], bool] = has_living_process
) -> tuple[float, str] | None:
    """Return the end of a run whose processes or lease have ended, and the reason; None while the
    run is alive.
    """
    has_processes = bool(run.processes or run.cgroup)
    if is_alive(run) and not _is_ended_pod(run):
        note_alive(run, now_s)
    elif has_processes and run.end_until_s is None:
        run.end_until_s = now_s
    watched_s = max(run.alive_s, run.unwatched[1] if run.unwatched else run.alive_s)
    if has_processes and now_s - watched_s > (DISCOVERED_GONE_S if run.discovered else GONE_S):
        return run.alive_s, "its processes were gone"
    if now_s > run.lease_until_s:
        if has_processes and run.alive_s < run.lease_until_s:
            return run.alive_s, "its processes were gone when its lease ran out"
        if has_processes:
            return run.lease_until_s, (
                f"its lease ran out {run.lease_s:.0f} s after its last report, with living "
                "processes: it may have "
                "ended earlier; the uncertainty includes the energy since that report"
            )
        unheard_s = run.lease_until_s - run.alive_s
        return run.lease_until_s, (
            f"its lease ran out {unheard_s:.0f} s after its last report: it may have ended "
            "earlier; "
            "its energy is that until the lease ran out, and the uncertainty includes the time "
            "since that report"
        )
    return None


def _is_ended_pod(run: RunRecord) -> bool:
    """Return True for a pod whose containers have ended, as its discovery noted; its pause process
    may live.
    """
    return (
        run.discovered is not None
        and run.discovered.kind == "kubernetes"
        and run.end_until_s is not None
    )


def note_alive(run: RunRecord, now_s: float) -> None:
    run.alive_s = now_s
    run.end_until_s = None
    if not (
        run.discovered and run.discovered.kind == "kubernetes"
    ):  # a pod's containers end before its cgroup
        run.unwatched = None


def note_exits(run: RunRecord, exited_s: Mapping[ProcessKey, float]) -> None:
    """Note when the last process of a run ended, if all of them have; `exited_s` has the times that
    are known.
    """
    if (
        run.discovered
        or run.cgroup
        or not run.processes
        or not exited_s.keys() >= set(run.processes)
    ):
        return
    last_s = max(exited_s[process] for process in run.processes)
    if run.end_until_s is None and last_s >= run.alive_s:
        run.end_until_s = last_s
        run.alive_s = last_s if last_s - run.alive_s <= EXIT_SEEN_S else run.alive_s


def watch_exits(runs: Iterable[RunRecord], exits: ProcessExits) -> None:
    """Note the exits of the runs' processes since the last call, and watch the others."""
    known_s = exits.exact_s
    watched = [run for run in runs if not run.discovered]
    for run in watched:
        note_exits(run, known_s)
    exits.watch({process for run in watched for process in run.processes})


def end_if_dead(run: RunRecord, now: ClockReading, is_alive: Callable[[RunRecord], bool]) -> bool:
    """End a run whose processes have ended, at their last scan, or whose lease has expired, at its
    expiry.
    """
    death = find_death(run, now.s, is_alive)
    if death is None:
        return False
    run.end_s, reason = death
    if run.unwatched and run.end_until_s is None:
        run.end_until_s = now.s
    run.ended_at = now.at - (now.s - run.end_s)
    run.outcome = "unknown" if run.discovered else "interrupted"
    if not run.discovered:
        run.note(reason)
    return True


def cut_at_slots(run: RunRecord, slots_at: SlotLookup, from_s: float, now: ClockReading) -> None:
    """Add a cut at each change of the carbon intensity since `from_s`.

    The last one is at the last instant at which the run is known to be alive, which may become its
    end.
    """
    until_s = run.known_alive_until(now.s)
    until_at = now.at - (now.s - until_s)
    last = run.cuts[-1]
    from_s = max(from_s, last.t_s)
    if until_s < from_s or (until_s - from_s < MIN_SLOT_S and slots_at(until_at) == last.slots):
        return
    for begin_at, slots in slots_since(slots_at, until_at, until_s - from_s):
        if slots != run.cuts[-1].slots:
            at_s = max(from_s, until_s - (until_at - begin_at)) if run.cuts[-1].slots else until_s
            run.cuts.append(Cut(at_s, last.phase, slots))


class SlotProgress:
    """Instant up to which the runs have their cuts at changes of the carbon intensity.

    After a start of the exporter, the intensity is unknown until a provider has answered. Until
    then, at most for UNKNOWN_S, no cut is made, and later the cuts of that time are added.
    """

    def __init__(self) -> None:
        self._done_s = -math.inf
        self._unknown_s: float | None = None

    def advance(
        self, runs: Iterable[RunRecord], slots_at: SlotLookup, now: ClockReading
    ) -> float | None:
        """Return the instant from which to add cuts up to now; None while the intensity is
        unknown.
        """
        now_s = now.s
        if slots_at(now.at) or not any(run.running and run.cuts[-1].slots for run in runs):
            self._unknown_s = None
        elif self._unknown_s is None:
            self._unknown_s = now_s
        if self._unknown_s is not None and now_s - self._unknown_s < UNKNOWN_S:
            return None
        from_s = self._done_s
        self._done_s = now_s
        return from_s


def adjust_to_clock(run: RunRecord, step_s: float, sleep_s: float) -> None:
    """Move the run's Unix times by a wall clock step; extend its lease by the time of a system
    sleep.
    """
    run.started_at += step_s
    if run.work_reported_at is not None:
        run.work_reported_at += step_s
    for phase in run.phases:
        phase.started_at += step_s
        if phase.entered_at is not None and phase.until_at is not None:
            phase.entered_at += step_s
            phase.until_at += step_s
    run.lease_until_s += sleep_s
    run.alive_s += sleep_s


def note_doubts(run: RunRecord, live: LiveState, now_s: float | None = None) -> None:
    """Note devices of the run whose figures are unreliable or estimated; with `now_s`, check them
    again first.
    """
    if now_s is not None:
        live.check_energies(now_s)
    for uuid, gpu in live.gpus.items():
        if gpu.check.reasons and Device("gpu", uuid) in run.measured():
            for reason in gpu.check.reasons:
                run.note(f"gpu {uuid}: {REASON_TEXTS[reason]}")
    for package in live.modelled_packages():
        run.note(ESTIMATED_PACKAGE.format(package))


def note_power(run: RunRecord, samples: Iterable[PowerSample]) -> None:
    """Update the maximum power of each of the run's GPUs with the samples within the run."""
    own = {device.id for device in run.devices if device.kind == "gpu"}
    highest_w = run.power_max_w
    for device_id, t_s, power_w in samples:
        if power_w <= highest_w.get(device_id, 0.0) or device_id not in own:
            continue
        if run.begin_s <= t_s and (run.end_s is None or t_s <= run.end_s):
            highest_w[device_id] = power_w
