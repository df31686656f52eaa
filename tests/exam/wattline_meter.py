"""Wattline: one run of an exporter that has been running for some seconds, as on a node."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.node import boottime_of
from tests.bench.wattline import start_exporter
from wattline_exporter.simulation import ENVIRONMENT, Simulation

RUNNING_FOR_S = 4.0


def main() -> None:
    with Simulation.open(Path(os.environ[ENVIRONMENT])) as simulation:
        gpus = {gpu.uuid: str(gpu.index) for gpu in simulation.gpus}
    with tempfile.TemporaryDirectory(prefix="wattline-exam-") as folder:
        exporter = start_exporter({}, Path(folder))
        with exporter.program:
            exporter.until_ready(len(gpus))
            time.sleep(RUNNING_FOR_S)
            run_id = exporter.begin("exam")
            print("ready", flush=True)
            sys.stdin.read()
            run = exporter.end(run_id)
            begin_s = boottime_of(run["started_at"])
            answer = {
                "energy_joules": {
                    gpus[uuid]: joules for uuid, joules in run["energy_joules"]["gpu"].items()
                },
                "uncertainty_joules": {
                    gpus[uuid]: joules
                    for uuid, joules in run["energy_uncertainty_joules"]["gpu"].items()
                },
                "notes": run["notes"],
                "begin_s": begin_s,
                "end_s": begin_s + run["duration_seconds"],
            }
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
