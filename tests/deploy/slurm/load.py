"""Load on the simulated GPUs of a Slurm job: `load.py CLUSTER_FOLDER SECONDS UTILIZATION`."""

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from wattline_exporter.simulation import FILE_NAME, Simulation


def main() -> None:
    folder, seconds, utilization = sys.argv[1:4]
    gpus = [int(gpu) for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with Simulation.open(Path(folder) / os.environ["SLURMD_NODENAME"] / FILE_NAME) as simulation:
        try:
            for gpu in gpus:
                simulation.drive(gpu, float(utilization), os.getpid())
            time.sleep(float(seconds))
        finally:
            for gpu in gpus:
                simulation.release(gpu, os.getpid())


if __name__ == "__main__":
    main()
