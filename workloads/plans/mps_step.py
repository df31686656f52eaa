"""A step of a plan under MPS: the daemon around it, and the proof that its jobs use it before they measure."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workloads.mps import other_daemons as mps_others
from workloads.mps import session as mps
from workloads.plans.tenants import StepFailedError

_ATTACHED_WITHIN_S = 5.0  # whoever is at the barrier has warmed up, so it is a client by now


@dataclass(frozen=True, slots=True)
class Shared:
    """How the jobs of a step are started."""

    environ: Mapping[str, str]
    verify: Callable[[Sequence[int]], None] | None = None
    """None where the step is not under MPS; raises StepFailedError."""
    doubt: str | None = None
    """Why the jobs of a step without MPS are not without it."""


@contextlib.contextmanager
def shared(
    folder: Path, environ: Mapping[str, str], gpus: Sequence[str], *, wanted: bool, proc: Path = Path("/proc")
) -> Iterator[Shared]:
    """`gpus` are UUIDs. Raises MpsError where the daemon cannot be had."""
    if not wanted:
        yield Shared(environ, doubt=mps_others.taking(environ, gpus, proc))
        return
    with mps.started(folder, environ, gpus) as session:

        def verify(pids: Sequence[int]) -> None:
            try:
                session.verify(pids, _ATTACHED_WITHIN_S)
            except mps.MpsError as error:
                raise StepFailedError(str(error)) from error

        yield Shared({**environ, **session.environment}, verify)
