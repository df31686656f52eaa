"""The journal of power limits: who set what on which cards and what stood before, on disk before the first change."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workloads.caps.gpu_set import Cap, CapsError, GpuSet

FOLDER = "caps"
LOG_FILE = "guardian.log"
TOLERANCE_W = 1.0
"""A driver may round what it is asked for."""
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Holder:
    """A process for all time: a pid comes again, and means another process in another container."""

    pid: int
    started_ticks: int
    pid_namespace: str
    boot_id: str

    @classmethod
    def this_process(cls) -> Holder:
        return cls(os.getpid(), started_ticks(os.getpid()) or 0, _pid_namespace(), kernel_boot_id())

    @property
    def is_alive(self) -> bool:
        """True also where that cannot be seen from here, from another container of this node."""
        if self.boot_id != kernel_boot_id():
            return False
        return self.pid_namespace != _pid_namespace() or started_ticks(self.pid) == self.started_ticks


@dataclass(frozen=True, slots=True)
class InitialPowerLimit:
    """What stood on a card before."""

    uuid: str
    name: str
    power_limit_w: float


@dataclass(frozen=True, slots=True)
class Journal:
    holder: Holder
    simulation: str | None
    cards: tuple[InitialPowerLimit, ...]
    limit_w: float | None = None
    """The power limit that was asked for last."""
    clock_is_locked: bool = False

    @property
    def file_name(self) -> str:
        return f"{self.holder.pid}-{self.holder.started_ticks}{_SUFFIX}"

    def shares_a_card(self, cards: GpuSet) -> bool:
        return self.simulation == cards.simulation and any(before.uuid in cards.uuids for before in self.cards)

    def write(self, folder: Path) -> Path:
        """Whole and on disk, or not at all; raises CapsError."""
        path = folder / self.file_name
        new = path.with_suffix(".new")
        try:
            with new.open("w") as file:
                json.dump(asdict(self), file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
            _sync_folder(folder)
        except OSError as error:
            raise CapsError(f"the journal {path} cannot be written ({error.strerror}), so no cap is set") from error
        return path


def read_journal(path: Path) -> Journal:
    """Raises CapsError; FileNotFoundError where it is gone."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        cards = tuple(InitialPowerLimit(**card) for card in content.pop("cards"))
        return Journal(Holder(**content.pop("holder")), cards=cards, **content)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CapsError(
            f"the journal {path} cannot be read ({error}); see workloads caps show for what is set, then delete it"
        ) from error


def remove_journal(path: Path) -> None:
    path.unlink(missing_ok=True)
    _sync_folder(path.parent)


def journal_paths(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{_SUFFIX}"))


@contextlib.contextmanager
def lock_journals(folder: Path) -> Iterator[None]:
    """Alone among all who claim cards or restore them; makes the folder. Raises CapsError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("a")
    except OSError as error:
        raise CapsError(
            f"no journal of power limits can be kept in {folder} ({error.strerror}); set XDG_STATE_HOME to a folder "
            "that can be written"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def restore_gpus(journal: Journal, cards: GpuSet) -> list[str]:
    """What stood before, on every card that answers; what went wrong, a line each."""
    wrong = []
    for before in journal.cards:
        try:
            _put_back_on(before, journal, cards)
        except CapsError as error:
            wrong.append(str(error))
    return wrong


def _put_back_on(before: InitialPowerLimit, journal: Journal, cards: GpuSet) -> None:
    has_rebooted = journal.holder.boot_id != kernel_boot_id()  # which takes limits and locks off real cards
    if journal.clock_is_locked and (not has_rebooted or journal.simulation):
        cards.lock_sm_clock(before.uuid, None)
    if journal.limit_w is None:
        return
    if has_rebooted and abs(cards.power(before.uuid).now_w - journal.limit_w) > TOLERANCE_W:
        return  # what stands now, the driver or somebody has set since
    cards.set_power_limit(before.uuid, before.power_limit_w)
    now_w = cards.power(before.uuid).now_w
    if abs(now_w - before.power_limit_w) > TOLERANCE_W:
        raise CapsError(
            f"{before.name} stays at {now_w:g} W instead of {before.power_limit_w:g} W; try: nvidia-smi -pl"
        )


def restore_journal(path: Path, open_cards: Callable[[Journal], GpuSet], say: Callable[[str], None]) -> bool:
    """Put back what a journal says and remove it; False where it has to stay. To be called within `locked`."""
    try:
        journal = read_journal(path)
        cards = open_cards(journal)
    except FileNotFoundError:  # its guardian was faster
        return True
    except CapsError as error:
        say(f"{path}: {error}")
        return False
    try:
        wrong = restore_gpus(journal, cards)
    finally:
        cards.close()
    for text in wrong:
        say(text)
    if not wrong:
        say(f"{restored_text(journal)}; process {journal.holder.pid} had set it")
        remove_journal(path)
    return not wrong


def restored_text(journal: Journal) -> str:
    """What stands again."""
    stood = ", ".join(f"{before.name} at {before.power_limit_w:g} W" for before in journal.cards)
    return f"put back: {stood}{' and its default clocks' if journal.clock_is_locked else ''}"


def state_under_cap(journal: Journal, cap: Cap | None) -> tuple[float | None, bool]:
    """`limit_w` and `clock_is_locked` of the journal while this cap stands; both only ever grow."""
    limit_w = cap.value if cap is not None and cap.kind == "power_limit_watts" else journal.limit_w
    return limit_w, journal.clock_is_locked or (cap is not None and cap.kind == "sm_clock_hertz")


def started_ticks(pid: int) -> int | None:
    """When it started, in clock ticks since boot; None where it has ended (a zombie has)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def kernel_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
