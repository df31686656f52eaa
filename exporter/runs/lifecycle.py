"""What becomes of a run without a word of its client: where it is seen, when it has died, how it outlives us."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from exporter.attribution import cgroups
from exporter.attribution import procfs as processes
from exporter.energy.emissions import SlotLookup, slots_since
from exporter.energy.plausibility import REASON_TEXTS
from exporter.latest_values import GpuState
from exporter.live_state import Store
from exporter.model import Device, Poll
from exporter.runs import marks as run_marks
from exporter.runs.clock_steps import STEP_S, Moment
from exporter.runs.record import Cut, Marks, RunRecord
from exporter.storage.state_file import Saved

GONE_S = 8.0
"""Processes are gone for good when none was there for so long: a launcher may start the next."""
SILENT_S = 60.0
"""In less time than this no slot of intensity comes and goes."""


def discover(run: RunRecord, gpus: Mapping[str, GpuState], family: Collection[int]) -> None:
    """Adds the GPUs on which one of `family` computes: a process of the run, or a child of one.

    One that came to the node after the run's begin has no mark there, so it cannot be the run's: that is noted.
    """
    for uuid, gpu in gpus.items() if run.discovers or run.whole_node else ():
        is_here = run.whole_node or any(process.pid in family for process in gpu.processes)
        if is_here and f"gpu:{uuid}" not in run.devices:
            run.note(f"gpu {uuid} came after the run's begin: its energy is not counted; begin another run for it")
        elif is_here and uuid not in run.seen_on and run.discovers:
            run.seen_on.append(uuid)


def death(run: RunRecord, now_s: float) -> tuple[float, str] | None:
    """The last moment at which the run was known to live, and why it lives no more; None while it does."""
    if any(map(processes.is_alive, run.processes)) or (run.cgroup and cgroups.is_populated(run.cgroup)):
        run.alive_s = now_s
    if (run.processes or run.cgroup) and now_s - run.alive_s > GONE_S:
        return run.alive_s, "its processes were gone"
    if now_s > run.lease_until_s:
        return run.lease_until_s, "its lease ran out"
    return None


def known_until(run: RunRecord, t_s: float) -> float:
    """Up to when the run is known to live, at `t_s`; one that named no process lives as long as its lease."""
    return min(t_s, run.alive_s) if run.processes or run.cgroup else t_s


def cut_at_slots(run: RunRecord, slots_at: SlotLookup, looked_s: float, until_s: float, until_at: float) -> None:
    """A cut where each slot of intensity ended since the last look, and where what is known of it has changed.

    Not beyond the last moment at which the run was known to live: that may become its end.
    """
    last = run.cuts[-1]
    from_s = max(looked_s, last.t_s)
    if until_s < from_s or (until_s - from_s < SILENT_S and slots_at(until_at) == last.slots):
        return
    for begin_at, slots in slots_since(slots_at, until_at, until_s - from_s):
        if slots != run.cuts[-1].slots:
            at_s = max(from_s, until_s - (until_at - begin_at)) if run.cuts[-1].slots else until_s
            run.cuts.append(Cut(at_s, last.phase, slots))


def follow_wall(run: RunRecord, stepped_s: float, slept_s: float) -> None:
    """The wall clock was set by `stepped_s`, or the machine slept for `slept_s` and no one could renew a lease."""
    run.started_at += stepped_s
    for phase in run.phases:
        phase.started_at += stepped_s
    run.lease_until_s += slept_s
    run.alive_s += slept_s


def note_doubts(run: RunRecord, store: Store) -> None:
    """Why a figure of the run is not to be taken as a measurement."""
    for uuid, gpu in store.gpus.items():
        if gpu.check.reasons and Device("gpu", uuid) in run.measured():
            for reason in gpu.check.reasons:
                run.note(f"gpu {uuid}: {REASON_TEXTS[reason]}")
    for package in store.modelled_packages():
        run.note(f"package {package}: its energy is estimated from utilization (--cpu.power-model), not measured")


def note_power(run: RunRecord, poll: Poll) -> None:
    power_w = poll.display_w
    is_on = run.begin_s <= poll.after_s and (run.end_s is None or poll.after_s <= run.end_s)
    if power_w is not None and is_on and power_w > run.power_max_w.get(poll.device.id, 0.0):
        run.power_max_w[poll.device.id] = power_w


def take_up(run: RunRecord, saved: Saved, left: Marks, now: Moment) -> None:
    """The run goes on under another exporter. `left` are the marks at the end of the one before."""
    _stand(run, left)
    away_s = max(0.0, now.s - saved.saved_s)
    stepped_s = now.at - saved.saved_at - away_s
    if abs(stepped_s) > STEP_S:
        run.started_at += stepped_s
    run.lease_until_s += away_s  # no one could renew it
    run.note(
        f"the exporter was not running for {away_s:.1f} s from {_moment(saved.saved_at)}: power was not seen; "
        "energy counters bridge that time, and what none bridges widens the interval"
    )


def cut_off(run: RunRecord, saved: Saved, left: Marks) -> None:
    """The machine was started anew, and so ended the run."""
    _stand(run, left)
    run.note(f"the machine was started anew; the run ended when it was last seen, {_moment(saved.saved_at)}")
    run.end_s, run.ended_at, run.outcome = saved.saved_s, saved.saved_at, "interrupted"
    run.final = left
    run_marks.close(run)


def end_late(run: RunRecord, left: Marks) -> None:
    """The exporter was killed between the run's end and its last marks, less than a second later."""
    _stand(run, left)
    run.note("the exporter was killed while the run ended: its energy is as last saved, at most a second off")
    run.final = left
    run_marks.close(run)


def _stand(run: RunRecord, left: Marks) -> None:
    """The marks stand as they are: the polls that could make them better are gone."""
    run.begin = run.begin or left
    run.begin_settled = True
    for cut in run.cuts:
        cut.marks, cut.settled = cut.marks or left, True


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
