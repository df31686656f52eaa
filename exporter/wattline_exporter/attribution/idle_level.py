"""Idle power of a device: mean of its lowest power level."""

from __future__ import annotations

from collections import deque

from wattline.contract.power_sensors import IDLE_LEVEL_RATIO

IDLE_S = 10
"""Window of a mean power, in seconds."""
MAX_WINDOWS = 600
"""Most windows that the running mean remembers. One ends each second, so the mean follows changes
over ten minutes.
"""
MAX_DEFICIT_S = 0.2
"""Limit of the idle energy that a step carries over to the next one: two updates of the energy
counter.
"""
SAVED_WINDOWS = 10
"""Weight of a saved value, small since earlier versions saved the lowest mean, which noise makes
too low.
"""


class IdleLevel:
    """Mean power over the windows without load on the lowest level, from a device's energy about
    once a second.

    The level reaches from the lowest window to IDLE_LEVEL_RATIO above it. The mean of its windows
    is unbiased for a noisy device that is idle. It excludes higher power, such as that of an open
    CUDA context, or of work between readings. A window counts if both of its halves have the same
    power within 2 IDLE_LEVEL_RATIO: a late reading, or an energy that stands still, makes one half
    too low, and the level would stay there.
    """

    def __init__(self, watts: float | None) -> None:
        self.watts = watts
        self._lowest_w = watts
        self._windows = 0 if watts is None else SAVED_WINDOWS
        self._samples: deque[tuple[float, float]] = deque(maxlen=IDLE_S + 1)
        self._deficit_uj = 0

    @property
    def least_w(self) -> float:
        """Lowest power of the idle device: the mean less the width of the level; 0 if unknown."""
        return (self.watts or 0.0) * (1 - IDLE_LEVEL_RATIO)

    def discard_window(self) -> None:
        """Start a new window, since the device has a load."""
        self._samples.clear()

    def update(self, t_s: float, energy_j: float) -> None:
        """Add the device's energy at `t_s`; readings less than half a second apart are ignored."""
        since_s = t_s - self._samples[-1][0] if self._samples else 1.0
        if since_s < 0.5:
            return
        if since_s > 2.5:
            self._samples.clear()  # a gap gives no information about the idle power
        self._samples.append((t_s, energy_j))
        if len(self._samples) <= IDLE_S:
            return
        (from_s, from_j), (middle_s, middle_j), (to_s, to_j) = (
            self._samples[k] for k in (0, IDLE_S // 2, IDLE_S)
        )
        watts = (to_j - from_j) / (to_s - from_s)
        halves_w = (middle_j - from_j) / (middle_s - from_s), (to_j - middle_j) / (to_s - middle_s)
        if max(halves_w) - min(halves_w) <= 2 * IDLE_LEVEL_RATIO * watts:
            self._add(watts)

    def take_uj(self, energy_uj: int, seconds: float) -> int:
        """Return the idle energy in `energy_uj` of the next `seconds`, in microjoules.

        A step between two updates of the counter has too little energy and the next one too much.
        The missing energy is therefore carried over, so that the excess does not count as energy
        above idle.
        """
        watts = self.watts or 0.0
        expected_uj = int(watts * seconds * 1e6) + self._deficit_uj
        idle_uj = min(expected_uj, energy_uj)
        self._deficit_uj = min(expected_uj - idle_uj, int(watts * MAX_DEFICIT_S * 1e6))
        return idle_uj

    def _add(self, watts: float) -> None:
        if (
            self.watts is None
            or self._lowest_w is None
            or watts < self.watts * (1 - IDLE_LEVEL_RATIO)
        ):
            self.watts = watts
            self._lowest_w = watts
            self._windows = 1
            return
        self._lowest_w = min(self._lowest_w, watts)
        if watts <= self._lowest_w * (1 + IDLE_LEVEL_RATIO):
            self._windows = min(self._windows + 1, MAX_WINDOWS)
            self.watts += (watts - self.watts) / self._windows
