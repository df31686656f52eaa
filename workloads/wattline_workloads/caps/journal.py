"""Journal of initial power limits, written to disk before the first change."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wattline_workloads.caps.gpu_set import Cap, CapsError, GpuSet, open_gpu_set
from wattline_workloads.runner.watchdog import started_ticks

FOLDER = "caps"
LOG_FILE = "watchdog.log"
TOLERANCE_W = 1.0
"""Largest difference between requested and set limit: drivers round."""
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class JournalHolder:
    """Process that holds a journal, identified uniquely over reused pids, containers and
    reboots.
    """

    pid: int
    started_ticks: int
    pid_namespace: str
    boot_id: str

    @classmethod
    def this_process(cls) -> JournalHolder:
        return cls(os.getpid(), started_ticks(os.getpid()) or 0, _pid_namespace(), kernel_boot_id())

    @property
    def is_alive(self) -> bool:
        """Liveness of the process; True if it is in another container, where that is unknown."""
        if self.boot_id != kernel_boot_id():
            return False
        return (
            self.pid_namespace != _pid_namespace() or started_ticks(self.pid) == self.started_ticks
        )


@dataclass(frozen=True, slots=True)
class InitialPowerLimit:
    """Power limit of a GPU before the first change."""

    uuid: str
    name: str
    power_limit_w: float


@dataclass(frozen=True, slots=True)
class Journal:
    """Initial limits of GPUs, and the caps that a process has set."""

    holder: JournalHolder
    simulation: str | None
    initial_limits: tuple[InitialPowerLimit, ...]
    limit_w: float | None = None
    """Latest requested power limit; None if there was none."""
    clock_is_locked: bool = False

    @property
    def file_name(self) -> str:
        return f"{self.holder.pid}-{self.holder.started_ticks}{_SUFFIX}"

    def shares_gpu(self, gpus: GpuSet) -> bool:
        return self.simulation == gpus.simulation and any(
            initial.uuid in gpus.uuids for initial in self.initial_limits
        )

    def write(self, folder: Path) -> Path:
        """Write the journal atomically and durably. Raises CapsError."""
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
            raise CapsError(
                f"no cap set: cannot write journal {path}: {error.strerror}; free disk space or "
                "set XDG_STATE_HOME"
            ) from error
        return path


def read_journal(path: Path) -> Journal:
    """Parse a journal. Raises CapsError, and FileNotFoundError if it does not exist."""
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        limits = tuple(InitialPowerLimit(**limit) for limit in content.pop("initial_limits"))
        return Journal(JournalHolder(**content.pop("holder")), initial_limits=limits, **content)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CapsError(
            f"cannot read journal {path}: {error}; check the limits with workloads caps show, then "
            "delete the file"
        ) from error


def remove_journal(path: Path) -> None:
    path.unlink(missing_ok=True)
    _sync_folder(path.parent)


def journal_paths(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{_SUFFIX}"))


@contextlib.contextmanager
def lock_journals(folder: Path) -> Iterator[None]:
    """Hold the lock for claiming or restoring GPUs; create the folder. Raises CapsError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("a")
    except OSError as error:
        raise CapsError(
            f"cannot keep a journal of power limits in {folder}: {error.strerror}; set "
            "XDG_STATE_HOME to a writable "
            "folder"
        ) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def restore_gpus(journal: Journal, gpus: GpuSet) -> list[str]:
    """Restore the initial limits of every GPU that responds; return one message per error."""
    errors = []
    for initial in journal.initial_limits:
        try:
            _restore_gpu(initial, journal, gpus)
        except CapsError as error:
            errors.append(str(error))
    return errors


def _restore_gpu(initial: InitialPowerLimit, journal: Journal, gpus: GpuSet) -> None:
    has_rebooted = (
        journal.holder.boot_id != kernel_boot_id()
    )  # a reboot resets the limits and locks of real GPUs
    if journal.clock_is_locked and (not has_rebooted or journal.simulation):
        gpus.lock_sm_clock(initial.uuid, None)
    if journal.limit_w is None:
        return
    if has_rebooted and abs(gpus.power(initial.uuid).now_w - journal.limit_w) > TOLERANCE_W:
        return  # the driver or another program has changed the limit since
    gpus.set_power_limit(initial.uuid, initial.power_limit_w)
    now_w = gpus.power(initial.uuid).now_w
    if abs(now_w - initial.power_limit_w) > TOLERANCE_W:
        raise CapsError(
            f"cannot restore {initial.name}: it stays at {now_w:g} W instead of "
            f"{initial.power_limit_w:g} W; "
            "try nvidia-smi -pl"
        )


def restore_journal(
    path: Path, open_gpus: Callable[[Journal], GpuSet], log: Callable[[str], None]
) -> bool:
    """Restore and remove a journal; return False if it remains. Call it within `lock_journals`."""
    try:
        journal = read_journal(path)
        gpus = open_gpus(journal)
    except FileNotFoundError:  # its watchdog has just restored it
        return True
    except CapsError as error:
        log(f"{path}: {error}")
        return False
    try:
        errors = restore_gpus(journal, gpus)
    finally:
        gpus.close()
    for text in errors:
        log(text)
    if not errors:
        log(f"{restored_text(journal)}; the caps were set by process {journal.holder.pid}")
        remove_journal(path)
    return not errors


def restored_text(journal: Journal) -> str:
    """Return the message that names the restored limits."""
    limits = ", ".join(
        f"{initial.name} at {initial.power_limit_w:g} W" for initial in journal.initial_limits
    )
    return f"restored: {limits}{' and its default clocks' if journal.clock_is_locked else ''}"


def state_under_cap(journal: Journal, cap: Cap | None) -> tuple[float | None, bool]:
    """Return `limit_w` and `clock_is_locked` of the journal under `cap`; neither is ever
    cleared.
    """
    limit_w = cap.value if cap is not None and cap.kind == "power_limit_watts" else journal.limit_w
    return limit_w, journal.clock_is_locked or (cap is not None and cap.kind == "sm_clock_hertz")


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


def open_journal_gpus(journal: Journal) -> GpuSet:
    """Open the GPUs whose limits `journal` records. Raises CapsError."""
    return open_gpu_set([initial.uuid for initial in journal.initial_limits], journal.simulation)
