"""codecarbon: one tracker per window over the eight GPUs in turn, because it reports only their
sum.
"""

from __future__ import annotations

import time

from codecarbon import OfflineEmissionsTracker
from windows import boottime, options, print_window

GPUS = 8


def main() -> None:
    windows, seconds = options(__doc__)
    for window in range(windows):
        gpu = window % GPUS
        tracker = OfflineEmissionsTracker(
            country_iso_code="GBR",
            gpu_ids=[gpu],
            output_methods=[],
            log_level="critical",
            allow_multiple_runs=True,
        )
        called_s = boottime()
        tracker.start()
        begin_s = boottime()
        time.sleep(seconds)
        end_s = boottime()
        tracker.stop()
        joules = tracker.final_emissions_data.gpu_energy * 3.6e6
        print_window("tracker", begin_s, end_s, {gpu: joules}, begin_s - called_s)
        time.sleep(0.7)


if __name__ == "__main__":
    main()
