"""Hwmon tree in the kernel's layout: flat links in class/hwmon, each with a link to its device."""

from __future__ import annotations

import os
from pathlib import Path


def chip(
    root: Path,
    number: int,
    name: str,
    device: str,
    files: dict[str, str],
    *,
    in_device: bool = False,
) -> Path:
    """Create hwmonN of driver `name` on `device` (`i2c/1-0040`); ACPI meters have files in the
    device folder.
    """
    place = root / "devices" / device
    folder = place / "hwmon" / f"hwmon{number}"
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "device").symlink_to(os.path.relpath(place, folder))
    for file, text in files.items():
        ((place if in_device else folder) / file).write_text(text + "\n")
    link = root / f"class/hwmon/hwmon{number}"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(folder, link.parent))
    return place if in_device else folder


def meter(
    root: Path, number: int, oem_info: str, watts: float, instance: int | None = None
) -> Path:
    """Create an ACPI power meter; `instance` is its position, independent of the number of the
    hwmon.
    """
    files = {
        "power1_average": str(round(watts * 1e6)),
        "power1_oem_info": oem_info,
        "power1_average_interval": "1000",
        "power1_is_battery": "0",
    }
    place = f"acpi/ACPI000D:{number if instance is None else instance:02d}"
    return chip(root, number, "power_meter", place, files, in_device=True)


def grace_hopper(root: Path) -> list[Path]:
    """Create the meters of a GH200: the module contains its Grace, which contains the rails of
    cores and SoC.
    """
    names = [("Module", 520.0), ("Grace", 150.0), ("CPU", 110.0), ("SysIO", 25.0)]
    return [
        meter(root, number, f"{name} Power Socket 0", watts)
        for number, (name, watts) in enumerate(names)
    ]


def jetson(root: Path) -> Path:
    """Create the INA3221 of an Orin: two rails, a disabled channel, shunt voltages and the sum of
    currents.
    """
    return chip(
        root,
        1,
        "ina3221",
        "i2c/1-0040",
        {
            "in1_label": "VDD_GPU_SOC",
            "in1_enable": "1",
            "in1_input": "5000",
            "curr1_input": "1200",
            "in2_label": "VDD_CPU_CV",
            "in2_enable": "1",
            "in2_input": "4960",
            "curr2_input": "-8",
            "in3_label": "VIN_SYS_5V0",
            "in3_enable": "0",
            "in3_input": "5000",
            "curr3_input": "1000",
            "in4_input": "12000",
            "curr4_input": "1192",
        },
    )
