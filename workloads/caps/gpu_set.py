"""Cards whose power limit and SM clock can be set: real ones through NVML, simulated ones in their state file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

NOT_ALLOWED = (
    "setting power limits and clocks takes root, or the capability CAP_SYS_ADMIN: use sudo -E, or a container with "
    "--cap-add SYS_ADMIN"
)


class CapsError(Exception):
    """One line: cause and remedy."""


class NotAllowedError(CapsError):
    """The driver refuses it to this user."""


@dataclass(frozen=True, slots=True)
class PowerLimitRange:
    """What a card takes as its power limit, what it begins with, and what is asked of it now."""

    least_w: float
    most_w: float
    default_w: float
    now_w: float


@dataclass(frozen=True, slots=True)
class Cap:
    """What a run is made under."""

    kind: Literal["power_limit_watts", "sm_clock_hertz"]
    value: float

    def __str__(self) -> str:
        return f"{self.value:g} W" if self.kind == "power_limit_watts" else f"{self.value / 1e6:g} MHz"


class GpuSet(Protocol):
    """Some of a node's cards, by UUID. Every method raises CapsError."""

    uuids: tuple[str, ...]
    simulation: str | None
    """The state file of simulated ones."""

    def name(self, uuid: str) -> str:
        """For a message: `GPU 0 (NVIDIA H200)`."""
        ...

    def power(self, uuid: str) -> PowerLimitRange: ...

    def enforced_w(self, uuid: str) -> float:
        """The least of all limits that the card obeys."""
        ...

    def set_power_limit(self, uuid: str, watts: float) -> None: ...

    def sm_clocks(self, uuid: str) -> tuple[float, ...]:
        """Those that it can be locked to, in hertz, rising; empty where it cannot."""
        ...

    def sm_clock(self, uuid: str) -> float:
        """At this moment, in hertz."""
        ...

    def lock_sm_clock(self, uuid: str, hertz: float | None) -> None:
        """None: as the driver has it by default, which is the only thing that can be gone back to."""
        ...

    def close(self) -> None: ...
