"""Power limits and clock locks under which runs are made, and which always come off again."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from exporter.contract.state_folder import user_state_folder
from workloads.caps import guardian
from workloads.caps import journal as caps_journal
from workloads.caps.gpu_set import Cap, CapsError, GpuSet
from workloads.caps.guardian import Guardian
from workloads.caps.journal import TOLERANCE_W, Holder, InitialPowerLimit, Journal
from workloads.caps.open_gpus import open_journal_gpus
from workloads.client.messages import log_message
from workloads.runner.signals import unwind_on_signal

_CLOCK_STEP_HZ = 15e6
_STANDS_WITHIN_S = 1.0
_POLL_S = 0.05


def check_caps(cards: GpuSet, caps: Sequence[Cap]) -> None:
    """Whether every card takes every cap; whether from this user, `restoring` tries. Raises CapsError."""
    for uuid in cards.uuids:
        for cap in caps:
            if cap.kind == "power_limit_watts":
                _check_power_limit(cards, uuid, cap.value)
            else:
                _check_clock(cards, uuid, cap.value)


def _check_power_limit(cards: GpuSet, uuid: str, watts: float) -> None:
    power = cards.power(uuid)
    if not power.least_w <= watts <= power.most_w:
        raise CapsError(
            f"{cards.name(uuid)} takes a power limit of {power.least_w:g} to {power.most_w:g} W, not {watts:g} W"
        )


def _check_clock(cards: GpuSet, uuid: str, hertz: float) -> None:
    clocks = cards.sm_clocks(uuid)
    if not clocks:
        raise CapsError(
            f"{cards.name(uuid)} cannot be locked to a clock; use power limits, or leave it out with --gpus"
        )
    nearest = min(clocks, key=lambda clock: abs(clock - hertz))
    if nearest != hertz:
        raise CapsError(
            f"{cards.name(uuid)} has no SM clock of {hertz / 1e6:g} MHz but {clocks[0] / 1e6:g} to "
            f"{clocks[-1] / 1e6:g} MHz, and the nearest is {nearest / 1e6:g} MHz"
        )


class CapSetter:
    """Sets caps on all cards at once; made by `restoring`."""

    def __init__(self, cards: GpuSet, journal: Journal, folder: Path, guardian: Guardian) -> None:
        self._cards = cards
        self._journal = journal
        self._folder = folder
        self._guardian = guardian
        self._cap: Cap | None = None

    def apply(self, cap: Cap | None) -> None:
        """Set it on all cards and read it back; None: what stood before. Raises CapsError, and then none has it."""
        if not self._guardian.watches:
            raise CapsError("the guardian that takes the caps off again was ended, so no other is set; start anew")
        limit_w, clock_is_locked = caps_journal.state_under_cap(self._journal, cap)
        self._journal = replace(self._journal, limit_w=limit_w, clock_is_locked=clock_is_locked)
        self._journal.write(self._folder)
        try:
            if cap is None or (self._cap is not None and self._cap.kind != cap.kind):
                self._put_back()
            if cap is not None:
                for uuid in self._cards.uuids:
                    _set(self._cards, uuid, cap)
        except BaseException:
            with contextlib.suppress(CapsError):  # the first error is the one to mend; leaving tries again
                self._put_back()
            self._cap = None
            raise
        self._cap = cap

    def confirm(self) -> None:
        """That the cap still stands, as after a run that is said to be made under it. Raises CapsError."""
        if self._cap is not None:
            for uuid in self._cards.uuids:
                _confirm(self._cards, uuid, self._cap)

    def _put_back(self) -> None:
        wrong = caps_journal.restore_gpus(self._journal, self._cards)
        if wrong:
            raise CapsError("; ".join(wrong))


def _set(cards: GpuSet, uuid: str, cap: Cap) -> None:
    if cap.kind == "power_limit_watts":
        cards.set_power_limit(uuid, cap.value)
    else:
        cards.lock_sm_clock(uuid, cap.value)
    give_up_s = time.monotonic() + _STANDS_WITHIN_S
    while True:
        try:
            _confirm(cards, uuid, cap)
        except CapsError:
            if time.monotonic() > give_up_s:
                raise
            time.sleep(_POLL_S)
        else:
            return


def _confirm(cards: GpuSet, uuid: str, cap: Cap) -> None:
    """A locked clock cannot be read back; that the clock is not above it is all that can be seen."""
    if cap.kind == "sm_clock_hertz":
        now_hz = cards.sm_clock(uuid)
        if now_hz > cap.value + _CLOCK_STEP_HZ:
            raise CapsError(
                f"{cards.name(uuid)} runs at {now_hz / 1e6:g} MHz though it was locked to {cap}; see nvidia-smi"
            )
        return
    for now_w in (cards.power(uuid).now_w, cards.enforced_w(uuid)):
        if abs(now_w - cap.value) > TOLERANCE_W:
            raise CapsError(
                f"{cards.name(uuid)} stands at {now_w:g} W though it was set to {cap}; something else limits "
                "or sets it, see nvidia-smi -q -d POWER"
            )


@contextlib.contextmanager
def restoring_caps(
    cards: GpuSet, folder: Path | None = None, say: Callable[[str], None] = log_message
) -> Iterator[CapSetter]:
    """Within, caps may be set; by whatever way it is left, what stood before comes back. Raises CapsError.

    What an earlier process left set is put back first, and then tried whether this user may set the cards. Where nobody
    else handles SIGTERM, it unwinds this process.
    """
    folder = folder or user_state_folder(os.environ) / caps_journal.FOLDER
    handled = threading.current_thread() is not threading.main_thread() or (
        signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    )
    with contextlib.nullcontext() if handled else unwind_on_signal():
        path, journal = _claim(cards, folder, say)
        try:
            watching = guardian.start_guardian(path, os.environ)
        except BaseException:
            caps_journal.remove_journal(path)
            raise
        doubt = guardian.survival_warning(watching.pid, folder, os.environ)
        if doubt:
            say(doubt)
        setter = CapSetter(cards, journal, folder, watching)
        try:
            yield setter
        finally:
            if os.getpid() == journal.holder.pid:  # a forked child holds nothing
                _leave(path, cards, watching)


def _leave(path: Path, cards: GpuSet, watching: Guardian) -> None:
    """The guardian tries too where this does not succeed."""
    try:
        wrong = caps_journal.restore_gpus(caps_journal.read_journal(path), cards)
        if wrong:
            raise CapsError(f"{'; '.join(wrong)}; then try: workloads caps restore")
        caps_journal.remove_journal(path)
    except FileNotFoundError:  # the guardian was told to end, and has put all back
        pass
    finally:
        watching.dismiss()


def _claim(cards: GpuSet, folder: Path, say: Callable[[str], None]) -> tuple[Path, Journal]:
    """Where the journal is now on disk, and what it says; nothing has changed yet."""
    with caps_journal.lock_journals(folder):
        for path in caps_journal.journal_paths(folder):
            try:
                other = caps_journal.read_journal(path)
            except FileNotFoundError:  # its holder has just left
                continue
            if other.holder.is_alive:
                _refuse_shared(other, cards)
            elif not caps_journal.restore_journal(path, open_journal_gpus, say) and other.shares_a_card(cards):
                raise CapsError("an earlier sweep's cap is still set and cannot be put back; mend that, see above")
        before = tuple(InitialPowerLimit(uuid, cards.name(uuid), cards.power(uuid).now_w) for uuid in cards.uuids)
        for card in before:  # who may set this may lock clocks, too; not sooner, as the card may have been another's
            cards.set_power_limit(card.uuid, card.power_limit_w)
        journal = Journal(Holder.this_process(), cards.simulation, before)
        return journal.write(folder), journal


def _refuse_shared(other: Journal, cards: GpuSet) -> None:
    if other.holder == Holder.this_process():
        raise CapsError("this process holds caps already; leave the one `restoring` before the next")
    if other.shares_a_card(cards):
        raise CapsError(
            f"process {other.holder.pid} holds the power limit of {', '.join(before.name for before in other.cards)}; "
            "wait for it, or end it, or where it is of a container that has gone: workloads caps restore --force"
        )
