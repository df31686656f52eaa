"""codecarbon: one offline tracker of all GPUs, which reports their sum."""

from __future__ import annotations

import logging

from codecarbon import OfflineEmissionsTracker
from protocol import Notes, examine


def main() -> None:
    notes = Notes()
    tracker = OfflineEmissionsTracker(
        country_iso_code="GBR", output_methods=[], log_level="warning"
    )
    logging.getLogger("codecarbon").addHandler(notes)

    def end() -> dict[str, float]:
        tracker.stop()
        notes.texts[:] = [
            text for text in notes.texts if "GPU" in text
        ]  # others are about the host
        return {"sum": tracker.final_emissions_data.gpu_energy * 3.6e6}

    examine(tracker.start, end, notes)


if __name__ == "__main__":
    main()
