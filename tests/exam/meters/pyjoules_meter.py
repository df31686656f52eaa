"""pyJoules: its energy meter on all GPUs."""

from __future__ import annotations

from protocol import examine
from pyJoules.device import DeviceFactory
from pyJoules.device.nvidia_device import NvidiaGPUDevice
from pyJoules.energy_meter import EnergyMeter


def main() -> None:
    domains = list(NvidiaGPUDevice.available_domains())
    meter = EnergyMeter(DeviceFactory.create_devices(domains))

    def end() -> dict[int, float]:
        meter.stop()
        (sample,) = meter.get_trace()
        return {domain.device_id: sample.energy[str(domain)] / 1e3 for domain in domains}  # mJ

    examine(lambda: meter.start("exam"), end)


if __name__ == "__main__":
    main()
