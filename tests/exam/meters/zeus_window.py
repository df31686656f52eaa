"""zeus: one window of ZeusMonitor, with its option for short windows."""

from __future__ import annotations

import logging

from protocol import Notes, examine
from zeus.monitor import ZeusMonitor


def main() -> None:
    notes = Notes()
    monitor = ZeusMonitor(cpu_indices=[], approx_instant_energy=True)
    for name in ("zeus", ""):
        logging.getLogger(name).addHandler(notes)
    examine(
        lambda: monitor.begin_window("exam", sync_execution=False),
        lambda: monitor.end_window("exam", sync_execution=False).gpu_energy,
        notes,
    )


if __name__ == "__main__":  # its child processes import this file
    main()
