"""nvitop: mean power of its background collector, times its duration. nvitop itself claims no
energy.
"""

from __future__ import annotations

from nvitop import Device, ResourceMetricCollector
from protocol import examine


def main() -> None:
    devices = Device.all()
    collector = ResourceMetricCollector(devices=devices, interval=1.0)

    def end() -> dict[int, float]:
        metrics = collector.collect()
        collector.stop("exam")
        seconds = metrics["exam/duration (s)"]
        found = {
            device.index: [
                watts
                for key, watts in metrics.items()
                if f"gpu:{device.index}" in key and key.endswith("power_usage (W)/mean")
            ]
            for device in devices
        }
        return {gpu: watts[0] * seconds for gpu, watts in found.items() if watts}

    examine(lambda: collector.start("exam"), end)


if __name__ == "__main__":
    main()
