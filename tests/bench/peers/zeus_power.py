"""zeus where there is no counter: its power monitor, which polls, at half of the sensor's period.

Left to itself, version 0.16 infers a period of 0 s (the least of all that it finds and its initial 0), and its
processes then poll without a pause: on a small machine that would be measured instead of everything else.
"""

from __future__ import annotations

import time

from windows import boottime, options, tell
from zeus.monitor import PowerMonitor

PERIOD_S = 0.05


def main() -> None:
    windows, seconds = options(__doc__)
    monitor = PowerMonitor(update_period=PERIOD_S, power_domains=["device_instant"])
    time.sleep(1.0)
    for _ in range(windows):
        begin_s, begin_at = boottime(), time.time()
        time.sleep(seconds)
        end_s, end_at = boottime(), time.time()
        tell("polled", begin_s, end_s, _settled(monitor, begin_at, end_at))
    monitor.stop()


def _settled(monitor: PowerMonitor, begin_at: float, end_at: float) -> dict[int, float]:
    """Its figure once it stays: one call takes no more of the polls than the pipe from its process holds."""
    before: dict[int, float] | None = None
    while True:
        time.sleep(0.7)
        joules = monitor.get_energy(begin_at, end_at)
        if joules is None:
            raise SystemExit("zeus has no power readings")
        if joules == before:
            return joules
        before = joules


if __name__ == "__main__":  # it spawns processes that import this file
    main()
