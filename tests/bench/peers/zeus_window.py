"""zeus: windows of its monitor, as its users write them."""

from __future__ import annotations

import time

from windows import boottime, options, print_window
from zeus.monitor import ZeusMonitor


def main() -> None:
    windows, seconds = options(__doc__)
    monitor = ZeusMonitor(cpu_indices=[])
    for _ in range(windows):
        called_s = boottime()
        monitor.begin_window("bench", sync_execution=False)
        begin_took_s = boottime() - called_s
        begin_s = called_s + begin_took_s / 2
        time.sleep(seconds)
        called_s = boottime()
        measured = monitor.end_window("bench", sync_execution=False)
        print_window(
            "counter", begin_s, (called_s + boottime()) / 2, measured.gpu_energy, begin_took_s
        )
        time.sleep(0.7)


if __name__ == "__main__":
    main()
