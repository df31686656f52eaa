"""GPUs that are bound to the driver."""

from __future__ import annotations

from wattline_exporter.sensors.nvml.driver import Nvml, bound_gpus
from wattline_exporter.simulation import Fault


def test_bound_gpus_from_proc_have_nvml_bus_ids(tmp_path):
    for name in ("0000:18:00.0", "0000:af:00.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / name).mkdir(parents=True)

    assert bound_gpus(tmp_path) == {"00000000:18:00.0", "00000000:AF:00.0"}
    (tmp_path / "proc/driver/nvidia/gpus/0000:af:00.0").rmdir()
    assert bound_gpus(tmp_path) == {"00000000:18:00.0"}


def test_bound_gpus_without_proc_come_from_the_pci_bus(tmp_path):
    for name in ("0000:18:00.0", "bind", "module", "new_id"):
        (tmp_path / "sys/bus/pci/drivers/nvidia" / name).mkdir(parents=True)

    assert bound_gpus(tmp_path) == {"00000000:18:00.0"}
    assert bound_gpus(tmp_path / "elsewhere") == frozenset()


def test_bound_gpus_unbound_gpu_is_missing_after_initialization(make_node):
    node = make_node("H200", count=3)
    nvml = Nvml(node.api())
    nvml.open()
    node.simulation.set_fault(1, Fault.UNBOUND, on=True)

    assert nvml.count() == 3
    assert nvml.bound() == {node.simulation.gpus[0].pci_bus_id, node.simulation.gpus[2].pci_bus_id}
    nvml.open()
    assert [nvml.gpu(i).info.uuid for i in range(nvml.count())] == [
        node.simulation.gpus[i].uuid for i in (0, 2)
    ]
