"""Interface of GPUs whose power limit and SM clock can be set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

NOT_ALLOWED = (
    "permission denied, root or the capability CAP_SYS_ADMIN is required; use sudo -E, or a container with "
    "--cap-add SYS_ADMIN"
)


class CapsError(Exception):
    """Error with a one-line message: the cause and the remedy."""


class NotAllowedError(CapsError):
    """Change that the driver denies to this user."""


@dataclass(frozen=True, slots=True)
class PowerLimitRange:
    """Supported, default and currently requested power limits of a GPU."""

    least_w: float
    most_w: float
    default_w: float
    now_w: float


@dataclass(frozen=True, slots=True)
class Cap:
    """Power limit or clock lock of a run."""

    kind: Literal["power_limit_watts", "sm_clock_hertz"]
    value: float

    def __str__(self) -> str:
        return f"{self.value:g} W" if self.kind == "power_limit_watts" else f"{self.value / 1e6:g} MHz"


class GpuSet(Protocol):
    """GPUs of a node, by UUID. Every method raises CapsError."""

    uuids: tuple[str, ...]
    simulation: str | None
    """State file of simulated GPUs; None for real ones."""

    def name(self, uuid: str) -> str:
        """Return the name for messages: `GPU 0 (NVIDIA H200)`."""
        ...

    def power(self, uuid: str) -> PowerLimitRange: ...

    def enforced_w(self, uuid: str) -> float:
        """Return the lowest of all limits that the GPU obeys."""
        ...

    def set_power_limit(self, uuid: str, watts: float) -> None: ...

    def sm_clocks(self, uuid: str) -> tuple[float, ...]:
        """Return the clocks that the GPU can be locked to, in ascending order; empty if it cannot be locked."""
        ...

    def sm_clock(self, uuid: str) -> float:
        """Return the current SM clock in hertz."""
        ...

    def lock_sm_clock(self, uuid: str, hertz: float | None) -> None:
        """Lock the clock; None removes the lock. An earlier lock cannot be read, so it cannot be restored."""
        ...

    def close(self) -> None: ...
