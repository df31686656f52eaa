"""Setting of GPU power limits and SM clock locks that are restored afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from wattline.client.messages import log_message
from wattline.command_line import user_state_folder
from wattline_workloads.caps import journal as caps_journal
from wattline_workloads.caps.gpu_set import Cap, CapsError, GpuSet
from wattline_workloads.caps.journal import (
    TOLERANCE_W,
    InitialPowerLimit,
    Journal,
    JournalHolder,
    open_journal_gpus,
)
from wattline_workloads.caps.watchdog import ENDS_WITHIN_S, start_caps_watchdog, survival_warning
from wattline_workloads.runner.signals import unwind_on_signal
from wattline_workloads.runner.watchdog import Watchdog

_CLOCK_STEP_HZ = 15e6
_EFFECTIVE_WITHIN_S = 1.0
_POLL_S = 0.05


def check_caps(gpus: GpuSet, caps: Sequence[Cap]) -> None:
    """Check that every GPU supports every cap; `restoring_caps` checks the permission. Raises
    CapsError.
    """
    for uuid in gpus.uuids:
        _check_power_limits(
            gpus, uuid, [cap.value for cap in caps if cap.kind == "power_limit_watts"]
        )
        for cap in caps:
            if cap.kind != "power_limit_watts":
                _check_clock(gpus, uuid, cap.value)


def _check_power_limits(gpus: GpuSet, uuid: str, limits_w: Sequence[float]) -> None:
    if not limits_w:
        return
    power = gpus.power(uuid)
    wrong = [
        f"{watts:g}"
        for watts in sorted(set(limits_w))
        if not power.least_w <= watts <= power.most_w
    ]
    if wrong:
        names = " and ".join([", ".join(wrong[:-1]), wrong[-1]] if len(wrong) > 1 else wrong)
        raise CapsError(
            f"{gpus.name(uuid)} supports power limits of {power.least_w:g} to {power.most_w:g} W, "
            f"not {names} W"
        )


def _check_clock(gpus: GpuSet, uuid: str, hertz: float) -> None:
    clocks = gpus.sm_clocks(uuid)
    if not clocks:
        raise CapsError(
            f"cannot lock the clock of {gpus.name(uuid)}: not supported; use power limits, or "
            "exclude it with --gpus"
        )
    nearest = min(clocks, key=lambda clock: abs(clock - hertz))
    if nearest != hertz:
        raise CapsError(
            f"{gpus.name(uuid)} has no SM clock of {hertz / 1e6:g} MHz; its clocks are "
            f"{clocks[0] / 1e6:g} to "
            f"{clocks[-1] / 1e6:g} MHz, the nearest is {nearest / 1e6:g} MHz"
        )


class CapSetter:
    """Setter of one cap on all GPUs; created by `restoring_caps`."""

    def __init__(self, gpus: GpuSet, journal: Journal, folder: Path, watchdog: Watchdog) -> None:
        self._gpus = gpus
        self._journal = journal
        self._folder = folder
        self._watchdog = watchdog
        self._cap: Cap | None = None

    def apply(self, cap: Cap | None) -> None:
        """Set `cap` on all GPUs and read it back; None restores the initial limits.

        Raises CapsError. If the watchdog has ended or the journal cannot be written, no limit was
        changed. After any other error the initial limits are restored; if that fails too, the exit
        of `restoring_caps` tries again.
        """
        if not self._watchdog.is_running:
            raise CapsError(
                "cannot set a cap: the watchdog process that restores the limits has ended; start "
                "the sweep again"
            )
        limit_w, clock_is_locked = caps_journal.state_under_cap(self._journal, cap)
        self._journal = replace(self._journal, limit_w=limit_w, clock_is_locked=clock_is_locked)
        self._journal.write(self._folder)
        try:
            if cap is None or (self._cap is not None and self._cap.kind != cap.kind):
                self._restore()
            if cap is not None:
                for uuid in self._gpus.uuids:
                    _set(self._gpus, uuid, cap)
        except BaseException:
            with contextlib.suppress(
                CapsError
            ):  # the first error is reported; the exit of `restoring_caps` retries
                self._restore()
            self._cap = None
            raise
        self._cap = cap

    def confirm(self) -> None:
        """Check that the cap is still set, for instance after a run. Raises CapsError."""
        if self._cap is not None:
            for uuid in self._gpus.uuids:
                _confirm(self._gpus, uuid, self._cap)

    def _restore(self) -> None:
        errors = caps_journal.restore_gpus(self._journal, self._gpus)
        if errors:
            raise CapsError("; ".join(errors))


def _set(gpus: GpuSet, uuid: str, cap: Cap) -> None:
    if cap.kind == "power_limit_watts":
        gpus.set_power_limit(uuid, cap.value)
    else:
        gpus.lock_sm_clock(uuid, cap.value)
    give_up_s = time.monotonic() + _EFFECTIVE_WITHIN_S
    while True:
        try:
            _confirm(gpus, uuid, cap)
        except CapsError:
            if time.monotonic() > give_up_s:
                raise
            time.sleep(_POLL_S)
        else:
            return


def _confirm(gpus: GpuSet, uuid: str, cap: Cap) -> None:
    """Check the cap. A locked clock cannot be read back, so only a clock above it is an error."""
    if cap.kind == "sm_clock_hertz":
        now_hz = gpus.sm_clock(uuid)
        if now_hz > cap.value + _CLOCK_STEP_HZ:
            raise CapsError(
                f"{gpus.name(uuid)} runs at {now_hz / 1e6:g} MHz although its clock is locked to "
                f"{cap}; see nvidia-smi"
            )
        return
    for now_w in (gpus.power(uuid).now_w, gpus.enforced_w(uuid)):
        if abs(now_w - cap.value) > TOLERANCE_W:
            raise CapsError(
                f"{gpus.name(uuid)} has a power limit of {now_w:g} W although {cap} was set; "
                "another program or limit "
                "overrides it, see nvidia-smi -q -d POWER"
            )


@contextlib.contextmanager
def restoring_caps(
    gpus: GpuSet, folder: Path | None = None, log: Callable[[str], None] = log_message
) -> Iterator[CapSetter]:
    """Yield a setter of caps; restore the initial limits on exit. Raises CapsError.

    The caps of a killed process are removed first, and the permission to set limits is checked. In
    the main thread of a process without a handler of SIGTERM, the limits are also restored after
    SIGINT, SIGTERM and SIGHUP. If this process is killed, a watchdog process restores them.
    """
    folder = folder or user_state_folder(os.environ) / caps_journal.FOLDER
    is_handled = threading.current_thread() is not threading.main_thread() or (
        signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    )
    with contextlib.nullcontext() if is_handled else unwind_on_signal():
        path, journal = _claim(gpus, folder, log)
        try:
            watchdog = start_caps_watchdog(path, os.environ)
        except BaseException:
            caps_journal.remove_journal(path)
            raise
        warning = survival_warning(watchdog.pid, folder, os.environ)
        if warning:
            log(warning)
        setter = CapSetter(gpus, journal, folder, watchdog)
        try:
            yield setter
        finally:
            if os.getpid() == journal.holder.pid:  # a forked child must not restore
                _leave(path, gpus, watchdog)


def _leave(path: Path, gpus: GpuSet, watchdog: Watchdog) -> None:
    """Restore the limits and end the watchdog, which tries again if this fails."""
    try:
        errors = caps_journal.restore_gpus(caps_journal.read_journal(path), gpus)
        if errors:
            raise CapsError(f"{'; '.join(errors)}; try workloads caps restore")
        caps_journal.remove_journal(path)
    except FileNotFoundError:  # the watchdog was terminated and has restored the limits
        pass
    finally:
        # if the journal still exists, the watchdog restores the limits
        watchdog.report_normal_end()
        watchdog.close(ENDS_WITHIN_S)


def _claim(gpus: GpuSet, folder: Path, log: Callable[[str], None]) -> tuple[Path, Journal]:
    """Check that no running process holds these GPUs, and write the journal; return its path and
    content.
    """
    with caps_journal.lock_journals(folder):
        for path in caps_journal.journal_paths(folder):
            try:
                other = caps_journal.read_journal(path)
            except FileNotFoundError:  # its holder has just ended
                continue
            if other.holder.is_alive:
                _reject_shared(other, gpus)
            elif not caps_journal.restore_journal(
                path, open_journal_gpus, log
            ) and other.shares_gpu(gpus):
                raise CapsError("cannot restore the cap of an earlier sweep; fix the error above")
        initial = tuple(
            InitialPowerLimit(uuid, gpus.name(uuid), gpus.power(uuid).now_w) for uuid in gpus.uuids
        )
        for limit in initial:  # this checks the permission, which clock locks need, too
            gpus.set_power_limit(limit.uuid, limit.power_limit_w)
        journal = Journal(JournalHolder.this_process(), gpus.simulation, initial)
        return journal.write(folder), journal


def _reject_shared(other: Journal, gpus: GpuSet) -> None:
    if other.holder == JournalHolder.this_process():
        raise CapsError(
            "this process already holds caps; leave `restoring_caps` before entering it again"
        )
    if other.shares_gpu(gpus):
        names = ", ".join(limit.name for limit in other.initial_limits)
        raise CapsError(
            f"process {other.holder.pid} holds the power limit of {names}; wait for its end, or "
            "for an ended container "
            "use workloads caps restore --force"
        )
