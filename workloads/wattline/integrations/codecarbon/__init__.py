"""Trackers with the interface of CodeCarbon and the joules of Wattline.

    from wattline.integrations.codecarbon import EmissionsTracker

A script that imports `codecarbon` runs unchanged with `python -m wattline.integrations.codecarbon
script.py`.
"""

from wattline.integrations.codecarbon.emissions_data import EmissionsData, TaskEmissionsData
from wattline.integrations.codecarbon.tracker import (
    EmissionsTracker,
    OfflineEmissionsTracker,
    OutputMethod,
    TaskEmissionsTracker,
    track_emissions,
    track_task_emissions,
)

__all__ = [
    "EmissionsData",
    "EmissionsTracker",
    "OfflineEmissionsTracker",
    "OutputMethod",
    "TaskEmissionsData",
    "TaskEmissionsTracker",
    "track_emissions",
    "track_task_emissions",
]
