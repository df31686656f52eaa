"""zeus without a counter: its power monitor, which polls at half of the sensor's period.

By default, version 0.16 infers a period of 0 s (the minimum of its samples and its initial 0) and
polls without a pause, which would dominate the measurement on a small machine.
"""

from __future__ import annotations

import time

from windows import boottime, options, print_window
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
        print_window("polled", begin_s, end_s, _settled(monitor, begin_at, end_at))
    monitor.stop()


def _settled(monitor: PowerMonitor, begin_at: float, end_at: float) -> dict[int, float]:
    """Return its figure once it is stable; one call reads no more polls than the pipe holds."""
    before: dict[int, float] | None = None
    while True:
        time.sleep(0.7)
        joules: dict[int, float] | None = monitor.get_energy(begin_at, end_at)
        if joules is None:
            raise SystemExit("zeus has no power readings")
        if joules == before:
            return joules
        before = joules


if __name__ == "__main__":  # its child processes import this file
    main()
