"""Energy of each GPU from raw power samples with the analyzer's source and integral."""

from __future__ import annotations

import json
import sys

import numpy as np

from wattline.contract import metrics as m
from wattline_analyzer.core.integrate import trapezoid
from wattline_analyzer.core.samples import FloatArray, clean
from wattline_analyzer.core.sources.prometheus import PrometheusSource


def main() -> None:
    address, start_s, end_s = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    found: dict[str, list[tuple[FloatArray, FloatArray]]] = {}
    source = PrometheusSource(address)
    for part in source.parts([m.GPU_POWER], {}, start_s, end_s):
        for labels, t, value in part:
            found.setdefault(labels["uuid"], []).append((t, value))
    source.close()
    power = {
        uuid: clean(*map(np.concatenate, zip(*parts, strict=True))) for uuid, parts in found.items()
    }
    print(
        json.dumps(
            {uuid: trapezoid(samples, start_s, end_s).energy_j for uuid, samples in power.items()}
        )
    )


if __name__ == "__main__":
    main()
