"""Devices assigned to each run."""

from exporter.attribution.device_loads import NO_RUN
from exporter.attribution.policy import Attribution
from exporter.model import Device, GpuInfo, GpuProcess, Poll
from exporter.polling.health import GpuHealth
from exporter.polling.live_state import LiveState
from exporter.processes.procfs import ProcessKey
from exporter.runs.device_holders import DeviceHolders
from exporter.runs.record import RunRecord

GPU, OTHER = Device("gpu", "GPU-0"), Device("gpu", "GPU-1")


def run_on(*devices, discovers=False, seen_on=()):
    return RunRecord(
        run_id="a",
        workload="test",
        labels={},
        request="{}",
        devices=list(devices),
        gpus={},
        discovers=discovers,
        begin_s=0.0,
        started_at=0.0,
        lease_s=60.0,
        lease_until_s=60.0,
        alive_s=0.0,
        processes=[ProcessKey(1, 1.0)],
        seen_on=list(seen_on),
    )


def loads_of(run, processes=None):
    """Return the loads on each GPU; `processes` are those on it."""
    live, energies = LiveState(), Attribution()
    for device in (GPU, OTHER):
        live.gpus[device.id] = GpuHealth(GpuInfo("0", device.id, "test", "", "", ""), device, 0.0)
        live.gpus[device.id].processes = tuple((processes or {}).get(device, ()))
        live.energy.push([Poll(device, 0.0, 0.0, 0.0, 300.0)])
    attribution = DeviceHolders(live, energies, 0.0)
    attribution._owners = {1: ("a", 0.0)}
    attribution.hold([run])
    return {device: changes[-1][1].loads for device, changes in energies._holders.items()}


def test_run_with_named_gpus_holds_them_before_its_processes_start():
    loads = loads_of(run_on(GPU), {OTHER: [GpuProcess(1, None, 0.5)]})

    assert loads == {GPU: {"a": 0}, OTHER: {NO_RUN: 0.5}}


def test_run_with_discovered_gpus_holds_those_of_its_processes():
    loads = loads_of(run_on(GPU, OTHER, discovers=True, seen_on=["GPU-1"]))

    assert loads == {GPU: {}, OTHER: {"a": 0}}
